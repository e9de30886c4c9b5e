//! `C = A B` of a B in which a share (such as 90 %) of the pieces of 64 elements of a row is empty. The time includes
//! the detection, and the transposition of a row-major A. The baseline is cuBLAS on the whole product.

use super::micro::{EXTENT, checked, row, sample, uniform, whole, worst_error};
use crate::prelude::*;
use einsparse::dynamic::{DynamicMatmul, MatmulOptions, SparseSide};

pub const OP: &str = "pit_right";
/// Shares of empty micro-tiles, in percent.
const EMPTY: [u32; 3] = [50, 90, 95];
/// Number of checked rows of C.
const CHECKED: usize = 8;

/// Measures every share and both storage orders of A, in f16 and bf16.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    of_type::<f16>(&bench.anew()?, Dtype::F16)?;
    of_type::<bf16>(&bench.anew()?, Dtype::Bf16)
}

fn of_type<T: Scalar>(bench: &Bench<'_>, dtype: Dtype) -> Result<()> {
    let a = uniform::<T>()?;
    let a_there = bench.upload(&a)?;
    for empty in EMPTY {
        let (b, full) = sample::<T>((1, 64), empty)?;
        let both @ [a_there, b_there] = [&a_there, &bench.upload(&b)?];
        for transpose_a in [false, true] {
            let stored = if transpose_a { "A[k,m]" } else { "A[m,k]" };
            let workload = format!("micro1x64-e{}-{stored}", f64::from(empty) / 100.0);
            let row = |times: &Times| row::<T>(OP, workload.clone(), full * 64, times);
            let options = MatmulOptions {
                sparse: SparseSide::Right,
                transpose_a,
                ..MatmulOptions::default()
            };
            let mut product = DynamicMatmul::<T>::new(&bench.context, [EXTENT; 3], &options)?;
            let mut c = bench.zeros::<T>(&[EXTENT; 2])?;
            let times =
                bench.measure(|| product.forward(a_there, b_there, &mut c, &bench.stream))?;
            let own = |i: usize, k: usize| match transpose_a {
                true => a.values()[k * EXTENT + i],
                false => a.values()[i * EXTENT + k],
            };
            let error = worst_error(own, &b, &c, checked(CHECKED))?;
            let note = format!("detection inside; err {error:.2} of the bound");
            let ours = row(&times).ours(product.variants().join("+"));
            bench.add(ours.judged(error <= 1.0, note))?;
            let gemm = match transpose_a {
                true => CuBlas::gemm_turned,
                false => CuBlas::gemm,
            };
            whole(bench, (dtype, [EXTENT; 3], gemm), both, row)?;
        }
    }
    Ok(())
}
