//! By family what can run (`offers`) and what launches it: lists that a kernel reads, how large its grid is, its
//! params; of some also what it is predicted to cost, and the same on the CPU. The folders are those of
//! `kernels-gpu/families`.

// A family may have the name of its first module.
#![allow(clippy::module_inception)]

pub(crate) mod attention;
pub(crate) mod conv2d;
pub(crate) mod convert;
pub(crate) mod discover;
pub(crate) mod elementwise;
pub(crate) mod gather_gemm;
pub(crate) mod gemm;
pub(crate) mod optimizer;
pub(crate) mod sddmm;
pub(crate) mod softmax;
pub(crate) mod spmm;
pub(crate) mod tensor;

use crate::machine::Machine;
use crate::offer::{Candidate, Choice, Offers, Options, Problem};

/// Who has kernels for products of two matrices.
pub(crate) const PRODUCTS: &[Offers] = &[
    spmm::offers::offers,
    gemm::offers::offers,
    gather_gemm::offers::pit::offers,
    gather_gemm::offers::pit::right::offers,
];

/// For other expressions of one structure.
pub(crate) const STRUCTURES: &[Offers] = &[
    tensor::offers::rows::offers,
    tensor::offers::dots::offers,
    tensor::offers::tensor_product::offers,
    gather_gemm::offers::convolution::offers,
];

/// For any expression.
pub(crate) const ANY: &[Offers] = &[tensor::offers::einsum::offers];

impl Problem {
    /// Every kernel for products of these elements: a candidate with its predicted cost, cheapest first, or refused
    /// with a reason.
    pub fn candidates(&self, machine: &Machine, options: &Options) -> Choice {
        let mut choice = Choice::default();
        for family in [spmm::offers::FAMILY, gemm::offers::FAMILY] {
            for (row, found) in self.rows_of(family, machine, options) {
                match found {
                    Ok(cost) => choice.candidates.push(Candidate::of(row, cost)),
                    Err(refusal) => choice.refused.push(refusal),
                }
            }
        }
        choice.sort();
        choice
    }
}
