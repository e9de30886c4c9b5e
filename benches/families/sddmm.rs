//! `sddmm`: S[m,n] = X[m,k] * Y[n,k] at the entries of a pattern; ours, cuSPARSE, and the whole product on cuBLAS.
//!
//! In the record `m` and `k` are S's extents, as A's in `spmm`, and `n` is the number of terms.

use crate::Arguments;
use crate::case::{Values, decode};
use crate::device::{Buffer, Gpu, Result};
use crate::ours::{by_dtype, text};
use crate::peers::cublas::CuBlas;
use crate::peers::sddmm::CuSparseSddmm;
use crate::problems::{Dtype, Problem, Source, Workload};
use crate::record::{Limits, Recorder, Row};
use crate::sweep::Tally;
use crate::timing::{Times, measure};
use einsparse::driver::RawStream;
use einsparse::formats::{Csr, Dense, bf16, f16};
use einsparse::registry::Scalar;
use einsparse::{Context, Options, Precision, RawSampled, SparseTensor};
use std::time::Instant;

/// Name of the operation.
pub const OP: &str = "sddmm";

const EXPRESSION: &str = "S[m,n] = X[m,k] * Y[n,k]";
const BOTH: &[Dtype] = &[Dtype::F32, Dtype::F16];
/// Where Y starts in the table of values, away from X.
const Y_START: usize = 500_009;
/// A whole product above this is not computed: graphs.
const DENSE_LIMIT: usize = 4 << 30;
/// Entries that are compared with the reference.
const CHECKED: usize = 4096;

/// The deep-learning patterns of `spmm`, and what only this operation has.
pub fn workloads(all: &mut Vec<Workload>) {
    let deep = all
        .iter()
        .filter(|w| w.op == "spmm" && matches!(w.source, Source::Dlmc(_)));
    let mut own: Vec<Workload> = deep
        .map(|w| Workload {
            op: OP,
            ns: &[64, 256],
            dtypes: BOTH,
            ..w.clone()
        })
        .collect();
    let uniform = |density| Source::Uniform(4096, 4096, density);
    let others: [(&str, Source, &'static [usize]); 6] = [
        ("rmat17", Source::Rmat(17), &[64, 128]),
        ("uniform-4096x4096-d0.2", uniform(0.2), &[64, 256]),
        ("uniform-4096x4096-d0.1", uniform(0.1), &[64, 256]),
        ("uniform-4096x4096-d0.05", uniform(0.05), &[64, 256]),
        (
            "attention-4096",
            Source::Attention(4096, 256, 0.05),
            &[64, 128],
        ),
        (
            "attention-12288",
            Source::Attention(12288, 256, 0.05),
            &[128],
        ),
    ];
    own.extend(others.map(|(name, source, ns)| Workload {
        op: OP,
        name: name.into(),
        source,
        ns,
        dtypes: BOTH,
        quick: true,
    }));
    all.append(&mut own);
}

/// One pattern x element type x number of terms, on the device.
pub struct Case<'a> {
    pub gpu: &'a Gpu,
    pub problem: &'a Problem,
    pub dtype: Dtype,
    pub k: usize,
    pub offsets: Buffer,
    pub columns: Buffer,
    pub x: Buffer,
    pub y: Buffer,
    /// The values of S.
    pub out: Buffer,
}

/// Queues one product.
type Run<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

struct Sweep<'a> {
    gpu: &'a Gpu,
    arguments: &'a Arguments,
    context: Context,
    cusparse: Option<CuSparseSddmm>,
    cublas: Option<CuBlas>,
    cublas_tf32: Option<CuBlas>,
    recorder: &'a mut Recorder,
    tally: Tally,
}

