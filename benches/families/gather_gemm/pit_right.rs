//! `C = A B` of a B in which a share (such as 90 %) of the pieces of 64 elements of a row is empty. The time includes
//! the detection, and the transposition of a row-major A. The baseline is cuBLAS on the whole product.

use super::micro::{EXTENT, checked, dynamic, row, sample, skipping, uniform, whole, worst_error};
use crate::prelude::*;

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
            let (stored, text) = match transpose_a {
                true => ("A[k,m]", "C[m,n] = A[k,m] * B[k,n]"),
                false => ("A[m,k]", SPMM),
            };
            let workload = format!("micro1x64-e{}-{stored}", f64::from(empty) / 100.0);
            let row = |times: &Times| row::<T>(OP, workload.clone(), full * 64, times);
            let operands = [("A", a_there.into()), ("B", dynamic(b_there))];
            let plan = skipping(bench, text, &operands, ("1x64", Options::default()))?;
            let mut c = bench.zeros::<T>(&[EXTENT; 2])?;
            let times = bench.measure(|| plan.run(&operands, &mut c, &bench.stream))?;
            let own = |i: usize, k: usize| match transpose_a {
                true => a.values()[k * EXTENT + i],
                false => a.values()[i * EXTENT + k],
            };
            let error = worst_error(own, &b, &c, checked(CHECKED))?;
            let note = format!("detection inside; err {error:.2} of the bound");
            let ours = row(&times).ours(plan.variant());
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
