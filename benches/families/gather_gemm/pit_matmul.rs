//! Products with an A of which half, nine tenths or 95 % of the micro-tiles are empty (PIT, arXiv 2301.10936). The time
//! includes the detection. The baseline is dense cuBLAS.
//!
//! `nnz` is the elements of the nonempty micro-tiles; rates of products count only these.

use super::micro::{EMPTY, EXTENT, checked, found, row, sample, uniform, whole, worst_error};
use crate::prelude::*;
use einsparse::Determinism;

pub const OP: &str = "pit_matmul";
/// Number of checked rows of a product.
const CHECKED: usize = 16;

/// Measures every height and share in f16 and bf16.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    of_type::<f16>(&bench.anew()?, Dtype::F16)?;
    of_type::<bf16>(&bench.anew()?, Dtype::Bf16)
}

fn of_type<T: Scalar>(bench: &Bench<'_>, dtype: Dtype) -> Result<()> {
    let b = uniform::<T>()?;
    let b_there = bench.upload(&b)?;
    for height in [128, 64, 32] {
        for empty in EMPTY {
            let (a, full) = sample::<T>((height, 1), empty)?;
            let both = [&bench.upload(&a)?, &b_there];
            let workload = format!("micro{height}x1-e{}", f64::from(empty) / 100.0);
            let row = |times: &Times| row::<T>(OP, workload.clone(), full * height, times);
            let error = |c: &Tensor<T>| {
                let a = |i: usize, k: usize| a.values()[i * EXTENT + k];
                worst_error(a, &b, c, checked(CHECKED))
            };
            for (determinism, said) in
                [(Determinism::Strict, ""), (Determinism::Relaxed, "sums in any order; ")]
            {
                let options = Options { determinism, ..Options::default() };
                let micro = format!("{height}x1");
                found(bench, (&micro, options), both, error, (row, said))?;
            }
            whole(bench, (dtype, [EXTENT; 3], CuBlas::gemm), both, row)?;
        }
    }
    Ok(())
}
