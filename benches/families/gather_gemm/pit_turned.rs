//! `C = A^T B` of an A in which a share (such as 90 %) of the pieces of 64 elements of a row is empty. The time
//! includes the detection. The baseline is cuBLAS on the whole product. Applications: the gradient of B in a product
//! with a dynamic A, and layers with masked weights.

use super::micro::{EMPTY, EXTENT, checked, dynamic, row, sample, skipping, uniform};
use super::micro::{whole, worst_error};
use crate::prelude::*;

pub const OP: &str = "pit_turned";
/// Number of checked rows of C.
const CHECKED: usize = 16;

/// Measures every share in f16 and bf16.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    of_type::<f16>(&bench.anew()?, Dtype::F16)?;
    of_type::<bf16>(&bench.anew()?, Dtype::Bf16)
}

fn of_type<T: Scalar>(bench: &Bench<'_>, dtype: Dtype) -> Result<()> {
    let b = uniform::<T>()?;
    let b_there = bench.upload(&b)?;
    for empty in EMPTY {
        let (a, full) = sample::<T>((1, 64), empty)?;
        let both @ [a_there, b_there] = [&bench.upload(&a)?, &b_there];
        let workload = format!("micro1x64-e{}", f64::from(empty) / 100.0);
        let row = |times: &Times| row::<T>(OP, workload.clone(), full * 64, times);
        let operands = [("A", dynamic(a_there)), ("B", b_there.into())];
        let text = "C[m,n] = A[k,m] * B[k,n]";
        let plan = skipping(bench, text, &operands, ("1x64", Options::default()))?;
        let mut c = bench.zeros::<T>(&[EXTENT; 2])?;
        let times = bench.measure(|| plan.run(&operands, &mut c, &bench.stream))?;
        let own = |i: usize, k: usize| a.values()[k * EXTENT + i];
        let error = worst_error(own, &b, &c, checked(CHECKED))?;
        let note = format!("detection inside; err {error:.2} of the bound");
        let ours = row(&times).ours(plan.variant());
        bench.add(ours.judged(error <= 1.0, note))?;
        whole(bench, (dtype, [EXTENT; 3], CuBlas::gemm_turned), both, row)?;
    }
    Ok(())
}
