//! `einsum`: the general family. Measures SpMM by this family and by the plan's choice, the indirect Einsum of GroupCOO
//! written by hand, contractions without a specialized kernel, and the cost of a new expression.

use crate::prelude::*;
use crate::timing::Effort;
use einsparse::Plan;
use einsparse::formats::{AnySparse, Format, generate};

pub const OP: &str = "einsum";

/// Prefix of the rows of the general family.
const FAMILY: &str = "einsum_";

/// Operands by name.
type Named<'a> = (&'a str, Operand<'a, f32>);

/// Operands that a run requires: index arrays belong to the plan, and C is the output.
fn bound<'a>(operands: &[Named<'a>]) -> Vec<Named<'a>> {
    let given = |(name, o): &&Named<'_>| *name != "C" && !matches!(o, Operand::Index(..));
    operands.iter().filter(given).cloned().collect()
}

/// Tensor of small integers on the GPU.
fn integers(bench: &Bench<'_>, shape: &[usize], seed: u64) -> Result<Tensor<f32>> {
    bench.tensor(shape, generate::small_integers(shape.iter().product(), seed))
}

/// Time of the first run in milliseconds, on the host.
fn first_run(
    bench: &Bench<'_>,
    plan: &Plan<f32>,
    operands: &[Named<'_>],
    out: &mut Tensor<f32>,
) -> Result<f64> {
    let first = timed(|| {
        plan.run(operands, out, &bench.stream)?;
        Ok(bench.stream.synchronize()?)
    })?;
    Ok(first.1)
}

pub fn run(bench: &Bench<'_>) -> Result<()> {
    let density = |vertices: u32| 16.0 / f64::from(vertices);
    let mut sources = vec![
        ("rmat17", Source::Rmat(17)),
        ("uniform131072-16", Source::Uniform(1 << 17, 1 << 17, density(1 << 17))),
    ];
    if bench.effort().cold == Effort::FULL.cold {
        let source = Source::Uniform(1 << 20, 1 << 20, density(1 << 20));
        sources.push(("uniform1M-16", source));
    }
    for (name, source) in sources {
        let problem = Problem::of(OP, name, source)?;
        for n in [32, 128] {
            Products { bench, problem: &problem, n }.all()?;
        }
    }
    contractions(bench)
}

/// SpMM with `n` columns.
struct Products<'a> {
    bench: &'a Bench<'a>,
    problem: &'a Problem,
    n: usize,
}

