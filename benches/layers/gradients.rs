//! Gradients of a product `C[m,n] = A[m,k] * B[k,n]` with A in CSR, by `Plan::gradients` (`gradients`). Beside them: the
//! product, the step of product and gradients, and plans of the two gradients written by hand. The baseline of a graph is
//! PyTorch's autograd.
//!
//! `prepare_ms` of `gradients` is the time of `Plan::gradients`, and of `product` that of the plan. `prepared_bytes` of
//! `step` is all device memory that the plans and their outputs allocate.

use crate::prelude::*;
use crate::problems::Workload;
use crate::sweep::each;
use einsparse::formats::convert;
use einsparse::{Gradients, Plan};

pub const OP: &str = "gradients";
/// Element type of all cases: PyTorch trains graphs in it.
const DTYPES: &[Dtype] = &[Dtype::F32];
const BY_A: &str = "dA[m,k] = dC[m,n] * B[k,n]";
const BY_B: &str = "dB[k,n] = A[m,k] * dC[m,n]";
/// Vertices of graphs with 16 edges each.
const GRAPHS: [(&str, usize, bool); 2] =
    [("graph131072-16", 1 << 17, true), ("graph1M-16", 1 << 20, false)];
/// Numbers of checked elements of dA, and of checked rows of dB.
const CHECKED: [usize; 2] = [4096, 256];

/// Adds the deep-learning patterns of `spmm`, and graphs.
pub fn workloads(all: &mut Vec<Workload>) {
    let deep = all.iter().filter(|w| w.op == "spmm" && matches!(w.source, Source::Dlmc(_)));
    let mut own: Vec<Workload> =
        deep.map(|w| Workload { op: OP, ns: &[128], dtypes: DTYPES, ..w.clone() }).collect();
    let named = |name, source, quick| Workload::new(OP, name, source, (&[128][..], DTYPES), quick);
    own.push(named("rmat17", Source::Rmat(17), true));
    for (name, vertices, quick) in GRAPHS {
        let source = Source::Uniform(vertices, vertices, 16.0 / vertices as f64);
        own.push(named(name, source, quick));
    }
    all.append(&mut own);
}

/// Measures every pattern, and PyTorch on the graphs.
pub fn run(bench: &Bench<'_>, workloads: &[Workload]) -> Result<()> {
    each(&bench.anew()?, workloads, |problem, dtype, ns| {
        for &n in ns {
            if bench.arguments.wants_engine("einsparse") {
                Case::new(&bench.anew()?, problem, n)?.measure(dtype)?;
            }
            if let Some((_, vertices, _)) =
                GRAPHS.iter().find(|(name, ..)| *name == problem.workload)
            {
                let asked =
                    format!("{{\"vertices\": {vertices}, \"edges\": 16, \"features\": {n}}}");
                let row = Row::product(problem, n, dtype).note("product and both gradients");
                bench.torch(row, "autograd", &asked)?;
            }
        }
        Ok(())
    })
}

/// Plans, with the times of planning in milliseconds.
struct Planned {
    plan: Plan<f32>,
    plan_ms: f64,
    gradients: Gradients<f32>,
    gradients_ms: f64,
}

/// Operands of one product.
struct Case<'a> {
    bench: &'a Bench<'a>,
    problem: &'a Problem,
    n: usize,
    csr: Csr<f32>,
    a: SparseTensor<f32>,
    b: Tensor<f32>,
    dc: Tensor<f32>,
}

impl<'a> Case<'a> {
    fn new(bench: &'a Bench<'a>, problem: &'a Problem, n: usize) -> Result<Self> {
        let (m, k, nnz) = problem.extents();
        let csr = Csr::new(problem.pattern.clone(), values::<f32>(nnz, 1, 1.0))?;
        let a = bench.context.upload(&csr)?;
        let (b, dc) = (bench.filled(&[k, n], 2, 1.0)?, bench.filled(&[m, n], 3, 1.0)?);
        Ok(Case { bench, problem, n, csr, a, b, dc })
    }

    fn operands(&self) -> [(&'static str, Operand<'_, f32>); 3] {
        [("A", (&self.a).into()), ("B", (&self.b).into()), ("dC", (&self.dc).into())]
    }

