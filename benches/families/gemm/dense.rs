//! Two dense matrices of the extents that layers have: what the plan takes and every row that can be forced, beside cuBLAS
//! on the same operands. The densified path of a sparse product is this one.

use crate::Arguments;
use crate::case::{Values, decode};
use crate::device::{Buffer, Gpu, Result};
use crate::ours::{SPMM, by_dtype, text};
use crate::peers::cublas::CuBlas;
use crate::problems::Dtype;
use crate::record::{Recorder, Row};
use crate::timing::{Times, measure};
use einsparse::driver::RawStream;
use einsparse::formats::{bf16, f16};
use einsparse::registry::Scalar;
use einsparse::{Context, Options, Plan, Precision, RawSpmm, Tensor};

/// Operation, as in the record.
pub const OP: &str = "dense";

/// (m, k) of the matrices of DLMC at hand, one of them 147 deep with rows filled up, and one of a larger layer.
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

/// Every shape that the command line leaves.
pub fn run(gpu: &Gpu, arguments: &Arguments, recorder: &mut Recorder) -> Result<()> {
    let dtypes = if arguments.dtype.is_empty() {
        vec![Dtype::F16]
    } else {
        arguments.dtype.clone()
    };
    let ns = if arguments.columns.is_empty() {
        NS.to_vec()
    } else {
        arguments.columns.clone()
    };
    let mut wrong = Vec::new();
    for dtype in dtypes {
        for &(m, k) in SHAPES {
            let name = format!("dense-{m}x{k}");
            let filter = &arguments.filter;
            if !filter.is_empty() && !filter.iter().any(|part| name.contains(part.as_str())) {
                continue;
            }
            let values = Values::new(dtype);
            let widest = ns.iter().copied().max().unwrap_or(0);
            let a = values.upload(m * k, 0)?;
            let b = values.upload(k * widest, 77)?;
            for &n in &ns {
                let case = Case {
                    name: &name,
                    dtype,
                    extents: [m, k, n],
                    pointers: [a.ptr, b.ptr],
                };
                wrong.extend(by_dtype!(dtype, T => case.measure::<T>(gpu, arguments, recorder))?);
            }
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("wrong: {}", wrong.join(", ")))
    }
}

struct Case<'a> {
    name: &'a str,
    dtype: Dtype,
    extents: [usize; 3],
    pointers: [u64; 2],
}

