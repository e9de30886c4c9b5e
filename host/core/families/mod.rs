//! Families: their offers (`offers`), and their launches with work lists, grids and params. Some families also contain
//! predicted costs and a CPU implementation. The directories have the names of those in `kernels-gpu/families`.

// A family may have the name of its first module.
#![allow(clippy::module_inception)]

pub mod attention;
pub(crate) mod conv2d;
pub mod convert;
pub mod discover;
pub mod elementwise;
pub(crate) mod gather_gemm;
pub mod gemm;
pub mod optimizer;
pub(crate) mod sddmm;
pub(crate) mod softmax;
pub(crate) mod spmm;
pub(crate) mod tensor;

use crate::machine::Machine;
use crate::offer::{Candidate, Choice, Family, Options, Problem};

/// Offers of products of two matrices.
pub(crate) const PRODUCTS: &[Family] = &[
    spmm::offers::offers,
    gemm::offers::offers,
    gather_gemm::offers::pit::offers,
    gather_gemm::offers::pit::right::offers,
];

/// Offers of other expressions of one structure.
pub(crate) const STRUCTURES: &[Family] = &[
    tensor::offers::rows::offers,
    tensor::offers::dots::offers,
    tensor::offers::tensor_product::offers,
    gather_gemm::offers::convolution::offers,
];

/// Offers of any expression.
pub(crate) const ANY: &[Family] = &[tensor::offers::einsum::offers];

impl Problem {
    /// Returns all kernels for products of these elements. Each is a candidate with its predicted cost, cheapest first,
    /// or refused with a reason.
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
