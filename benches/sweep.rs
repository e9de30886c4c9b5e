//! Sweep on the GPU: every selected workload, element type and N, with every engine on the same buffers.

use crate::case::{Case, Engine, Operands, Prepared, Tables};
use crate::check::{Reference, Verdict};
use crate::ours;
use crate::peers::cusparse::CuSparse;
use crate::peers::cusparselt::CuSparseLt;
use crate::prelude::*;
use crate::problems::Workload;

pub fn run(bench: &Bench<'_>, workloads: &[Workload]) -> Result<()> {
    let mut engines = open(bench);
    engines.retain(|e| bench.arguments.wants_engine(e.name()));
    let mut tables = Tables::default();
    each(bench, workloads, |problem, dtype, ns| {
        let values = tables.of(dtype);
        let operands = Operands::upload(problem, values, ns.iter().copied().max().unwrap_or(0))?;
        for &n in ns {
            let case = Case { gpu: bench.gpu, problem, values, operands: &operands, n };
            let reference = Reference::new(&case);
            for engine in &engines {
                measured(bench, engine.as_ref(), &case, &reference)?;
            }
        }
        Ok(())
    })
}

/// Measures every workload and element type, for its numbers of columns. A failure is printed and counted.
pub fn each(
    bench: &Bench<'_>,
    workloads: &[Workload],
    mut measure: impl FnMut(&Problem, Dtype, &[usize]) -> Result<()>,
) -> Result<()> {
    for workload in workloads {
        let Some(problem) = or_said(Problem::load(workload), &workload.name) else {
            continue;
        };
        let ns = bench.arguments.ns(workload.ns);
        for dtype in bench.arguments.dtypes(workload.dtypes) {
            if let Err(reason) = measure(&problem, dtype, &ns) {
                println!("{} on {} {dtype}: {reason}", workload.op, workload.name);
                bench.recorder.fail();
            }
        }
    }
    Ok(())
}

/// Opens the engines. A line is printed for each that does not open.
fn open<'b>(bench: &'b Bench<'b>) -> Vec<Box<dyn Engine + 'b>> {
    let mut all: Vec<Box<dyn Engine + 'b>> = vec![Box::new(ours::Einsparse::new(bench))];
    let said = |engine: &dyn Engine, version: i32| println!("{} {version}", engine.name());
    for default in [false, true] {
        if let Some(engine) = or_said(CuSparse::open(bench.gpu, default), "engine cusparse") {
            said(&engine, engine.version());
            all.push(Box::new(engine));
        }
    }
    if let Some(engine) = or_said(CuSparseLt::open(), "engine cusparselt") {
        all.push(Box::new(engine));
    }
    for tf32 in [false, true] {
        if let Some(engine) = bench.cublas(tf32) {
            said(&engine, engine.version());
            all.push(Box::new(engine));
        }
    }
    all
}

/// Measures the variants of an engine: each one of einsparse, the best one of a baseline.
fn measured(
    bench: &Bench<'_>,
    engine: &dyn Engine,
    case: &Case<'_>,
    reference: &Reference,
) -> Result<()> {
    let (name, best_only) = (engine.name(), engine.best_only());
    let mut rows = Vec::new();
    for name_of_variant in engine.variants(case) {
        match variant(bench, engine, case, reference, &name_of_variant) {
            Ok(row) => rows.push(row),
            Err(reason) => {
                let (on, n) = (&case.problem.workload, case.n);
                println!("{name} {name_of_variant} on {on} n {n}: {reason}");
                if !best_only {
                    bench.recorder.fail();
                }
            }
        }
    }
    if best_only {
        rows = best(rows).into_iter().collect();
    }
    rows.into_iter().try_for_each(|row| bench.add(row))
}

/// Poisons C, runs once, checks the result, then times the variant.
fn variant(
    bench: &Bench<'_>,
    engine: &dyn Engine,
    case: &Case<'_>,
    truth: &Reference,
    variant: &str,
) -> Result<Row> {
    let prepared = engine.prepare(case, variant)?;
    let Prepared { mut run, prepare_ms, prepared_bytes, zeros, note } = prepared;
    case.operands.c.fill(0xff, case.gpu.stream)?;
    bench.once(&mut run)?;
    let verdict = truth.compare(case, engine.tolerance(case.dtype()))?;
    let times = bench.measure(run)?;
    let row = Row::product(case.problem, case.n, case.dtype()).by(engine.name(), variant);
    let mut row = row.prepared(prepare_ms, prepared_bytes).timed(&times);
    row.zeros = zeros.into();
    row = match &verdict {
        Verdict { wrong: Some(wrong), .. } => row.note(wrong).wrong(),
        Verdict { relative, .. } => row.note(format!("err {relative:.1e}")),
    };
    if times.host_inside {
        row = row.also("waits for the host inside");
    }
    Ok(if note.is_empty() { row } else { row.also(note) })
}

/// Returns the correct row with the min cold time. Its warm time is the min over all rows, so that a baseline is not
/// penalized if another algorithm is faster warm.
fn best(mut rows: Vec<Row>) -> Option<Row> {
    if rows.iter().any(|row| !row.is_wrong()) {
        rows.retain(|row| !row.is_wrong());
    }
    let all = rows.iter().map(|row| format!("{} {:.4}", row.variant, row.ms));
    let all: Vec<String> = all.collect();
    let warm = |row: &Row| row.ms_warm.unwrap_or(f64::INFINITY);
    let warmest = rows.iter().min_by(|a, b| warm(a).total_cmp(&warm(b)))?;
    let (warm, by) = (warmest.ms_warm, warmest.variant.clone());
    let best = rows.into_iter().min_by(|a, b| a.ms.total_cmp(&b.ms))?;
    let mut best = Row { ms_warm: warm, ..best };
    if all.len() > 1 {
        best = best.also(all.join(", "));
        if by != best.variant {
            best = best.also(format!("warm by {by}"));
        }
    }
    Some(best)
}
