//! `spmm_bias_relu`: MobileNetV1's 1x1 convolutions at 90 % sparsity with the bias of each output channel and ReLU,
//! `C[m,n] = relu(A[m,k] * B[k,n] + bias[m])` (Sputnik, arXiv 2006.10901, section 7.2).
//!
//! einsparse runs one kernel. cuSPARSE and cuBLAS have no such epilogue, so a kernel of the bench follows them.
//! cuBLASLt uses its own epilogue, in the storage order for which it has one.

use crate::bench::raw_spmm;
use crate::case::{Case, Engine, Operands, Run, Values, decode};
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
                layer.ours()?;
                layer.said(layer.cusparse());
                layer.said(layer.cublas());
                layer.said(layer.fused());
            }
        }
    }
    Ok(())
}

impl Layer<'_> {
    /// Prints the failure of a baseline, whose row is then left out.
    fn said(&self, outcome: Result<()>) {
        if let Err(reason) = outcome {
            println!("left out: {}: {reason}", self.case.problem.workload);
        }
    }

    fn ours(&self) -> Result<()> {
        for (weights, variant) in [(Weights::EachRun, "auto"), (Weights::Static, "auto@prepacked")]
        {
            let (run, note) = by_dtype!(self.case.dtype(), T => self.planned::<T>(weights))?;
            self.measured(("einsparse", variant, &note), run, false)?;
        }
        Ok(())
    }

    fn planned<T: Scalar>(&self, weights: Weights) -> Result<(Run<'_>, String)> {
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
        let stream = self.bench.raw();
        let run = move || {
            let _alive = &a;
            // SAFETY: the operands have the planned shapes, type and pattern and outlive the closure; the stream
            // belongs to the primary context that both sides share.
            Ok(unsafe { plan.run_raw(&raw, stream) }?)
        };
        Ok((Box::new(run), note))
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
        let mut best: Option<(String, Times)> = None;
        for variant in engine.variants(&self.case) {
            let run = self.followed(engine.prepare(&self.case, &variant)?.run);
            let times = self.bench.measure(run)?;
            let known = best.as_ref().map(|(_, known)| known.cold);
            if known.is_none_or(|known| times.cold < known) {
                best = Some((variant, times));
            }
        }
        let (variant, _) = best.ok_or("no algorithm")?;
        let run = self.followed(engine.prepare(&self.case, &variant)?.run);
        self.measured(("cusparse", &variant, BEHIND), run, false)
    }

    fn cublas(&self) -> Result<()> {
        let engine = CuBlas::open(self.case.gpu, false)?;
        let run = self.followed(engine.prepare(&self.case, "dense")?.run);
        self.measured(("cublas", "dense", BEHIND), run, false)
    }

    fn fused(&self) -> Result<()> {
        let case = &self.case;
        let (m, k, _) = case.problem.extents();
        let dense = Buffer::new(m * k * case.dtype().size())?;
        case.densify(&dense)?;
        case.gpu.wait()?;
        let product = FusedDense::new(case.gpu, case.dtype(), [m, k, case.n], &self.bias)?;
        let pointers = [dense.ptr, case.operands.b.ptr, case.operands.c.ptr];
        let run = Box::new(|| product.run(pointers));
        let note = "its own epilogue; B as [n,k], C as [n,m]";
        self.measured(("cublaslt", "dense", note), run, true)
    }

    /// Times a layer, compares its C with the reference and writes the row. `by_places`: B is `[n,k]`, C `[n,m]`.
    fn measured(
        &self,
        (engine, variant, note): (&str, &str, &str),
        mut run: Run<'_>,
        by_places: bool,
    ) -> Result<()> {
        let case = &self.case;
        case.operands.c.fill(0xff, case.gpu.stream)?;
        self.bench.once(&mut run)?;
        let wrong = self.wrong(by_places)?;
        let times = self.bench.measure(run)?;
        let row = Row::product(case.problem, case.n, case.dtype(), &times).by(engine, variant);
        let row = match engine.starts_with("cublas") {
            true => row.dense(),
            false => row.strict(),
        };
        let row = row.judged(wrong.is_none(), wrong.as_deref().unwrap_or(note));
        self.bench.add(Row { op: OP.into(), ..row })?;
        match wrong {
            Some(wrong) if engine == "einsparse" => Err(format!("{variant}: {wrong}").into()),
            _ => Ok(()),
        }
    }

    /// First element of some rows whose error exceeds rounding: of the product in f32 and of sum and output. A second
    /// kernel rounds twice, and cuSPARSE rounds partial sums to f16.
    fn wrong(&self, by_places: bool) -> Result<Option<String>> {
        let case = &self.case;
        let (dtype, n) = (case.dtype(), case.n);
        let (m, k, _) = case.problem.extents();
        let mut bytes = vec![0; m * n * dtype.size()];
        case.operands.c.read(0, &mut bytes)?;
        let relative = if dtype == Dtype::F32 { 1e-5 } else { 4e-3 };
        let pattern = &case.problem.pattern;
        // Index in B or C, in their storage order.
        let at = |row: usize, column: usize, rows: usize| match by_places {
            true => column * rows + row,
            false => row * n + column,
        };
        for row in (0..m).step_by(CHECKED) {
            for column in 0..n {
                // Uses the indexing of `Values::b` with another offset.
                let mut sum: Sum = [case.values.a(BIAS_START + row)].into_iter().collect();
                for p in pattern.row(row) {
                    let from = pattern.columns()[p] as usize;
                    sum.add(case.values.a(p) * case.values.b(at(from, column, k)));
                }
                let own = &bytes[at(row, column, m) * dtype.size()..][..dtype.size()];
                let (found, wanted) = (decode(dtype, own), sum.value.max(0.0));
                // A comparison with NaN is false, so NaN counts as an error.
                if (found - wanted).abs() <= relative * sum.size {
                    continue;
                }
                return Ok(Some(format!("({row}, {column}) is {found}, not {wanted}")));
            }
        }
        Ok(None)
    }
}