    fn measure(&self, dtype: Dtype) -> Result<()> {
        let (bench, stream) = (self.bench, &self.bench.stream);
        let row = |what: &str, products: f64| {
            let flops = 2.0 * products * (self.csr.values().len() * self.n) as f64;
            Row::product(self.problem, self.n, dtype).ours(what).flops(flops).strict()
        };
        // Loads the modules, so that planning times and memory exclude them.
        drop(self.planned()?);
        let before = bench.context.free_memory()?;
        let Planned { plan, plan_ms, mut gradients, gradients_ms } = self.planned()?;
        let mut c = bench.zeros(plan.out_shape())?;
        let bytes = before.saturating_sub(bench.context.free_memory()?) as usize;
        let operands = self.operands();
        let [a, b, dc] = &operands;
        let of_c = [a.clone(), b.clone()];

        let product = row("product", 1.0).prepared(plan_ms, plan.workspace_bytes());
        let product = product.note(plan.variant());
        bench.time(product, || plan.run(&of_c, &mut c, stream))?;

        bench.once(|| gradients.run(&operands, stream))?;
        let error = self.error(&gradients)?;
        let both = row("gradients", 2.0).prepared(gradients_ms, gradients.bytes());
        let names: Vec<_> = gradients.plans().map(Plan::variant).collect();
        let both = both.note(names.join(" + ")).error(error);
        let of_both = bench.measure(|| gradients.run(&operands, stream))?;
        bench.add(both.timed(&of_both))?;

        let step = bench.in_a_graph(|| {
            plan.run(&of_c, &mut c, stream)?;
            Ok(gradients.run(&operands, stream)?)
        })?;
        let step = row("step", 3.0).timed(&step).prepared(None, bytes);
        bench.add(step.note("product and both gradients, a CUDA graph"))?;

        // Plans written by hand.
        let zeros = Csr::new(self.problem.pattern.clone(), vec![0.0f32; self.csr.values().len()])?;
        let mut by_a = bench.context.upload(&zeros)?;
        let hand = bench.context.plan(BY_A).operand("B", &self.b).operand("dC", &self.dc);
        let hand = hand.sparse_output(&by_a).build()?;
        let of_a = [b.clone(), dc.clone()];
        let first = bench.measure(|| hand.run(&of_a, &mut by_a, stream))?;
        bench.add(row("sddmm by hand", 1.0).timed(&first).note(hand.variant()))?;
        let of_b = [a.clone(), dc.clone()];
        let (hand, _) = bench.plan::<f32, f32>(BY_B, &of_b, &Options::default())?;
        let mut by_b = bench.zeros(hand.out_shape())?;
        let second = bench.measure(|| hand.run(&of_b, &mut by_b, stream))?;
        let ratio = of_both.cold / (first.cold + second.cold);
        let row = row("transposed by hand", 1.0).timed(&second).note(hand.variant());
        bench.add(row.also(format!("gradients take {ratio:.3} of both by hand")))
    }

    /// Plans the product and its gradients, with the times in milliseconds.
    fn planned(&self) -> Result<Planned> {
        let [a, b, _] = self.operands();
        let (plan, plan_ms) = self.bench.plan::<f32, f32>(SPMM, &[a, b], &Options::default())?;
        let (gradients, gradients_ms) = timed(|| {
            let gradients = plan.gradients(&["A", "B"])?;
            self.bench.context.synchronize()?;
            Ok(gradients)
        })?;
        Ok(Planned { plan, plan_ms, gradients, gradients_ms })
    }

    /// Max error of some elements of dA and of some rows of dB.
    fn error(&self, gradients: &Gradients<f32>) -> Result<f64> {
        let n = self.n;
        let (b, dc) = (self.b.to_dense()?, self.dc.to_dense()?);
        let (b, dc) = (b.values(), dc.values());
        let pattern = self.csr.pattern();
        let da = gradients.sparse("A")?.to_host()?;
        let stride = da.values().len().div_ceil(CHECKED[0]).max(1);
        let mut most = 0.0;
        for row in 0..pattern.rows() {
            for at in pattern.row(row).filter(|at| at % stride == 0) {
                let column = pattern.columns()[at] as usize;
                let terms = dc[row * n..][..n].iter().zip(&b[column * n..][..n]);
                let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), (x, y)| {
                    let term = f64::from(*x) * f64::from(*y);
                    (sum + term, size + term.abs())
                });
                let difference = (f64::from(da.values()[at]) - sum).abs();
                most = worse(most, over(difference, 1e-5 * size + f64::MIN_POSITIVE));
            }
        }
        let turned = convert::transpose_csr(&self.csr)?;
        let rows = turned.pattern();
        let terms = |row: usize, sums: &mut [Sum]| {
            for at in rows.row(row) {
                let x = f64::from(turned.values()[at]);
                add_line(sums, x, &dc[rows.columns()[at] as usize * n..]);
            }
        };
        let db = gradients.dense("B")?.to_dense()?;
        let checked = (0..rows.rows()).step_by(rows.rows().div_ceil(CHECKED[1]).max(1));
        Ok(worse(most, rows_error(db.values(), n, checked, terms, relative(1e-5))))
    }
}
