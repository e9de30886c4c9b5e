//! The GPU part: every selected workload x element type x N, every engine on the same buffers.

use crate::Arguments;
use crate::case::{Case, Engine, Operands, Prepared, Values};
use crate::check::{Reference, Verdict};
use crate::device::{Buffer, Gpu, Result};
use crate::peers::cublas::CuBlas;
use crate::peers::cusparse::CuSparse;
use crate::problems::{Dtype, Problem, Workload};
use crate::record::{Limits, Recorder, Row};
use crate::timing::{Effort, Times, measure};
use crate::{dense, ours};

/// What a sweep counted.
#[derive(Default)]
pub struct Tally {
    /// Cases measured.
    pub cases: usize,
    /// Results of ours that are wrong, and failures of ours.
    pub faults: usize,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.cases += other.cases;
        self.faults += other.faults;
    }
}

/// Engines that opened; the others are named in one line each.
struct Engines {
    all: Vec<Box<dyn Engine>>,
    tf32: Option<CuBlas>,
    strict: Option<CuBlas>,
    /// Ours did not open although there is a GPU.
    ours_missing: bool,
}

/// Runs the tables.
pub fn run(
    gpu: &Gpu,
    arguments: &Arguments,
    workloads: &[Workload],
    recorder: &mut Recorder,
) -> Result<Tally> {
    let mut engines = open(gpu, arguments);
    let effort = arguments.effort();
    let limits = if arguments.variant.is_empty() {
        calibrate(gpu, effort, &engines, recorder)?
    } else {
        Limits::published()
    };
    engines.all.extend(
        engines
            .strict
            .take()
            .map(|e| Box::new(e) as Box<dyn Engine>),
    );
    engines
        .all
        .extend(engines.tf32.take().map(|e| Box::new(e) as Box<dyn Engine>));
    engines.all.retain(|e| arguments.wants_engine(e.name()));
    let mut sweep = Sweep {
        gpu,
        effort,
        limits,
        engines: engines.all,
        recorder,
        tally: Tally {
            cases: 0,
            faults: usize::from(engines.ours_missing),
        },
    };
    let mut tables: Vec<Values> = Vec::new();
    for workload in workloads {
        let problem = match Problem::load(workload) {
            Ok(problem) => problem,
            Err(reason) => {
                println!("left out: {reason}");
                continue;
            }
        };
        for dtype in arguments.dtypes(workload) {
            let known = tables.iter().position(|t| t.dtype == dtype);
            let known = known.unwrap_or_else(|| {
                tables.push(Values::new(dtype));
                tables.len() - 1
            });
            if let Err(reason) = sweep.workload(&problem, &tables[known], &arguments.ns(workload)) {
                println!("left out: {} {dtype}: {reason}", workload.name);
            }
        }
    }
    Ok(sweep.tally)
}

fn open(gpu: &Gpu, arguments: &Arguments) -> Engines {
    let mut all: Vec<Box<dyn Engine>> = Vec::new();
    let mut ours_missing = false;
    let chosen = &arguments.variant;
    let auto_only = arguments.auto || arguments.quick && chosen.is_empty();
    match ours::open(auto_only, chosen.clone()) {
        Ok(engine) => all.push(Box::new(engine)),
        Err(reason) => {
            println!("engine einsparse left out: {reason}");
            ours_missing = arguments.wants_engine("einsparse");
        }
    }
    for default in [false, true] {
        match CuSparse::open(gpu, default) {
            Ok(engine) => {
                println!("{} {}", engine.name(), engine.version());
                all.push(Box::new(engine));
            }
            Err(reason) => println!("engine cusparse left out: {reason}"),
        }
    }
    let dense = |tf32| match CuBlas::open(gpu, tf32) {
        Ok(engine) => {
            println!("{} {}", engine.name(), engine.version());
            Some(engine)
        }
        Err(reason) => {
            println!("engine cublas left out: {reason}");
            None
        }
    };
    Engines {
        all,
        strict: dense(false),
        tf32: dense(true),
        ours_missing,
    }
}

