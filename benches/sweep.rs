//! Sweep on the GPU: every selected workload, element type and N, with every engine on the same buffers.

use crate::bench::Place;
use crate::case::{Case, Engine, Operands, Prepared, Tables, Values};
use crate::check::{Reference, Verdict};
use crate::device::{Result, or_said};
use crate::ours;
use crate::peers::cublas::CuBlas;
use crate::peers::cusparse::CuSparse;
use crate::peers::cusparselt::CuSparseLt;
use crate::problems::{Dtype, Problem, Workload};
use crate::record::Row;
use crate::timing::Times;

#[derive(Default)]
pub struct Tally {
    pub cases: usize,
    /// Wrong results and failures of einsparse.
    pub faults: usize,
}

pub fn run(place: &Place<'_>, workloads: &[Workload]) -> Result<Tally> {
    let (mut engines, faults) = open(place);
    engines.retain(|e| place.arguments.wants_engine(e.name()));
    let mut sweep = Sweep { place, engines, tally: Tally { cases: 0, faults } };
    let mut tables = Tables::default();
    for workload in workloads {
        let problem = match Problem::load(workload) {
            Ok(problem) => problem,
            Err(reason) => {
                println!("left out: {reason}");
                continue;
            }
        };
        let ns = place.arguments.ns(workload.ns);
        for dtype in place.arguments.dtypes(workload.dtypes) {
            if let Err(reason) = sweep.workload(&problem, tables.of(dtype), &ns) {
                println!("left out: {} {dtype}: {reason}", workload.name);
            }
        }
    }
    Ok(sweep.tally)
}

/// Measures every workload and element type. `measure` returns the number of wrong results of einsparse.
pub fn each(
    place: &Place<'_>,
    workloads: &[Workload],
    mut measure: impl FnMut(&Problem, Dtype) -> Result<usize>,
) -> Result<Tally> {
    let mut tally = Tally::default();
    for workload in workloads {
        let problem = Problem::load(workload)?;
        for dtype in place.arguments.dtypes(workload.dtypes) {
            tally.cases += 1;
            tally.faults += measure(&problem, dtype).unwrap_or_else(|reason| {
                println!("{} on {} {dtype}: {reason}", workload.op, workload.name);
                1
            });
        }
    }
    Ok(tally)
}

/// Opens the engines, and counts failures of einsparse. A line is printed for each engine that does not open.
fn open(place: &Place<'_>) -> (Vec<Box<dyn Engine>>, usize) {
    let (gpu, arguments) = (place.gpu, place.arguments);
    let mut all: Vec<Box<dyn Engine>> = Vec::new();
    let mut missing = 0;
    let chosen = &arguments.variant;
    let auto_only = arguments.auto || arguments.quick && chosen.is_empty();
    match or_said(ours::open(auto_only, chosen.clone()), "engine einsparse") {
        Some(engine) => all.push(Box::new(engine)),
        None => missing = usize::from(arguments.wants_engine("einsparse")),
    }
    let said = |engine: &dyn Engine, version: i32| println!("{} {version}", engine.name());
    for default in [false, true] {
        if let Some(engine) = or_said(CuSparse::open(gpu, default), "engine cusparse") {
            said(&engine, engine.version());
            all.push(Box::new(engine));
        }
    }
    if let Some(engine) = or_said(CuSparseLt::open(), "engine cusparselt") {
        all.push(Box::new(engine));
    }
    for tf32 in [false, true] {
        if let Some(engine) = or_said(CuBlas::open(gpu, tf32), "engine cublas") {
            said(&engine, engine.version());
            all.push(Box::new(engine));
        }
    }
    (all, missing)
}

struct Sweep<'a> {
    place: &'a Place<'a>,
    engines: Vec<Box<dyn Engine>>,
    tally: Tally,
}

struct Timed {
    variant: String,
    times: Times,
    prepare_ms: f64,
    prepared_bytes: usize,
    zeros: &'static str,
    verdict: Verdict,
    note: String,
}

