//! Products of two dense matrices with the extents of layers: the plan's choice and every row that can be forced, and
//! cuBLAS on the same operands. The densified path of a sparse product is this product.

use crate::bench::raw_spmm;
use crate::case::{Run, Values};
use crate::check::{elements, relative_error};
use crate::device::Gpu;
use crate::prelude::*;
use einsparse::Plan;
use einsparse::raw::RawStream;

pub const OP: &str = "dense";

/// (m, k) of the DLMC matrices in the data, one of them padded from 147 columns, and of a larger layer.
pub const SHAPES: &[(usize, usize)] = &[
    (64, 64),
    (64, 152),
    (64, 576),
    (128, 512),
    (128, 1152),
    (256, 64),
    (256, 1024),
    (256, 2304),
    (512, 128),
    (512, 256),
    (512, 512),
    (512, 2048),
    (512, 4608),
    (1000, 2048),
    (1024, 256),
    (1024, 512),
    (2048, 512),
    (2048, 1024),
    (33_288, 512),
    (4096, 4096),
];
const NS: &[usize] = &[64, 256, 1024];

/// Measures every shape that the command line selects.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    let ns = bench.arguments.ns(NS);
    for dtype in bench.arguments.dtypes(&[Dtype::F16]) {
        for &(m, k) in SHAPES {
            let name = format!("dense-{m}x{k}");
            if !bench.arguments.named(&name) {
                continue;
            }
            let values = Values::new(dtype);
            let widest = ns.iter().copied().max().unwrap_or(0);
            let a = values.upload(m * k, 0)?;
            let b = values.upload(k * widest, 77)?;
            for &n in &ns {
                let (bench, pointers) = (&bench.anew()?, [a.ptr, b.ptr]);
                by_dtype!(dtype, T => measured::<T>(bench, &name, dtype, [m, k, n], pointers))?;
            }
        }
    }
    Ok(())
}

/// Measures cuBLAS and einsparse.
fn measured<T: Scalar>(
    bench: &Bench<'_>,
    name: &str,
    dtype: Dtype,
    extents: [usize; 3],
    [a, b]: [u64; 2],
) -> Result<()> {
    let [m, k, n] = extents;
    let row = Row::new(OP, name, extents, m * k, dtype).flops(2.0 * (m * k * n) as f64).dense();
    let cublas = CuBlas::open(bench.gpu, dtype == Dtype::Tf32)?;
    let bytes = m * n * dtype.size();
    let (mut c, expected) = (Buffer::new(bytes)?, Buffer::new(bytes)?);
    let gemm = || cublas.gemm(dtype, extents, [a, b, expected.ptr], Order::Rows);
    bench.once(gemm)?;
    let reference = elements(&expected, dtype)?;
    bench.time(row.clone().by(cublas.engine(), "dense"), gemm)?;
    // Planning reads only the shapes.
    let (left, right) = (bench.zeros::<T>(&[m, k])?, bench.zeros::<T>(&[k, n])?);
    let planned = |variant: Option<&str>| {
        let options = precise(dtype).variant(variant);
        Ok::<Plan<T>, crate::device::Reason>(bench.plan(SPMM, &ab(&left, &right), &options)?.0)
    };
    let raw = raw_spmm([0, a, b, c.ptr], n);
    // Twice the roundoff of the element.
    let most = if dtype == Dtype::Bf16 { 8e-3 } else { 1e-3 };
    for variant in bench.variants(planned(None)?.choice()) {
        let plan = planned(variant)?;
        c.fill(0xff, bench.gpu.stream)?;
        bench.checked(
            row.clone().ours(variant.unwrap_or("auto")).note(plan.variant()),
            &mut c,
            // SAFETY: the operands have the planned shapes and type and outlive the measurement; the stream belongs to
            // the primary context that both sides share.
            |_| unsafe { plan.run_raw(&raw, bench.raw()) },
            |c| Ok(relative_error(&elements(c, dtype)?, &reference) / most),
        )?;
    }
    Ok(())
}

/// Returns the name of the plan's kernel for two dense matrices, and a closure that runs one product of square
/// operands.
pub fn square(
    gpu: &Gpu,
    dtype: Dtype,
    extent: usize,
    pointers: [u64; 3],
) -> Result<(String, Run<'static>)> {
    by_dtype!(dtype, T => square_of::<T>(gpu, extent, pointers))
}

fn square_of<T: Scalar>(
    gpu: &Gpu,
    extent: usize,
    [a, b, c]: [u64; 3],
) -> Result<(String, Run<'static>)> {
    let context = Context::cuda(0)?;
    // Planning reads only the shapes.
    let zeros = || context.zeros::<T>(&[extent; 2]);
    let (left, right) = (zeros()?, zeros()?);
    let plan = context.plan::<T>(SPMM).operands(&ab(&left, &right)).build()?;
    let raw = raw_spmm([0, a, b, c], extent);
    let stream = gpu.stream.cast();
    let name = plan.variant().to_owned();
    // SAFETY: the caller's operands have the planned shapes and type and outlive the measurement; the stream belongs to
    // the primary context that both sides share.
    let run = move || Ok(unsafe { plan.run_raw(&raw, RawStream::from_raw(stream)) }?);
    Ok((name, Box::new(run)))
}
