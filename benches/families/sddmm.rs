//! `sddmm`: S[m,n] = X[m,k] * Y[n,k] at the nonzeros of a pattern, by einsparse and cuSPARSE, and the whole product by
//! cuBLAS.
//!
//! In the record `m` and `k` are S's extents, as A's in `spmm`, and `n` is the number of terms.

use crate::case::{Tables, Values, decode};
use crate::peers::sddmm::CuSparseSddmm;
use crate::prelude::*;
use crate::problems::Workload;
use crate::sweep::each;
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

pub fn run(bench: &Bench<'_>, workloads: &[Workload]) -> Result<()> {
    let cusparse = or_said(CuSparseSddmm::open(bench.gpu), "engine cusparse");
    let mut tables = Tables::default();
    each(bench, workloads, |problem, dtype, ks| {
        let values = tables.of(dtype);
        for &k in ks {
            let (m, n, nnz) = problem.extents();
            let case = Case {
                problem,
                dtype,
                k,
                offsets: Buffer::from_slice(problem.pattern.offsets())?,
                columns: Buffer::from_slice(problem.pattern.columns())?,
                x: values.upload(m * k, 0)?,
                y: values.upload(n * k, Y_START)?,
                out: Buffer::new(nnz * dtype.size())?,
            };
            if bench.arguments.wants_engine("einsparse") {
                by_dtype!(dtype, T => case.ours::<T>(bench, values))?;
            }
            case.peers(bench, values, cusparse.as_ref())?;
        }
        Ok(())
    })
}

impl Case<'_> {
    fn ours<T: Scalar>(&self, bench: &Bench<'_>, values: &Values) -> Result<()> {
        let (m, n, nnz) = self.problem.extents();
        let csr = Csr::new(self.problem.pattern.clone(), vec![T::ZERO; nnz])?;
        let tensor = &bench.context.upload(csr)?;
        // Planning reads only the shapes.
        let x = Dense::<T>::zeros(vec![m, self.k])?;
        let y = Dense::<T>::zeros(vec![n, self.k])?;
        let operands = [("X", (&x).into()), ("Y", (&y).into())];
        let raw = RawSddmm::default()
            .columns(tensor.columns_address().unwrap_or(0))
            .x(self.x.ptr)
            .ldx(self.k)
            .y(self.y.ptr)
            .ldy(self.k)
            .mask(0)
            .values(self.out.ptr)
            .alpha(1.0);
        let planned = |variant: Option<&str>| {
            let options = precise(self.dtype).variant(variant);
            let plan = bench.context.plan(EXPRESSION).operands(&operands);
            timed(|| Ok(plan.sparse_output(tensor).options(&options).build()?))
        };
        for variant in bench.variants(planned(None)?.0.choice()) {
            let (plan, prepare_ms) = planned(variant)?;
            let row = Row::product(self.problem, self.k, self.dtype)
                .ours(variant.unwrap_or("auto"))
                .prepared(prepare_ms, plan.workspace_bytes())
                .strict()
                .note(plan.variant());
            // SAFETY: the buffers have the planned shapes, type and pattern and outlive the closure; the stream belongs
            // to the primary context that both sides share.
            self.measured(bench, values, row, || unsafe { Ok(plan.run_raw(&raw, bench.raw())?) })?;
        }
        Ok(())
    }

    fn peers(
        &self,
        bench: &Bench<'_>,
        values: &Values,
        cusparse: Option<&CuSparseSddmm>,
    ) -> Result<()> {
        let row = Row::product(self.problem, self.k, self.dtype).named("default");
        if let Some(cusparse) = cusparse.filter(|_| bench.arguments.wants_engine("cusparse")) {
            let product = cusparse.prepare(self).and_then(|made| bench.gpu.wait().map(|()| made));
            if let Some(product) = or_said(product, "cusparse") {
                let row = row.clone().by("cusparse", "default").strict();
                self.measured(bench, values, row, || product.run())?;
            }
        }
        let (m, n, _) = self.problem.extents();
        let engine = if self.dtype == Dtype::Tf32 { "cublas-tf32" } else { "cublas" };
        if bench.arguments.wants_engine(engine) && m * n * self.dtype.size() <= DENSE_LIMIT {
            let asked = (self.dtype, [m, self.k, n], Order::AlongK);
            bench.whole(row.dense(), asked, [self.x.ptr, self.y.ptr])?;
        }
        Ok(())
    }

    /// Poisons the output, checks it, times the run and records it.
    fn measured(
        &self,
        bench: &Bench<'_>,
        values: &Values,
        row: Row,
        mut run: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        self.out.fill(0xff, bench.gpu.stream)?;
        bench.checked(row, &mut (), |()| run(), |()| self.error(values)).map(drop)
    }

    /// Max error of evenly spread nonzeros.
    fn error(&self, values: &Values) -> Result<f64> {
        let (dtype, size, k) = (self.dtype, self.dtype.size(), self.k);
        let mut found = vec![0u8; self.out.bytes];
        self.out.read(0, &mut found)?;
        let pattern = &self.problem.pattern;
        let nnz = pattern.columns().len();
        let errors = (0..nnz).step_by((nnz / CHECKED).max(1)).map(|p| {
            let row = pattern.offsets().partition_point(|&o| o as usize <= p) - 1;
            let column = pattern.columns()[p] as usize;
            let terms = (0..k).map(|i| values.a(row * k + i) * values.b(column * k + i));
            let got = decode(dtype, &found[p * size..][..size]);
            by_dtype!(dtype, T => rounding::<T>(k)(got, &terms.collect()))
        });
        Ok(errors.fold(0.0, worse))
    }
}