impl Products<'_> {
    /// Measures the plan's choice and the general kernels on CSR, and GroupCOO written by hand.
    fn all(&self) -> Result<()> {
        let (bench, n, (m, k, nnz)) = (self.bench, self.n, self.problem.extents());
        let values = generate::small_integers::<f32>(nnz, SEED);
        let csr = Csr::new(self.problem.pattern.clone(), values)?;
        let b = integers(bench, &[k, n], SEED + 1)?;
        let group = Format::GroupCoo { axis: 0, group: None };
        let grouped = AnySparse::from(csr.clone()).convert(group)?;
        let a = bench.context.upload(csr)?;
        let operands: [Named<'_>; 2] = [("A", (&a).into()), ("B", (&b).into())];
        let mut c = bench.zeros(&[m, n])?;
        let (plan, _) = bench.plan(SPMM, &operands, &Options::default())?;
        let wanted = self.measured("csr", &operands, &plan, &mut c, None)?;
        let general = plan.choice().candidates.iter().map(|c| c.name);
        for name in general.filter(|name| name.starts_with(FAMILY)) {
            let (plan, _) = bench.plan(SPMM, &operands, &forced(Some(name)))?;
            let mut c = bench.zeros(&[m, n])?;
            self.measured("csr", &operands, &plan, &mut c, Some(&wanted))?;
        }
        self.by_hand(&b, &grouped, &wanted)
    }

    /// Measures `C[AM[p],n] += AV[p,q] * B[AK[p,q],n]` with separate arrays.
    fn by_hand(&self, b: &Tensor<f32>, grouped: &AnySparse<f32>, wanted: &[f32]) -> Result<()> {
        let (bench, n, (m, _, _)) = (self.bench, self.n, self.problem.extents());
        let arrays = grouped.arrays();
        let (am, ak) = (&arrays[0], &arrays[1]);
        let av = Dense::new(grouped.value_shape(), grouped.values().to_vec())?;
        let av = bench.upload(&av)?;
        let mut c = bench.zeros(&[m, n])?;
        let like = bench.zeros(&[m, n])?;
        let expression = "C[AM[p],n] += AV[p,q] * B[AK[p,q],n]";
        let operands: [Named<'_>; 5] = [
            ("AM", Operand::Index(&am.shape, am.data)),
            ("AV", (&av).into()),
            ("AK", Operand::Index(&ak.shape, ak.data)),
            ("B", b.into()),
            ("C", (&like).into()),
        ];
        let (plan, planned) = bench.plan(expression, &operands, &Options::default())?;
        println!("  first call of {expression}: planned in {planned:.2} ms");
        self.measured("by hand", &operands, &plan, &mut c, Some(wanted))?;
        Ok(())
    }

    /// Runs once, checks the result, then measures. Returns the output of the first run.
    fn measured(
        &self,
        name: &str,
        operands: &[Named<'_>],
        plan: &Plan<f32>,
        c: &mut Tensor<f32>,
        wanted: Option<&[f32]>,
    ) -> Result<Vec<f32>> {
        let (bench, given) = (self.bench, bound(operands));
        let first = first_run(bench, plan, &given, c)?;
        let found = c.to_dense()?.into_values();
        if wanted.is_some_and(|wanted| wanted != found) {
            return Err(format!("WRONG: {} in {name}", plan.variant()).into());
        }
        let times = bench.measure(|| plan.run(&given, c, &bench.stream))?;
        let row = Row::product(self.problem, self.n, Dtype::F32, &times).ours(plan.variant());
        let row = row.strict().prepared(None, plan.workspace_bytes());
        bench.add(row.note(format!("{name}, first run {first:.3} ms")))?;
        Ok(found)
    }
}

/// Measures expressions that only this family supports: planning, the first run, and later runs.
fn contractions(bench: &Bench<'_>) -> Result<()> {
    let entries = 1_000_000;
    let mut coords = Vec::new();
    for i in 0..entries as u64 {
        let mix = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        coords.push([(i / 20) as u32, (mix >> 40) as u32 % 50_000, (mix >> 20) as u32 % 50_000]);
    }
    let of = |axis: usize| coords.iter().map(|c| c[axis]).collect::<Vec<u32>>();
    let (ti, tj, tk) = (of(0), of(1), of(2));
    let shape = [entries];
    let dense = |shape: &[usize], seed: u64| integers(bench, shape, seed);
    let (v, x) = (dense(&[entries], 1)?, dense(&[50_000, 32], 2)?);
    let (y, out) = (dense(&[50_000, 32], 3)?, dense(&[50_000, 32], 4)?);
    let (p, q) = (dense(&[256, 64, 64], 5)?, dense(&[64, 64, 256], 6)?);
    let sparse: [Named<'_>; 6] = [
        ("V", (&v).into()),
        ("TI", Operand::Index(&shape, &ti)),
        ("TJ", Operand::Index(&shape, &tj)),
        ("TK", Operand::Index(&shape, &tk)),
        ("X", (&x).into()),
        ("Y", (&y).into()),
    ];
    let mut scattered = sparse.to_vec();
    scattered.push(("C", (&out).into()));
    let mut sampled = sparse.to_vec();
    sampled.retain(|(name, _)| *name != "TI");
    let plain = [("P", (&p).into()), ("Q", (&q).into())];
    let cases: [(&str, &str, &[Named<'_>]); 4] = [
        ("mttkrp", "C[TI[p],r] += V[p] * X[TJ[p],r] * Y[TK[p],r]", &scattered),
        ("sampled", "S[p] = V[p] * X[TJ[p],r] * Y[TK[p],r]", &sampled),
        ("dense", "D[i,j] = P[i,k,l] * Q[l,k,j]", &plain),
        // Unsorted indices: planning sorts the terms.
        ("mttkrp-unsorted", "C[TJ[p],r] += V[p] * X[TI[p],r] * Y[TK[p],r]", &scattered),
    ];
    for (name, expression, operands) in cases {
        let (plan, planned) = bench.plan(expression, operands, &Options::default())?;
        let given = bound(operands);
        let mut out = bench.zeros(plan.out_shape())?;
        let first = first_run(bench, &plan, &given, &mut out)?;
        let times = bench.measure(|| plan.run(&given, &mut out, &bench.stream))?;
        let row = Row::new(OP, name, [0; 3], 0, Dtype::F32).ours(plan.variant());
        let row = row.timed(&times).prepared(planned, plan.workspace_bytes());
        let note = format!("{expression}, first run {first:.3} ms");
        bench.add(row.strict().note(note))?;
    }
    Ok(())
}
