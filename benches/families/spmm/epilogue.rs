//! `spmm_bias_relu`: MobileNetV1's 1x1 convolutions at 90 % sparsity with the bias of each output channel and ReLU,
//! `C[m,n] = relu(A[m,k] * B[k,n] + bias[m])` (Sputnik, arXiv 2006.10901, section 7.2).
//!
//! einsparse runs one kernel. cuSPARSE and cuBLAS have no such epilogue, so a kernel of the bench follows them.
//! cuBLASLt uses its own epilogue, in the storage order for which it has one.

use crate::bench::raw_spmm;
use crate::case::{Case, Engine, Operands, Run, Values, decode};
use crate::check::gathered;
use crate::papers::{LAYER_DENSITY, MOBILENET};
use crate::peers::cusparse::CuSparse;
use crate::peers::fused::FusedDense;
use crate::prelude::*;
use einsparse::Weights;
use einsparse::raw::RawSpmm;

pub const OP: &str = "spmm_bias_relu";

const EXPRESSION: &str = "C[m,n] = relu(A[m,k] * B[k,n] + bias[m])";
const DTYPES: [Dtype; 2] = [Dtype::F32, Dtype::F16];
/// Offset of the bias in the table of values.
const BIAS_START: usize = 250_007;
/// Note of products without an epilogue.
const BEHIND: &str = "bias and ReLU by a second kernel";
/// Stride of the rows that are compared with the reference.
const CHECKED: usize = 7;

/// A layer of one element type in device memory.
struct Layer<'a> {
    bench: &'a Bench<'a>,
    case: Case<'a>,
    bias: Buffer,
}

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for dtype in DTYPES {
        let values = Values::new(dtype);
        for (out, inputs, places) in MOBILENET {
            let source = Source::Uniform(out, inputs, LAYER_DENSITY);
            let problem = Problem::of("spmm", format!("mobilenet-{out}x{inputs}"), source)?;
            for &n in places {
                let operands = Operands::upload(&problem, &values, n)?;
                let layer = Layer {
                    bench,
                    case: Case {
                        gpu: bench.gpu,
                        problem: &problem,
                        values: &values,
                        operands: &operands,
                        n,
                    },
                    bias: values.upload(out, BIAS_START)?,
                };
                layer.ours(Weights::EachRun, "auto")?;
                layer.ours(Weights::Static, "auto@prepacked")?;
                for peer in [layer.cusparse(), layer.cublas(), layer.fused()] {
                    or_said(peer, &problem.workload);
                }
            }
        }
    }
    Ok(())
}

