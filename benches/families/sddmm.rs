//! `sddmm`: S[m,n] = X[m,k] * Y[n,k] at the nonzeros of a pattern, by einsparse and cuSPARSE, and the whole product by
//! cuBLAS.
//!
//! In the record `m` and `k` are S's extents, as A's in `spmm`, and `n` is the number of terms.

use crate::case::{Run, Tables, Values, decode};
use crate::device::Gpu;
use crate::operations::{Entry, Table};
use crate::peers::sddmm::CuSparseSddmm;
use crate::prelude::*;
use crate::problems::Workload;
use crate::sweep::Tally;
use einsparse::raw::RawSddmm;

pub const OP: &str = "sddmm";
/// Operations of the family.
pub const OPERATIONS: &[Entry] = &[(OP, Table(run))];

const EXPRESSION: &str = "S[m,n] = X[m,k] * Y[n,k]";
const BOTH: &[Dtype] = &[Dtype::F32, Dtype::F16];
/// Offset of Y in the table of values, far from X.
const Y_START: usize = 500_009;
/// Max bytes of a whole product. It excludes graphs.
const DENSE_LIMIT: usize = 4 << 30;
/// Number of nonzeros that are compared with the reference.
const CHECKED: usize = 4096;

/// Adds the deep-learning patterns of `spmm`, and patterns that only this operation has.
pub fn workloads(all: &mut Vec<Workload>) {
    let deep = all.iter().filter(|w| w.op == "spmm" && matches!(w.source, Source::Dlmc(_)));
    let mut own: Vec<Workload> =
        deep.map(|w| Workload { op: OP, ns: &[64, 256], dtypes: BOTH, ..w.clone() }).collect();
    let uniform = |density| Source::Uniform(4096, 4096, density);
    let attention = |extent| Source::Attention(extent, 256, 0.05);
    let others: [(&str, Source, &'static [usize]); 6] = [
        ("rmat17", Source::Rmat(17), &[64, 128]),
        ("uniform-4096x4096-d0.2", uniform(0.2), &[64, 256]),
        ("uniform-4096x4096-d0.1", uniform(0.1), &[64, 256]),
        ("uniform-4096x4096-d0.05", uniform(0.05), &[64, 256]),
        ("attention-4096", attention(4096), &[64, 128]),
        ("attention-12288", attention(12288), &[128]),
    ];
    let named = |(name, source, ns)| Workload::new(OP, name, source, (ns, BOTH), true);
    own.extend(others.map(named));
    all.append(&mut own);
}

/// One pattern, element type and number of terms, in device memory.
pub struct Case<'a> {
    pub gpu: &'a Gpu,
    pub problem: &'a Problem,
    pub dtype: Dtype,
    pub k: usize,
    pub offsets: Buffer,
    pub columns: Buffer,
    pub x: Buffer,
    pub y: Buffer,
    /// Values of S.
    pub out: Buffer,
}

struct Sweep<'a> {
    bench: &'a Bench<'a>,
    cusparse: Option<CuSparseSddmm>,
    /// In f32 and in TF32.
    cublas: [Option<CuBlas>; 2],
    tally: Tally,
}