/// Runs the tables.
pub fn run(
    gpu: &Gpu,
    arguments: &Arguments,
    workloads: &[Workload],
    recorder: &mut Recorder,
) -> Result<Tally> {
    let said = |reason: String| println!("left out: {reason}");
    let mut sweep = Sweep {
        gpu,
        arguments,
        context: Context::cuda(0).map_err(text)?,
        cusparse: CuSparseSddmm::open(gpu).map_err(said).ok(),
        cublas: CuBlas::open(gpu, false).map_err(said).ok(),
        cublas_tf32: CuBlas::open(gpu, true).map_err(said).ok(),
        recorder,
        tally: Tally::default(),
    };
    let mut tables: Vec<Values> = Vec::new();
    for workload in workloads {
        let problem = Problem::load(workload)?;
        for dtype in arguments.dtypes(workload) {
            let known = tables.iter().position(|t| t.dtype == dtype);
            let known = known.unwrap_or_else(|| {
                tables.push(Values::new(dtype));
                tables.len() - 1
            });
            by_dtype!(dtype, T => sweep.workload::<T>(&problem, &tables[known], &arguments.ns(workload)))?;
        }
    }
    Ok(sweep.tally)
}

impl Sweep<'_> {
    fn workload<T: Scalar>(
        &mut self,
        problem: &Problem,
        values: &Values,
        ks: &[usize],
    ) -> Result<()> {
        let (m, n, nnz) = problem.extents();
        let csr = Csr::new(problem.pattern.clone(), vec![T::ZERO; nnz]).map_err(text)?;
        let tensor = self.context.upload(csr).map_err(text)?;
        for &k in ks {
            let case = Case {
                gpu: self.gpu,
                problem,
                dtype: values.dtype,
                k,
                offsets: Buffer::from_slice(problem.pattern.offsets())?,
                columns: Buffer::from_slice(problem.pattern.columns())?,
                x: values.upload(m * k, 0)?,
                y: values.upload(n * k, Y_START)?,
                out: Buffer::new(nnz * values.dtype.size())?,
            };
            self.tally.cases += 1;
            self.ours(&case, values, &tensor)?;
            self.peers(&case, values)?;
        }
        Ok(())
    }

    fn ours<T: Scalar>(
        &mut self,
        case: &Case<'_>,
        values: &Values,
        tensor: &SparseTensor<T>,
    ) -> Result<()> {
        if !self.arguments.wants_engine("einsparse") {
            return Ok(());
        }
        let (m, n, _) = case.problem.extents();
        // Only the shapes are planned with.
        let (x, y) = (
            Dense::<T>::zeros(vec![m, case.k]).map_err(text)?,
            Dense::<T>::zeros(vec![n, case.k]).map_err(text)?,
        );
        let operands = [("X", (&x).into()), ("Y", (&y).into())];
        let mut names = vec![None];
        let mut next = 0;
        while next < names.len() {
            let options = Options {
                precision: if case.dtype == Dtype::Tf32 {
                    Precision::Tf32
                } else {
                    Precision::Full
                },
                variant: names[next].clone(),
                ..Options::default()
            };
            let start = Instant::now();
            let plan = self
                .context
                .plan_sampled_with(EXPRESSION, &operands, tensor, &options)
                .map_err(text)?;
            let prepare_ms = start.elapsed().as_secs_f64() * 1e3;
            if next == 0 && !(self.arguments.auto || self.arguments.is_quick()) {
                let all = plan.choice().candidates.iter();
                names.extend(all.map(|c| Some(c.name.to_owned())));
            }
            let raw = RawSampled {
                columns: tensor.columns_address().unwrap_or(0),
                x: case.x.ptr,
                ldx: case.k,
                y: case.y.ptr,
                ldy: case.k,
                mask: 0,
                values: case.out.ptr,
                alpha: 1.0,
            };
            let stream = case.gpu.stream.cast();
            let (taken, bytes) = (plan.variant(), plan.workspace_bytes());
            // SAFETY: the buffers have the planned shapes, type and pattern and outlive the closure; the stream belongs
            // to the primary context that both sides share.
            let run = || unsafe { plan.run_raw(&raw, RawStream::from_raw(stream)) }.map_err(text);
            let row = Row {
                engine: "einsparse".into(),
                variant: names[next].clone().unwrap_or_else(|| "auto".into()),
                prepare_ms: Some(prepare_ms),
                prepared_bytes: Some(bytes),
                zeros: "strict".into(),
                note: taken.into(),
                ..Row::default()
            };
            let wrong = self.record(case, Some(values), row, Box::new(run))?;
            self.tally.faults += usize::from(wrong);
            next += 1;
        }
        Ok(())
    }

    fn peers(&mut self, case: &Case<'_>, values: &Values) -> Result<()> {
        let row = |engine: &str, zeros: &str| Row {
            engine: engine.into(),
            variant: "default".into(),
            zeros: zeros.into(),
            ..Row::default()
        };
        if let Some(cusparse) = self.cusparse.take() {
            if self.arguments.wants_engine("cusparse") {
                match cusparse.prepare(case) {
                    Ok(product) => {
                        let run = Box::new(|| product.run());
                        self.record(case, Some(values), row("cusparse", "strict"), run)?;
                    }
                    Err(reason) => println!("cusparse on {}: {reason}", case.problem.workload),
                }
            }
            self.cusparse = Some(cusparse);
        }
        let (m, n, _) = case.problem.extents();
        let bytes = m * n * case.dtype.size();
        let tf32 = case.dtype == Dtype::Tf32;
        let (library, name) = if tf32 {
            (self.cublas_tf32.take(), "cublas-tf32")
        } else {
            (self.cublas.take(), "cublas")
        };
        if let Some(cublas) = library {
            if self.arguments.wants_engine(name) && bytes <= DENSE_LIMIT {
                let whole = Buffer::new(bytes)?;
                let (extents, pointers) = ([m, case.k, n], [case.x.ptr, case.y.ptr, whole.ptr]);
                let run = Box::new(|| cublas.gemm_by_rows(case.dtype, extents, pointers));
                self.record(case, None, row(name, "dense"), run)?;
            }
            if tf32 {
                self.cublas_tf32 = Some(cublas);
            } else {
                self.cublas = Some(cublas);
            }
        }
        Ok(())
    }

    /// Poisons the output, runs once, checks where `values` are given, times, records. True where the result is wrong.
    fn record(
        &mut self,
        case: &Case<'_>,
        values: Option<&Values>,
        row: Row,
        mut run: Run<'_>,
    ) -> Result<bool> {
        case.out.fill(0xff, case.gpu.stream)?;
        run()?;
        case.gpu.wait()?;
        let wrong = values.map_or(Ok(None), |values| fault(case, values))?;
        let Times { cold, warm, .. } = measure(case.gpu, self.arguments.effort(), &mut run)?;
        let found = wrong.is_some();
        let note = wrong.map_or(row.note.clone(), |wrong| format!("WRONG: {wrong}"));
        let figures = Row::product(
            case.problem,
            case.k,
            case.dtype,
            cold,
            warm,
            &Limits::published(),
        );
        self.recorder.add(Row {
            engine: row.engine,
            variant: row.variant,
            prepare_ms: row.prepare_ms,
            prepared_bytes: row.prepared_bytes,
            zeros: row.zeros,
            note,
            ..figures
        })?;
        Ok(found)
    }
}

/// Entries evenly spread over the pattern that are not within u_out |c| + 4 u_acc sqrt(K) sum |x||y| of the reference.
fn fault(case: &Case<'_>, values: &Values) -> Result<Option<String>> {
    let (dtype, size) = (case.dtype, case.dtype.size());
    let mut found = vec![0u8; case.out.bytes];
    case.out.read(0, &mut found)?;
    let (u_out, u_acc) = dtype.roundoff();
    let pattern = &case.problem.pattern;
    let nnz = pattern.columns().len();
    let step = (nnz / CHECKED).max(1);
    for p in (0..nnz).step_by(step) {
        let row = pattern.offsets().partition_point(|&o| o as usize <= p) - 1;
        let column = pattern.columns()[p] as usize;
        let terms = (0..case.k).map(|i| values.a(row * case.k + i) * values.b(column * case.k + i));
        let (sum, magnitude) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
        let got = decode(dtype, &found[p * size..][..size]);
        let bound = u_out * sum.abs() + 4.0 * u_acc * (case.k as f64).sqrt() * magnitude + 3e-8;
        if got.is_nan() || (got - sum).abs() > bound {
            return Ok(Some(format!("({row}, {column}) is {got}, not {sum}")));
        }
    }
    Ok(None)
}
