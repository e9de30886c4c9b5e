//! `einsum`: the general family. Measures SpMM by this family and by the plan's choice, the indirect Einsum of GroupCOO
//! written by hand, contractions without a specialized kernel, and the cost of a new expression.

use crate::prelude::*;
use crate::timing::Effort;
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
            products(bench, &problem, n)?;
        }
    }
    contractions(bench)
}

/// Measures SpMM by the plan's choice and the general kernels on CSR, and by GroupCOO with separate arrays.
fn products(bench: &Bench<'_>, problem: &Problem, n: usize) -> Result<()> {
    let (m, k, nnz) = problem.extents();
    let values = generate::small_integers::<f32>(nnz, SEED);
    let csr = Csr::new(problem.pattern.clone(), values)?;
    let b = integers(bench, &[k, n], SEED + 1)?;
    let group = Format::GroupCoo { axis: 0, group: None };
    let grouped = AnySparse::from(csr.clone()).convert(group)?;
    let a = bench.context.upload(csr)?;
    let operands = ab(&a, &b);
    let (plan, _) = bench.plan::<f32, f32>(SPMM, &operands, &Options::default())?;
    let mut wanted = bench.zeros(&[m, n])?;
    bench.once(|| plan.run(&operands, &mut wanted, &bench.stream))?;
    let wanted = wanted.to_dense()?;
    let check = |c: &Tensor<f32>| Ok(exact(c.to_dense()? == wanted));
    let row = Row::product(problem, n, Dtype::F32).strict();
    let general = plan.choice().candidates.iter().map(|c| c.name);
    let general = general.filter(|name| name.starts_with(FAMILY)).map(Some);
    for variant in [None].into_iter().chain(general) {
        let row = row.clone().note("csr");
        bench.product(row, (SPMM, &forced(variant)), &operands, check)?;
    }
    let arrays = grouped.arrays();
    let (am, ak) = (&arrays[0], &arrays[1]);
    // Padding has the value 0. As an operand, it needs a column of B.
    let columns: Vec<u32> = ak.data.iter().map(|&k| if k == u32::MAX { 0 } else { k }).collect();
    let av = Dense::new(grouped.value_shape(), grouped.values().to_vec())?;
    let (av, mut c) = (bench.upload(&av)?, bench.zeros(&[m, n])?);
    let like = bench.zeros(&[m, n])?;
    let operands: [Named<'_>; 5] = [
        ("AM", Operand::Index(&am.shape, am.data)),
        ("AV", (&av).into()),
        ("AK", Operand::Index(&ak.shape, &columns)),
        ("B", (&b).into()),
        ("C", (&like).into()),
    ];
    let expression = "C[AM[p],n] += AV[p,q] * B[AK[p,q],n]";
    let (plan, _) = bench.plan::<f32, f32>(expression, &operands, &Options::default())?;
    let (given, row) = (bound(&operands), row.ours(plan.variant()).note("by hand"));
    let row = row.prepared(None, plan.workspace_bytes());
    bench.checked(row, &mut c, |c| plan.run(&given, c, &bench.stream), check).map(drop)
}

/// Measures expressions that only this family supports: planning, the first run, and later runs.
fn contractions(bench: &Bench<'_>) -> Result<()> {
    let entries = 1_000_000;
    let place = |shift: u32| move |i: usize| (values::hash(i) >> shift) as u32 % 50_000;
    let ti: Vec<u32> = (0..entries).map(|i| (i / 20) as u32).collect();
    let [tj, tk] = [40, 20].map(|shift| (0..entries).map(place(shift)).collect::<Vec<u32>>());
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
        let (plan, planned) = bench.plan::<f32, f32>(expression, operands, &Options::default())?;
        let given = bound(operands);
        let mut out = bench.zeros(plan.out_shape())?;
        let (_, first) = timed(|| bench.once(|| plan.run(&given, &mut out, &bench.stream)))?;
        let row = Row::new(OP, name, [0; 3], 0, Dtype::F32).ours(plan.variant()).strict();
        let row = row.prepared(planned, plan.workspace_bytes());
        let row = row.note(format!("{expression}, first run {first:.3} ms"));
        bench.time(row, || plan.run(&given, &mut out, &bench.stream))?;
    }
    Ok(())
}
