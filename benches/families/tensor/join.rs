//! `join`: products of two sparse matrices into a dense one. Measures the search for matching pairs of nonzeros on the
//! GPU and on the CPU, the planning over these pairs, and a run.

use crate::prelude::*;
use einsparse::formats::generate;

pub const OP: &str = "join";

pub fn run(bench: &Bench<'_>) -> Result<()> {
    let rows = 2048;
    for per_row in [16.0, 64.0] {
        let source = Source::Uniform(rows, rows, per_row / rows as f64);
        let problem = Problem::of(OP, format!("uniform2048-{per_row}"), source)?;
        products(bench, &problem)?;
    }
    Ok(())
}

fn products(bench: &Bench<'_>, problem: &Problem) -> Result<()> {
    let (context, (m, _, nnz)) = (&bench.context, problem.extents());
    let values = |seed: u64| generate::small_integers::<f32>(nnz, seed);
    let matrix = |seed| Csr::new(problem.pattern.clone(), values(seed));
    let (a, b) = (matrix(SEED)?, matrix(SEED + 1)?);
    let host: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    let listed = |context: &Context| timed(|| Ok(context.position_lists(SPMM, &host)?));
    // The first call loads the modules.
    listed(context)?;
    let ((found, on_gpu), (wanted, on_cpu)) = (listed(context)?, listed(&Context::cpu())?);
    if found != wanted {
        return Err("WRONG: the lists of GPU and CPU differ".into());
    }
    let (on_a, on_b) = (context.upload(&a)?, context.upload(&b)?);
    let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&on_a).into()), ("B", (&on_b).into())];
    let (plan, planned) = bench.plan::<f32, f32>(SPMM, &operands, &Options::default())?;
    let mut c = bench.zeros(&[m, m])?;
    let times = bench.measure(|| plan.run(&operands, &mut c, &bench.stream))?;
    println!(
        "join {}: {} pairs; lists {on_gpu:.1} ms, on the CPU {on_cpu:.1}; planned in {planned:.1} ms; {} {:.1} us cold",
        problem.workload,
        found.rows,
        plan.variant(),
        times.cold * 1e3,
    );
    let note =
        format!("{SPMM}, {} pairs, lists in {on_gpu:.2} ms, on the CPU in {on_cpu:.2}", found.rows);
    let row = Row::product(problem, m, Dtype::F32, &times).ours(plan.variant());
    let row = row.prepared(planned, plan.workspace_bytes());
    bench.add(row.strict().note(note))
}