pub fn run(place: &Place<'_>, workloads: &[Workload]) -> Result<Tally> {
    let said = |reason| println!("left out: {reason}");
    let bench = Bench::new(*place)?;
    let cublas = |tf32| CuBlas::open(place.gpu, tf32).map_err(said).ok();
    let mut sweep = Sweep {
        bench: &bench,
        cusparse: CuSparseSddmm::open(place.gpu).map_err(said).ok(),
        cublas: [cublas(false), cublas(true)],
        tally: Tally::default(),
    };
    let mut tables = Tables::default();
    for workload in workloads {
        let problem = Problem::load(workload)?;
        let ks = place.arguments.ns(workload.ns);
        for dtype in place.arguments.dtypes(workload.dtypes) {
            let values = tables.of(dtype);
            by_dtype!(dtype, T => sweep.workload::<T>(&problem, values, &ks))?;
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
        let csr = Csr::new(problem.pattern.clone(), vec![T::ZERO; nnz])?;
        let tensor = self.bench.context.upload(csr)?;
        for &k in ks {
            let case = Case {
                gpu: self.bench.gpu,
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
        let (bench, arguments) = (self.bench, self.bench.arguments);
        if !arguments.wants_engine("einsparse") {
            return Ok(());
        }
        let (m, n, _) = case.problem.extents();
        // Planning reads only the shapes.
        let x = Dense::<T>::zeros(vec![m, case.k])?;
        let y = Dense::<T>::zeros(vec![n, case.k])?;
        let operands = [("X", (&x).into()), ("Y", (&y).into())];
        let raw = RawSddmm {
            columns: tensor.columns_address().unwrap_or(0),
            x: case.x.ptr,
            ldx: case.k,
            y: case.y.ptr,
            ldy: case.k,
            mask: 0,
            values: case.out.ptr,
            alpha: 1.0,
        };
        let mut names = vec![None];
        let mut next = 0;
        while next < names.len() {
            let options = Options { variant: names[next].clone(), ..precise(case.dtype) };
            let made = || {
                (bench.context)
                    .plan(EXPRESSION)
                    .operands(&operands)
                    .sparse_output(tensor)
                    .options(&options)
                    .build()
            };
            let (plan, prepare_ms) = timed(|| Ok(made()?))?;
            if next == 0 && !(arguments.auto || arguments.quick) {
                let all = plan.choice().candidates.iter();
                names.extend(all.map(|c| Some(c.name.to_owned())));
            }
            // SAFETY: the buffers have the planned shapes, type and pattern and outlive the closure; the stream belongs
            // to the primary context that both sides share.
            let run = || Ok(unsafe { plan.run_raw(&raw, bench.raw()) }?);
            let row = Row::default()
                .ours(names[next].as_deref().unwrap_or("auto"))
                .prepared(prepare_ms, plan.workspace_bytes())
                .strict()
                .note(plan.variant());
            let wrong = self.record(case, Some(values), row, Box::new(run))?;
            self.tally.faults += usize::from(wrong);
            next += 1;
        }
        Ok(())
    }

    fn peers(&self, case: &Case<'_>, values: &Values) -> Result<()> {
        let wants = |name| self.bench.arguments.wants_engine(name);
        let row = |engine: &str| Row::default().by(engine, "default");
        if let Some(cusparse) = self.cusparse.as_ref().filter(|_| wants("cusparse")) {
            match cusparse.prepare(case) {
                Ok(product) => {
                    let run = Box::new(|| product.run());
                    self.record(case, Some(values), row("cusparse").strict(), run)?;
                }
                Err(reason) => println!("cusparse on {}: {reason}", case.problem.workload),
            }
        }
        let (m, n, _) = case.problem.extents();
        let bytes = m * n * case.dtype.size();
        let (cublas, name) = match case.dtype {
            Dtype::Tf32 => (&self.cublas[1], "cublas-tf32"),
            _ => (&self.cublas[0], "cublas"),
        };
        let fits = wants(name) && bytes <= DENSE_LIMIT;
        if let Some(cublas) = cublas.as_ref().filter(|_| fits) {
            let whole = Buffer::new(bytes)?;
            let (extents, pointers) = ([m, case.k, n], [case.x.ptr, case.y.ptr, whole.ptr]);
            let run = Box::new(|| cublas.gemm_by_rows(case.dtype, extents, pointers));
            self.record(case, None, row(name).dense(), run)?;
        }
        Ok(())
    }

    /// Poisons the output, runs once, checks the result if `values` are given, times the run and records it. Returns
    /// whether the result is wrong.
    fn record(
        &self,
        case: &Case<'_>,
        values: Option<&Values>,
        row: Row,
        mut run: Run<'_>,
    ) -> Result<bool> {
        case.out.fill(0xff, case.gpu.stream)?;
        self.bench.once(&mut run)?;
        let wrong = values.map_or(Ok(None), |values| fault(case, values))?;
        let times = self.bench.measure(run)?;
        let figures = Row::product(case.problem, case.k, case.dtype, &times);
        let figures = figures.by(&row.engine, row.variant);
        let figures = figures.prepared(row.prepare_ms, row.prepared_bytes);
        let note = wrong.as_ref().unwrap_or(&row.note);
        self.bench.add(Row { zeros: row.zeros, ..figures.judged(wrong.is_none(), note) })?;
        Ok(wrong.is_some())
    }
}

/// Checks evenly spread nonzeros. The bound of each error is u_out |c| + 4 u_acc sqrt(K) sum |x||y|.
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
        let Sum { value: sum, size: all } = terms.collect();
        let got = decode(dtype, &found[p * size..][..size]);
        let bound = u_out * sum.abs() + 4.0 * u_acc * (case.k as f64).sqrt() * all + 3e-8;
        if got.is_nan() || (got - sum).abs() > bound {
            return Ok(Some(format!("({row}, {column}) is {got}, not {sum}")));
        }
    }
    Ok(None)
}