impl Layer<'_> {
    fn ours(&self, weights: Weights, variant: &str) -> Result<()> {
        by_dtype!(self.case.dtype(), T => self.planned::<T>(weights, variant))
    }

    fn planned<T: Scalar>(&self, weights: Weights, variant: &str) -> Result<()> {
        let context = Context::cuda(0)?;
        let case = &self.case;
        let (m, k, nnz) = case.problem.extents();
        let entries = case.values.entries::<T>(nnz);
        let a = context.upload(Csr::new(case.problem.pattern.clone(), entries)?)?;
        // Planning reads only the shapes of B and the bias.
        let b = Dense::<T>::zeros(vec![k, case.n])?;
        let bias = Dense::<T>::zeros(vec![m])?;
        let operands = [("A", (&a).into()), ("B", (&b).into()), ("bias", (&bias).into())];
        let options = Options { weights, ..Options::default() };
        let plan = context.plan(EXPRESSION).operands(&operands).options(&options).build()?;
        let mut note = plan.variant().to_owned();
        if let Some(form) = plan.prepacked() {
            note += &format!(", A prepacked as {form}");
        }
        let o = case.operands;
        let raw = RawSpmm {
            bias: self.bias.ptr,
            ..raw_spmm([&o.columns, &o.values, &o.b, &o.c].map(|b| b.ptr), case.n)
        };
        // SAFETY: the operands have the planned shapes, type and pattern and outlive the measurement; the stream
        // belongs to the primary context that both sides share.
        let run = || Ok(unsafe { plan.run_raw(&raw, self.bench.raw()) }?);
        self.measured(self.row().ours(variant).strict().note(note), Box::new(run), false)
    }

    /// Returns the product, followed by the kernel that adds the bias.
    fn followed<'a>(&'a self, mut product: Run<'a>) -> Run<'a> {
        let case = &self.case;
        let (m, _, _) = case.problem.extents();
        let pointers = [case.operands.c.ptr, self.bias.ptr];
        Box::new(move || {
            product()?;
            case.gpu.bias_relu(case.dtype().size(), pointers, [m, case.n])
        })
    }

    /// Measures the fastest algorithm of cuSPARSE.
    fn cusparse(&self) -> Result<()> {
        let engine = CuSparse::open(self.case.gpu, false)?;
        let mut best: Option<(f64, String)> = None;
        for variant in engine.variants(&self.case) {
            let run = self.followed(engine.prepare(&self.case, &variant)?.run);
            let cold = self.bench.measure(run)?.cold;
            if best.as_ref().is_none_or(|(known, _)| cold < *known) {
                best = Some((cold, variant));
            }
        }
        let (_, variant) = best.ok_or("no algorithm")?;
        let run = self.followed(engine.prepare(&self.case, &variant)?.run);
        self.measured(self.row().by("cusparse", variant).strict().note(BEHIND), run, false)
    }

    fn cublas(&self) -> Result<()> {
        let engine = CuBlas::open(self.case.gpu, false)?;
        let run = self.followed(engine.prepare(&self.case, "dense")?.run);
        self.measured(self.row().by("cublas", "dense").dense().note(BEHIND), run, false)
    }

    fn fused(&self) -> Result<()> {
        let case = &self.case;
        let (m, k, _) = case.problem.extents();
        let dense = Buffer::new(m * k * case.dtype().size())?;
        case.densify(&dense)?;
        case.gpu.wait()?;
        let product = FusedDense::new(case.gpu, case.dtype(), [m, k, case.n], &self.bias)?;
        let pointers = [dense.ptr, case.operands.b.ptr, case.operands.c.ptr];
        let row = self.row().by("cublaslt", "dense").dense();
        let row = row.note("its own epilogue; B as [n,k], C as [n,m]");
        self.measured(row, Box::new(|| product.run(pointers)), true)
    }

    fn row(&self) -> Row {
        let row = Row::product(self.case.problem, self.case.n, self.case.dtype());
        Row { op: OP.into(), ..row }
    }

    /// Times a layer, compares its C with the reference and writes the row. `by_places`: B is `[n,k]`, C `[n,m]`.
    fn measured(&self, row: Row, mut run: Run<'_>, by_places: bool) -> Result<()> {
        self.case.operands.c.fill(0xff, self.case.gpu.stream)?;
        self.bench.checked(row, &mut (), |()| run(), |()| self.error(by_places)).map(drop)
    }

    /// Max error of some rows: rounding of the product in f32 and of sum and output. A second kernel rounds twice, and
    /// cuSPARSE rounds partial sums to f16.
    fn error(&self, by_places: bool) -> Result<f64> {
        let case = &self.case;
        let (dtype, size, n) = (case.dtype(), case.dtype().size(), case.n);
        let (m, k, _) = case.problem.extents();
        let mut bytes = vec![0; m * n * size];
        case.operands.c.read(0, &mut bytes)?;
        let share = if dtype == Dtype::F32 { 1e-5 } else { 4e-3 };
        // Index in B or C, in their storage order.
        let at = |row: usize, column: usize, rows: usize| match by_places {
            true => column * rows + row,
            false => row * n + column,
        };
        let b = |from: usize, column: usize| case.values.b(at(from, column, k));
        let product = gathered(&case.problem.pattern, |p| case.values.a(p), b);
        let mut worst = 0.0;
        for row in (0..m).step_by(CHECKED) {
            // Uses the indexing of `Values::b` with another offset.
            let mut sums = vec![[case.values.a(BIAS_START + row)].into_iter().collect(); n];
            product(row, &mut sums);
            for (column, sum) in sums.iter().enumerate() {
                let found = decode(dtype, &bytes[at(row, column, m) * size..][..size]);
                let wanted = Sum { value: sum.value.max(0.0), ..*sum };
                worst = worse(worst, relative(share)(found, &wanted));
            }
        }
        Ok(worst)
    }
}