impl Sweep<'_> {
    fn workload(&mut self, problem: &Problem, values: &Values, ns: &[usize]) -> Result<()> {
        let Some(&widest) = ns.iter().max() else {
            return Ok(());
        };
        let operands = Operands::upload(problem, values, widest)?;
        for &n in ns {
            let case = Case { gpu: self.place.gpu, problem, values, operands: &operands, n };
            let reference = Reference::new(&case);
            self.tally.cases += 1;
            for engine in 0..self.engines.len() {
                self.engine(engine, &case, &reference)?;
            }
        }
        Ok(())
    }

    fn engine(&mut self, index: usize, case: &Case<'_>, reference: &Reference) -> Result<()> {
        let engine = &self.engines[index];
        let (name, best_only) = (engine.name(), engine.best_only());
        let mut timed = Vec::new();
        for variant in engine.variants(case) {
            match self.variant(engine.as_ref(), case, reference, &variant) {
                Ok(one) => timed.push(one),
                Err(reason) => {
                    println!(
                        "{name} {variant} on {} n {}: {reason}",
                        case.problem.workload, case.n
                    );
                    self.tally.faults += usize::from(!best_only);
                }
            }
        }
        if best_only {
            timed = best(timed).into_iter().collect();
        }
        for one in timed {
            self.tally.faults += usize::from(!best_only && one.verdict.wrong.is_some());
            let note = one.describe();
            let row = Row::product(case.problem, case.n, case.dtype(), &one.times)
                .by(name, one.variant)
                .prepared(one.prepare_ms, one.prepared_bytes)
                .note(note);
            self.place.add(Row { zeros: one.zeros.into(), ..row })?;
        }
        Ok(())
    }

    /// Poisons C, runs once, checks the result, then times the variant.
    fn variant(
        &self,
        engine: &dyn Engine,
        case: &Case<'_>,
        truth: &Reference,
        variant: &str,
    ) -> Result<Timed> {
        let prepared = engine.prepare(case, variant)?;
        let Prepared { mut run, prepare_ms, prepared_bytes, zeros, note } = prepared;
        case.operands.c.fill(0xff, case.gpu.stream)?;
        self.place.once(&mut run)?;
        let verdict = truth.compare(case, engine.tolerance(case.dtype()))?;
        let times = self.place.measure(run)?;
        Ok(Timed {
            variant: variant.to_owned(),
            times,
            prepare_ms,
            prepared_bytes,
            zeros,
            verdict,
            note,
        })
    }
}

/// Returns the correct variant with the min cold time. Its warm time is the min over all variants, so that a baseline
/// is not penalized if another algorithm is faster warm.
fn best(mut timed: Vec<Timed>) -> Option<Timed> {
    if timed.iter().any(|t| t.verdict.wrong.is_none()) {
        timed.retain(|t| t.verdict.wrong.is_none());
    }
    let each = timed.iter();
    let all = each.map(|t| format!("{} {:.4}", t.variant, t.times.cold));
    let all: Vec<String> = all.collect();
    let warm = |a: &&Timed, b: &&Timed| a.times.warm.total_cmp(&b.times.warm);
    let warmest = timed.iter().min_by(warm)?;
    let (warm, by) = (warmest.times.warm, warmest.variant.clone());
    let cold = |a: &Timed, b: &Timed| a.times.cold.total_cmp(&b.times.cold);
    let mut best = timed.into_iter().min_by(cold)?;
    best.times.warm = warm;
    if all.len() > 1 {
        let other = match by == best.variant {
            true => String::new(),
            false => format!("; warm by {by}"),
        };
        let note = format!("{} {}{other}", best.note, all.join(", "));
        best.note = note.trim().to_owned();
    }
    Some(best)
}

impl Timed {
    fn describe(&self) -> String {
        let mut parts = Vec::new();
        match &self.verdict.wrong {
            Some(wrong) => parts.push(format!("WRONG: {wrong}")),
            None => parts.push(format!("err {:.1e}", self.verdict.relative)),
        }
        if self.times.host_inside {
            parts.push("waits for the host inside".into());
        }
        if !self.note.is_empty() {
            parts.push(self.note.clone());
        }
        parts.join("; ")
    }
}