/// Measures what this machine can do at most, and records it: empty kernel, copy, large dense products.
fn calibrate(
    gpu: &Gpu,
    effort: Effort,
    engines: &Engines,
    recorder: &mut Recorder,
) -> Result<Limits> {
    let mut limits = Limits::published();
    let row = |op: &str, workload: &str, engine: &str, times: &Times| Row {
        op: op.into(),
        workload: workload.into(),
        engine: engine.into(),
        ms: times.cold,
        ms_warm: Some(times.warm),
        ..Row::default()
    };
    let times = measure(gpu, effort, &mut || gpu.empty())?;
    recorder.add(row("launch", "empty-kernel", "driver", &times))?;
    let bytes = 1 << 30;
    let (from, to) = (Buffer::new(bytes)?, Buffer::new(bytes)?);
    let times = measure(gpu, effort, &mut || copy(gpu, &from, &to))?;
    limits.copy = 2.0 * bytes as f64 / (times.cold.min(times.warm) * 1e-3);
    let copied = row("copy", "copy-1GiB", "driver", &times);
    recorder.add(Row {
        gbps: Some(limits.copy / 1e9),
        ..copied
    })?;
    drop((from, to));
    for dtype in Dtype::ALL {
        let chosen = if dtype == Dtype::Tf32 {
            &engines.tf32
        } else {
            &engines.strict
        };
        let Some(cublas) = chosen else { continue };
        let extent = if dtype == Dtype::F64 { 4096 } else { 8192 };
        let times = dense_product(gpu, effort, cublas, dtype, extent)?;
        let rate = 2.0 * (extent as f64).powi(3) / (times.cold.min(times.warm) * 1e-3);
        limits.set(dtype, rate);
        recorder.add(Row {
            m: extent,
            k: extent,
            n: extent,
            nnz: extent * extent,
            dtype: dtype.to_string(),
            gflops: Some(rate / 1e9),
            zeros: "dense".into(),
            ..row("gemm", &format!("dense-{extent}"), cublas.name(), &times)
        })?;
    }
    for dtype in [Dtype::F16, Dtype::Bf16] {
        for extent in [4096, 8192] {
            for row in dense_products(gpu, effort, engines, dtype, extent)? {
                recorder.add(row)?;
            }
        }
    }
    Ok(limits)
}

/// Our dense path beside cuBLAS on the same operands, those of 8192 again: the GPU's clock depends on what ran before.
fn dense_products(
    gpu: &Gpu,
    effort: Effort,
    engines: &Engines,
    dtype: Dtype,
    extent: usize,
) -> Result<Vec<Row>> {
    let values = Values::new(dtype);
    let a = values.upload(extent * extent, 0)?;
    let b = values.upload(extent * extent, 77)?;
    let c = Buffer::new(a.bytes)?;
    let pointers = [a.ptr, b.ptr, c.ptr];
    let row = |engine: &str, variant: &str, times: Times| Row {
        op: "gemm".into(),
        workload: format!("dense-{extent}"),
        engine: engine.into(),
        variant: variant.into(),
        m: extent,
        k: extent,
        n: extent,
        nnz: extent * extent,
        dtype: dtype.to_string(),
        ms: times.cold,
        ms_warm: Some(times.warm),
        gflops: Some(2.0 * (extent as f64).powi(3) / (times.cold * 1e-3) / 1e9),
        zeros: "dense".into(),
        ..Row::default()
    };
    let mut rows = Vec::new();
    match dense::square(gpu, dtype, extent, pointers) {
        Ok((name, mut run)) => {
            let times = measure(gpu, effort, &mut run)?;
            rows.push(row("einsparse", &name, times));
        }
        Err(reason) => println!("einsparse has no dense {dtype} product: {reason}"),
    }
    if let Some(cublas) = &engines.strict {
        let times = measure(gpu, effort, &mut || {
            cublas.gemm(dtype, [extent; 3], pointers)
        })?;
        rows.push(row(cublas.name(), "dense", times));
    }
    Ok(rows)
}

