//! `spmm_bias_relu`: MobileNetV1's 1x1 convolutions at 90 % sparsity with the bias of each output channel and ReLU,
//! `C[m,n] = relu(A[m,k] * B[k,n] + bias[m])` (Sputnik, arXiv 2006.10901, section 7.2).
//!
//! Ours in one kernel; cuSPARSE and cuBLAS followed by a kernel of the bench's own, as neither adds anything; cuBLASLt with its own
//! epilogue, in the order of axes in which it has one.

use crate::case::{Case, Engine, Operands, Values, decode};
use crate::device::{Buffer, Gpu, Result};
use crate::ours::{by_dtype, text};
use crate::papers::{LAYER_DENSITY, MOBILENET};
use crate::peers::cublas::CuBlas;
use crate::peers::cusparse::CuSparse;
use crate::peers::fused::FusedDense;
use crate::problems::{Dtype, Problem, Source, Workload};
use crate::record::{Limits, Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::driver::RawStream;
use einsparse::formats::{Csr, Dense, bf16, f16};
use einsparse::registry::Scalar;
use einsparse::{Context, Options, RawSpmm, ValuesRule};

/// Name of the operation.
pub const OP: &str = "spmm_bias_relu";

const EXPRESSION: &str = "C[m,n] = relu(A[m,k] * B[k,n] + bias[m])";
const DTYPES: [Dtype; 2] = [Dtype::F32, Dtype::F16];
/// Where the bias starts in the table of values.
const BIAS_START: usize = 250_007;
/// Every so many rows are compared with the reference.
const CHECKED: usize = 7;

/// Queues one layer.
type Run<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

/// A layer of one element type on the device.
struct Layer<'a> {
    case: Case<'a>,
    bias: Buffer,
    effort: Effort,
}

/// Measures every layer.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    for dtype in DTYPES {
        let values = Values::new(dtype);
        for (out, inputs, places) in MOBILENET {
            let problem = Problem::load(&Workload {
                op: "spmm",
                name: format!("mobilenet-{out}x{inputs}"),
                source: Source::Uniform(out, inputs, LAYER_DENSITY),
                ns: places,
                dtypes: &DTYPES,
                quick: true,
            })?;
            for &n in places {
                let operands = Operands::upload(&problem, &values, n)?;
                let layer = Layer {
                    case: Case {
                        gpu,
                        problem: &problem,
                        values: &values,
                        operands: &operands,
                        n,
                    },
                    bias: values.upload(out, BIAS_START)?,
                    effort,
                };
                layer.ours(recorder)?;
                layer.said(layer.cusparse(recorder));
                layer.said(layer.cublas(recorder));
                layer.said(layer.fused(recorder));
            }
        }
    }
    Ok(())
}

