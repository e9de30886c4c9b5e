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
                let case = Case {
                    bench: &bench.anew()?,
                    name: &name,
                    dtype,
                    extents: [m, k, n],
                    pointers: [a.ptr, b.ptr],
                };
                by_dtype!(dtype, T => case.measure::<T>())?;
            }
        }
    }
    Ok(())
}

struct Case<'a> {
    bench: &'a Bench<'a>,
    name: &'a str,
    dtype: Dtype,
    extents: [usize; 3],
    pointers: [u64; 2],
}

impl Case<'_> {
    /// Measures cuBLAS and einsparse.
    fn measure<T: Scalar>(&self) -> Result<()> {
        let (bench, [m, _, n]) = (self.bench, self.extents);
        let tf32 = self.dtype == Dtype::Tf32;
        let cublas = CuBlas::open(bench.gpu, tf32)?;
        let bytes = m * n * self.dtype.size();
        let (c, expected) = (Buffer::new(bytes)?, Buffer::new(bytes)?);
        let [a, b] = self.pointers;
        let gemm = || cublas.gemm(self.dtype, self.extents, [a, b, expected.ptr]);
        bench.once(gemm)?;
        let reference = elements(&expected, self.dtype)?;
        let times = bench.measure(gemm)?;
        let peer = if tf32 { "cublas-tf32" } else { "cublas" };
        bench.add(self.row(&times).by(peer, "dense"))?;
        let auto = self.plan::<T>(None)?;
        let mut names = vec!["auto".to_owned()];
        let candidates = auto.choice().candidates.iter().map(|c| c.name.to_owned());
        let (only_auto, chosen) = (bench.arguments.auto, &bench.arguments.variant);
        let asked = |name: &String| !only_auto && (chosen.is_empty() || chosen.contains(name));
        names.extend(candidates.filter(asked));
        for name in names {
            let forced = (name != "auto").then_some(name.as_str());
            let plan = self.plan::<T>(forced)?;
            let product = || self.queue(&plan, c.ptr);
            c.fill(0xff, bench.gpu.stream)?;
            bench.once(product)?;
            let error = relative_error(&elements(&c, self.dtype)?, &reference);
            let note = format!("err {error:.1e} against cuBLAS; {}", plan.variant());
            let times = bench.measure(product)?;
            let row = self.row(&times).ours(name);
            bench.add(row.judged(error <= self.tolerance(), note))?;
        }
        Ok(())
    }

    fn plan<T: Scalar>(&self, variant: Option<&str>) -> Result<Plan<T>> {
        let [m, k, n] = self.extents;
        // Planning reads only the shapes.
        let (a, b) = (self.bench.zeros(&[m, k])?, self.bench.zeros(&[k, n])?);
        let options = Options { variant: variant.map(str::to_owned), ..precise(self.dtype) };
        let operands = [("A", (&a).into()), ("B", (&b).into())];
        Ok(self.bench.plan(SPMM, &operands, &options)?.0)
    }

    fn queue<T: Scalar>(&self, plan: &Plan<T>, c: u64) -> Result<()> {
        let [a, b] = self.pointers;
        let raw = raw_spmm([0, a, b, c], self.extents[2]);
        // SAFETY: the operands have the planned shapes and type and outlive the measurement; the stream belongs to the
        // primary context that both sides share.
        Ok(unsafe { plan.run_raw(&raw, self.bench.raw()) }?)
    }

    /// Max relative error against cuBLAS: twice the roundoff of the element.
    fn tolerance(&self) -> f64 {
        match self.dtype {
            Dtype::Bf16 => 8e-3,
            _ => 1e-3,
        }
    }

    fn row(&self, times: &Times) -> Row {
        let [m, k, n] = self.extents;
        Row::new(OP, self.name, self.extents, m * k, self.dtype)
            .timed(times)
            .flops(2.0 * (m * k * n) as f64)
            .dense()
    }
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
    let operands = [("A", (&left).into()), ("B", (&right).into())];
    let plan = context.plan(SPMM).operands(&operands).build()?;
    let raw = raw_spmm([0, a, b, c], extent);
    let stream = gpu.stream.cast();
    let name = plan.variant().to_owned();
    // SAFETY: the caller's operands have the planned shapes and type and outlive the measurement; the stream belongs to
    // the primary context that both sides share.
    let run = move || Ok(unsafe { plan.run_raw(&raw, RawStream::from_raw(stream)) }?);
    Ok((name, Box::new(run)))
}