impl Case<'_> {
    /// cuBLAS and ours. Returns the variants that are wrong.
    fn measure<T: Scalar>(
        &self,
        gpu: &Gpu,
        arguments: &Arguments,
        recorder: &mut Recorder,
    ) -> Result<Vec<String>> {
        let [m, _, n] = self.extents;
        let tf32 = self.dtype == Dtype::Tf32;
        let cublas = CuBlas::open(gpu, tf32)?;
        let bytes = m * n * self.dtype.size();
        let (c, expected) = (Buffer::new(bytes)?, Buffer::new(bytes)?);
        let [a, b] = self.pointers;
        let mut gemm = || cublas.gemm(self.dtype, self.extents, [a, b, expected.ptr]);
        gemm()?;
        gpu.wait()?;
        let reference = self.elements(&expected)?;
        let times = measure(gpu, arguments.effort(), &mut gemm)?;
        let peer = if tf32 { "cublas-tf32" } else { "cublas" };
        recorder.add(self.row(peer, "dense", &times, String::new()))?;
        let context = Context::cuda(0).map_err(text)?;
        let auto = self.plan::<T>(&context, None)?;
        let mut names = vec!["auto".to_owned()];
        let candidates = auto.choice().candidates.iter().map(|c| c.name.to_owned());
        let chosen = &arguments.variant;
        names.extend(
            candidates
                .filter(|name| !arguments.auto && (chosen.is_empty() || chosen.contains(name))),
        );
        let mut wrong = Vec::new();
        for name in names {
            let forced = (name != "auto").then_some(name.as_str());
            let plan = self.plan::<T>(&context, forced)?;
            let mut product = || self.queue(gpu, &plan, c.ptr);
            c.fill(0xff, gpu.stream)?;
            product()?;
            gpu.wait()?;
            let error = relative_error(&self.elements(&c)?, &reference);
            let right = error <= self.tolerance();
            if !right {
                wrong.push(format!("{name} on {} x {n}", self.name));
            }
            let head = if right { "" } else { "WRONG: " };
            let note = format!("{head}err {error:.1e} against cuBLAS; {}", plan.variant());
            let times = measure(gpu, arguments.effort(), &mut product)?;
            recorder.add(self.row("einsparse", &name, &times, note))?;
        }
        Ok(wrong)
    }

    fn plan<T: Scalar>(&self, context: &Context, variant: Option<&str>) -> Result<Plan<T>> {
        let [m, k, n] = self.extents;
        // Only the shapes are planned with.
        let zeros = |r, c| -> Result<Tensor<T>> { context.zeros(&[r, c]).map_err(text) };
        let (a, b) = (zeros(m, k)?, zeros(k, n)?);
        let options = Options {
            precision: if self.dtype == Dtype::Tf32 {
                Precision::Tf32
            } else {
                Precision::Full
            },
            variant: variant.map(str::to_owned),
            ..Options::default()
        };
        let operands = [("A", (&a).into()), ("B", (&b).into())];
        context
            .plan("C[m,n] = A[m,k] * B[k,n]", &operands, &options)
            .map_err(text)
    }

    fn queue<T: Scalar>(&self, gpu: &Gpu, plan: &Plan<T>, c: u64) -> Result<()> {
        let raw = RawSpmm {
            values: self.pointers[0],
            b: self.pointers[1],
            ldb: self.extents[2],
            c,
            ldc: self.extents[2],
            ..RawSpmm::default()
        };
        // SAFETY: the operands have the planned shapes and type and outlive the measurement; the stream belongs to the
        // primary context that both sides share.
        unsafe { plan.run_raw(&raw, RawStream::from_raw(gpu.stream.cast())) }.map_err(text)
    }

    fn elements(&self, matrix: &Buffer) -> Result<Vec<f64>> {
        let mut bytes = vec![0u8; matrix.bytes];
        matrix.read(0, &mut bytes)?;
        let one = |bytes| decode(self.dtype, bytes);
        Ok(bytes.chunks(self.dtype.size()).map(one).collect())
    }

    /// Relative error against cuBLAS above which a result is wrong: twice the roundoff of the element.
    fn tolerance(&self) -> f64 {
        match self.dtype {
            Dtype::Bf16 => 8e-3,
            _ => 1e-3,
        }
    }

    fn row(&self, engine: &str, variant: &str, times: &Times, note: String) -> Row {
        let [m, k, n] = self.extents;
        Row {
            op: OP.into(),
            workload: self.name.into(),
            m,
            k,
            n,
            nnz: m * k,
            dtype: self.dtype.to_string(),
            engine: engine.into(),
            variant: variant.into(),
            ms: times.cold,
            ms_warm: Some(times.warm),
            gflops: Some(2.0 * (m * k * n) as f64 / times.cold / 1e6),
            zeros: "dense".into(),
            note,
            ..Row::default()
        }
    }
}

/// In the Frobenius norm; NaN where elements were left unwritten.
fn relative_error(found: &[f64], expected: &[f64]) -> f64 {
    let pairs = found.iter().zip(expected);
    let error: f64 = pairs.map(|(x, y)| (x - y) * (x - y)).sum();
    let norm: f64 = expected.iter().map(|y| y * y).sum();
    (error / norm).sqrt()
}

/// The plan's path for two dense matrices: name of its kernel, and one product of square operands.
pub fn square(gpu: &Gpu, dtype: Dtype, extent: usize, pointers: [u64; 3]) -> Result<(String, Run)> {
    by_dtype!(dtype, T => square_of::<T>(gpu, extent, pointers))
}

/// Queues one product.
type Run = Box<dyn FnMut() -> Result<()>>;

fn square_of<T: Scalar>(gpu: &Gpu, extent: usize, [a, b, c]: [u64; 3]) -> Result<(String, Run)> {
    let context = Context::cuda(0).map_err(text)?;
    // Only the shapes are planned with.
    let zeros = || context.zeros::<T>(&[extent; 2]).map_err(text);
    let (left, right) = (zeros()?, zeros()?);
    let operands = [("A", (&left).into()), ("B", (&right).into())];
    let plan = context
        .plan(SPMM, &operands, &Options::default())
        .map_err(text)?;
    let raw = RawSpmm {
        columns: 0,
        values: a,
        b,
        ldb: extent,
        c,
        ldc: extent,
        ..RawSpmm::default()
    };
    let stream = gpu.stream.cast();
    let name = plan.variant().to_owned();
    // SAFETY: the caller's operands have the planned shapes and type and outlive the measurement; the stream belongs to
    // the primary context that both sides share.
    let run = move || unsafe { plan.run_raw(&raw, RawStream::from_raw(stream)) }.map_err(text);
    Ok((name, Box::new(run)))
}
