//! Levels of docs/levels.md and cuBLAS, on the same operands.

#[path = "../../tests/families/tutorial/levels/launch.rs"]
mod launch;

use crate::case::Values;
use crate::check::{elements, relative_error};
use crate::device::is_built;
use crate::prelude::*;
use launch::{Level, levels};

pub const OP: &str = "levels";
/// Operations of the family.
pub const OPERATIONS: &[Entry] = &[(OP, Own(run))];
/// m and n.
const EXTENT: usize = 4096;
/// k of the main case, and twice as much. The difference is the time of the stages; the rest is start and end.
const DEPTHS: [usize; 2] = [4096, 8192];
/// Max relative error of a level against cuBLAS: twice the roundoff of f16.
const TOLERANCE: f64 = 1e-3;

/// Measures every level and cuBLAS, in one run.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    if !is_built("levels") {
        return Ok(());
    }
    let cublas = CuBlas::open(bench.gpu, false)?;
    (DEPTHS.into_iter()).try_for_each(|k| product(&bench.anew()?, &cublas, k))
}

fn product(bench: &Bench<'_>, cublas: &CuBlas, k: usize) -> Result<()> {
    let device = bench.context.device().ok_or("no device")?;
    let values = Values::new(Dtype::F16);
    let a = values.upload(EXTENT * k, 0)?;
    let b = values.upload(k * EXTENT, 77)?;
    let c = || Buffer::new(EXTENT * EXTENT * Dtype::F16.size());
    let (mut c, expected) = (c()?, c()?);
    let extents = [EXTENT, k, EXTENT];
    let gemm = || cublas.gemm(Dtype::F16, extents, [a.ptr, b.ptr, expected.ptr], Order::Rows);
    bench.once(gemm)?;
    let reference = elements(&expected, Dtype::F16)?;
    let workload = format!("dense-{EXTENT}x{k}x{EXTENT}");
    let row = Row::new(OP, workload, extents, EXTENT * k, Dtype::F16)
        .flops(2.0 * (EXTENT * k * EXTENT) as f64)
        .dense();
    for level in levels() {
        let launch = Level::new(device, level, extents, [a.ptr, b.ptr, c.ptr])?;
        c.fill(0xff, bench.gpu.stream)?;
        bench.checked(
            row.clone().ours(level.name),
            &mut c,
            // SAFETY: the stream is that of the primary context, which both sides share; the buffers hold matrices of
            // these extents and outlive the measurement.
            |_| unsafe { launch.run(bench.raw()) },
            |c| Ok(relative_error(&elements(c, Dtype::F16)?, &reference) / TOLERANCE),
        )?;
    }
    bench.time(row.by("cublas", "dense"), gemm).map(drop)
}
