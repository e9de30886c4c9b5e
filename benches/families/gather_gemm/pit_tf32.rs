//! Products of f32 in TF32 with an A of which half, nine tenths or 95 % of the micro-tiles are empty. The time includes
//! the detection. Baselines are dense: cuBLAS in TF32, and the dense kernel that a plan selects.

use super::micro::{EMPTY, EXTENT, checked, found, row, sample, whole, worst_error};
use crate::prelude::*;

pub const OP: &str = "pit_tf32";
/// Rows of a micro-tile.
const HEIGHTS: [usize; 2] = [128, 64];
/// Number of checked rows of C.
const CHECKED: usize = 16;

/// Rounds to TF32, to nearest, ties away from zero, as the kernels do.
fn rounded(x: f32) -> f32 {
    f32::from_bits((x.to_bits() + 0x1000) & !0x1fff)
}

/// Measures every height and share.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(SEED + 1);
    let b = (0..EXTENT * EXTENT).map(|_| rng.random_range(-1.73f32..1.73));
    let b = Dense::new([EXTENT, EXTENT], b.collect())?;
    let b_there = bench.upload(&b)?;
    // The reference uses rounded operands.
    let b = b.values().iter().map(|&x| rounded(x));
    let b = Dense::new([EXTENT, EXTENT], b.collect())?;
    for height in HEIGHTS {
        for empty in EMPTY {
            let (a, full) = sample::<f32>((height, 1), empty)?;
            let both = [&bench.upload(&a)?, &b_there];
            let workload = format!("micro{height}x1-e{}", f64::from(empty) / 100.0);
            let row = |times: &Times| Row {
                dtype: "tf32".into(),
                ..row::<f32>(OP, workload.clone(), full * height, times)
            };
            let error = |c: &Tensor<f32>| {
                let a = |i: usize, k: usize| rounded(a.values()[i * EXTENT + k]);
                worst_error(a, &b, c, checked(CHECKED))
            };
            let micro = format!("{height}x1");
            found(bench, (&micro, precise(Dtype::Tf32)), both, error, (row, ""))?;
            dense(bench, both, error, row)?;
            let whole_by = (Dtype::Tf32, [EXTENT; 3], CuBlas::gemm as _);
            whole(bench, whole_by, both, row)?;
        }
    }
    Ok(())
}

/// Times the whole product by einsparse's dense kernel.
fn dense(
    bench: &Bench<'_>,
    [a, b]: [&Tensor<f32>; 2],
    error: impl Fn(&Tensor<f32>) -> Result<f64>,
    row: impl Fn(&Times) -> Row,
) -> Result<()> {
    let operands = [("A", a.into()), ("B", b.into())];
    let (plan, _) = bench.plan(SPMM, &operands, &precise(Dtype::Tf32))?;
    let mut c = bench.zeros::<f32>(&[EXTENT; 2])?;
    let times = bench.measure(|| plan.run(&operands, &mut c, &bench.stream))?;
    let error = error(&c)?;
    let note = format!("dense product; err {error:.2} of the bound");
    bench.add(row(&times).ours(plan.variant()).judged(error <= 1.0, note))
}