impl Layer<'_> {
    /// A peer that does not run leaves its row out.
    fn said(&self, outcome: Result<()>) {
        if let Err(reason) = outcome {
            println!("left out: {}: {reason}", self.case.problem.workload);
        }
    }

    fn ours(&self, recorder: &mut Recorder) -> Result<()> {
        for values in [ValuesRule::EachRun, ValuesRule::Kept] {
            let variant = match values {
                ValuesRule::EachRun => "auto",
                ValuesRule::Kept => "auto@kept",
            };
            let (run, note) = by_dtype!(self.case.dtype(), T => self.planned::<T>(values))?;
            self.measured(recorder, ("einsparse", variant, note), run, false)?;
        }
        Ok(())
    }

    fn planned<T: Scalar>(&self, values: ValuesRule) -> Result<(Run<'_>, String)> {
        let context = Context::cuda(0).map_err(text)?;
        let case = &self.case;
        let (m, k, nnz) = case.problem.extents();
        let pattern = case.problem.pattern.clone();
        let a = Csr::new(pattern, case.values.entries::<T>(nnz)).map_err(text)?;
        let a = context.upload(a).map_err(text)?;
        // Only the shapes of B and the bias are planned with.
        let b = Dense::<T>::zeros(vec![k, case.n]).map_err(text)?;
        let bias = Dense::<T>::zeros(vec![m]).map_err(text)?;
        let operands = [
            ("A", (&a).into()),
            ("B", (&b).into()),
            ("bias", (&bias).into()),
        ];
        let options = Options {
            values,
            ..Options::default()
        };
        let plan = context
            .plan(EXPRESSION, &operands, &options)
            .map_err(text)?;
        let mut note = plan.variant().to_owned();
        if let Some(form) = plan.kept() {
            note += &format!(", A kept as {form}");
        }
        let raw = RawSpmm {
            columns: case.operands.columns.ptr,
            values: case.operands.values.ptr,
            b: case.operands.b.ptr,
            ldb: case.n,
            c: case.operands.c.ptr,
            ldc: case.n,
            bias: self.bias.ptr,
            ..RawSpmm::default()
        };
        let stream = case.gpu.stream.cast();
        let run = move || {
            let _alive = &a;
            // SAFETY: the operands have the planned shapes, type and pattern and outlive the closure; the stream belongs to
            // the primary context that both sides share.
            unsafe { plan.run_raw(&raw, RawStream::from_raw(stream)) }.map_err(text)
        };
        Ok((Box::new(run), note))
    }

    /// A product and what adds the bias behind it.
    fn followed<'a>(&'a self, mut product: Run<'a>) -> Run<'a> {
        let case = &self.case;
        let (m, _, _) = case.problem.extents();
        let pointers = [case.operands.c.ptr, self.bias.ptr];
        Box::new(move || {
            product()?;
            case.gpu
                .bias_relu(case.dtype().size(), pointers, [m, case.n])
        })
    }

    /// The best of its algorithms.
    fn cusparse(&self, recorder: &mut Recorder) -> Result<()> {
        let engine = CuSparse::open(self.case.gpu, false)?;
        let mut best: Option<(String, Times)> = None;
        for variant in engine.variants(&self.case) {
            let mut run = self.followed(engine.prepare(&self.case, &variant)?.run);
            let times = measure(self.case.gpu, self.effort, &mut run)?;
            if best
                .as_ref()
                .is_none_or(|(_, known)| times.cold < known.cold)
            {
                best = Some((variant, times));
            }
        }
        let (variant, _) = best.ok_or("no algorithm")?;
        let run = self.followed(engine.prepare(&self.case, &variant)?.run);
        let note = "bias and ReLU by a second kernel".to_owned();
        self.measured(recorder, ("cusparse", &variant, note), run, false)
    }

    fn cublas(&self, recorder: &mut Recorder) -> Result<()> {
        let engine = CuBlas::open(self.case.gpu, false)?;
        let run = self.followed(engine.prepare(&self.case, "dense")?.run);
        let note = "bias and ReLU by a second kernel".to_owned();
        self.measured(recorder, ("cublas", "dense", note), run, false)
    }

    fn fused(&self, recorder: &mut Recorder) -> Result<()> {
        let case = &self.case;
        let (m, k, _) = case.problem.extents();
        let dense = Buffer::new(m * k * case.dtype().size())?;
        case.densify(&dense)?;
        case.gpu.wait()?;
        let product = FusedDense::new(case.gpu, case.dtype(), [m, k, case.n], &self.bias)?;
        let pointers = [dense.ptr, case.operands.b.ptr, case.operands.c.ptr];
        let run: Run<'_> = Box::new(move || {
            let _alive = &dense;
            product.run(pointers)
        });
        let note = "its own epilogue; B as [n,k], C as [n,m]".to_owned();
        self.measured(recorder, ("cublaslt", "dense", note), run, true)
    }

    /// Times a layer, holds its C against the reference and writes the row. `by_places`: B is `[n,k]`, C `[n,m]`.
    fn measured(
        &self,
        recorder: &mut Recorder,
        (engine, variant, note): (&str, &str, String),
        mut run: Run<'_>,
        by_places: bool,
    ) -> Result<()> {
        let case = &self.case;
        case.operands.c.fill(0xff, case.gpu.stream)?;
        run()?;
        case.gpu.wait()?;
        let wrong = self.wrong(by_places)?;
        let times = measure(case.gpu, self.effort, &mut run)?;
        let limits = Limits::published();
        let (cold, warm) = (times.cold, times.warm);
        let row = Row::product(case.problem, case.n, case.dtype(), cold, warm, &limits);
        let note = wrong
            .as_ref()
            .map_or(note, |wrong| format!("WRONG: {wrong}"));
        recorder.add(Row {
            op: OP.into(),
            engine: engine.into(),
            variant: variant.into(),
            zeros: if engine.starts_with("cublas") {
                "dense"
            } else {
                "strict"
            }
            .into(),
            note,
            ..row
        })?;
        match wrong {
            Some(wrong) if engine == "einsparse" => Err(format!("{variant}: {wrong}")),
            _ => Ok(()),
        }
    }

    /// The first element of some rows that is off by more than rounding: of the product in f32 and of sum and output, twice where
    /// a second kernel rounds again; cuSPARSE rounds partial sums to f16.
    fn wrong(&self, by_places: bool) -> Result<Option<String>> {
        let case = &self.case;
        let (dtype, n) = (case.dtype(), case.n);
        let (m, k, _) = case.problem.extents();
        let mut bytes = vec![0; m * n * dtype.size()];
        case.operands.c.read(0, &mut bytes)?;
        let relative = if dtype == Dtype::F32 { 1e-5 } else { 4e-3 };
        let offsets = case.problem.pattern.offsets();
        for row in (0..m).step_by(CHECKED) {
            // As `Values::b`, from another start.
            let bias = case.values.a(BIAS_START + row);
            for column in 0..n {
                let (mut sum, mut size) = (bias, bias.abs());
                for p in offsets[row] as usize..offsets[row + 1] as usize {
                    let from = case.problem.pattern.columns()[p] as usize;
                    let at = if by_places {
                        column * k + from
                    } else {
                        from * n + column
                    };
                    let product = case.values.a(p) * case.values.b(at);
                    sum += product;
                    size += product.abs();
                }
                let at = if by_places {
                    column * m + row
                } else {
                    row * n + column
                };
                let found = decode(dtype, &bytes[at * dtype.size()..][..dtype.size()]);
                let wanted = sum.max(0.0);
                // A NaN is as far off as can be.
                if (found - wanted).abs() <= relative * size {
                    continue;
                }
                return Ok(Some(format!("({row}, {column}) is {found}, not {wanted}")));
            }
        }
        Ok(None)
    }
}