fn dense_product(
    gpu: &Gpu,
    effort: Effort,
    cublas: &CuBlas,
    dtype: Dtype,
    extent: usize,
) -> Result<Times> {
    let values = Values::new(dtype);
    let a = values.upload(extent * extent, 0)?;
    let b = values.upload(extent * extent, 77)?;
    let c = Buffer::new(a.bytes)?;
    measure(gpu, effort, &mut || {
        cublas.gemm(dtype, [extent; 3], [a.ptr, b.ptr, c.ptr])
    })
}

/// Queues a copy of all of `from`.
pub fn copy(gpu: &Gpu, from: &Buffer, to: &Buffer) -> Result<()> {
    use cudarc::driver::sys;
    // SAFETY: both buffers hold `from.bytes` bytes.
    let status = unsafe { sys::cuMemcpyDtoDAsync_v2(to.ptr, from.ptr, from.bytes, gpu.stream) };
    crate::device::check(status, "cuMemcpyDtoDAsync")
}

struct Sweep<'a> {
    gpu: &'a Gpu,
    effort: Effort,
    limits: Limits,
    engines: Vec<Box<dyn Engine>>,
    recorder: &'a mut Recorder,
    tally: Tally,
}

/// One timed variant.
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
            let case = Case {
                gpu: self.gpu,
                problem,
                values,
                operands: &operands,
                n,
            };
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
            let (cold, warm) = (one.times.cold, one.times.warm);
            self.recorder.add(Row {
                engine: name.into(),
                note: one.describe(),
                variant: one.variant,
                prepare_ms: Some(one.prepare_ms),
                prepared_bytes: Some(one.prepared_bytes),
                zeros: one.zeros.into(),
                ..Row::product(case.problem, case.n, case.dtype(), cold, warm, &self.limits)
            })?;
        }
        Ok(())
    }

    /// Poisons C, runs once, checks, then times.
    fn variant(
        &self,
        engine: &dyn Engine,
        case: &Case<'_>,
        truth: &Reference,
        variant: &str,
    ) -> Result<Timed> {
        let prepared = engine.prepare(case, variant)?;
        let Prepared {
            mut run,
            prepare_ms,
            prepared_bytes,
            zeros,
            note,
        } = prepared;
        case.operands.c.fill(0xff, self.gpu.stream)?;
        run()?;
        self.gpu.wait()?;
        let verdict = truth.compare(case, engine.tolerance(case.dtype()))?;
        let times = measure(self.gpu, self.effort, &mut run)?;
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

/// The variant with the least cold time among those that are right; its warm figure is the least of all, so that
/// the peer loses nothing where another algorithm is the better one warm.
fn best(mut timed: Vec<Timed>) -> Option<Timed> {
    if timed.iter().any(|t| t.verdict.wrong.is_none()) {
        timed.retain(|t| t.verdict.wrong.is_none());
    }
    let all: Vec<String> = timed
        .iter()
        .map(|t| format!("{} {:.4}", t.variant, t.times.cold))
        .collect();
    let warmest = timed
        .iter()
        .min_by(|a, b| a.times.warm.total_cmp(&b.times.warm))?;
    let (warm, by) = (warmest.times.warm, warmest.variant.clone());
    let mut best = timed
        .into_iter()
        .min_by(|a, b| a.times.cold.total_cmp(&b.times.cold))?;
    best.times.warm = warm;
    if all.len() > 1 {
        let other = if by == best.variant {
            String::new()
        } else {
            format!("; warm by {by}")
        };
        best.note = [best.note, format!("{}{other}", all.join(", "))]
            .join(" ")
            .trim()
            .to_owned();
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
