//! `join`: products of two sparse matrices into a dense one. How long the pairs of entries that meet take to find, on the GPU and on the
//! CPU, how long the plan over them, and a run of it.

use crate::device::{Gpu, Result};
use crate::ours::text;
use crate::problems::{Dtype, Problem, SEED, Source, Workload};
use crate::record::{Limits, Recorder, Row};
use crate::timing::{Effort, measure};
use einsparse::formats::{Csr, generate};
use einsparse::{Context, Operand, Options, Stream};
use std::time::Instant;

/// Name of the operation.
pub const OP: &str = "join";

const EXPRESSION: &str = "C[m,n] = A[m,k] * B[k,n]";

/// Measures every pair.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    let rows = 2048;
    for per_row in [16.0, 64.0] {
        let problem = Problem::load(&Workload {
            op: OP,
            name: format!("uniform2048-{per_row}"),
            source: Source::Uniform(rows, rows, per_row / rows as f64),
            ns: &[],
            dtypes: &[],
            quick: true,
        })?;
        products(gpu, effort, &context, &problem, recorder)?;
    }
    Ok(())
}

fn products(
    gpu: &Gpu,
    effort: Effort,
    context: &Context,
    problem: &Problem,
    recorder: &mut Recorder,
) -> Result<()> {
    let (m, _, nnz) = problem.extents();
    let values = |seed: u64| generate::small_integers::<f32>(nnz, seed);
    let matrix = |seed| Csr::new(problem.pattern.clone(), values(seed)).map_err(text);
    let (a, b) = (matrix(SEED)?, matrix(SEED + 1)?);
    let host: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    let listed = |context: &Context| {
        let start = Instant::now();
        let met = context.position_lists(EXPRESSION, &host).map_err(text)?;
        Ok::<_, String>((met, start.elapsed().as_secs_f64() * 1e3))
    };
    // The first one loads the modules.
    listed(context)?;
    let ((found, on_gpu), (wanted, on_cpu)) = (listed(context)?, listed(&Context::cpu())?);
    if found != wanted {
        return Err("WRONG: the lists of GPU and CPU differ".into());
    }
    let (on_a, on_b) = (
        context.upload(a.clone()).map_err(text)?,
        context.upload(b.clone()).map_err(text)?,
    );
    let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&on_a).into()), ("B", (&on_b).into())];
    let start = Instant::now();
    let plan = context.plan(EXPRESSION, &operands, &Options::default());
    let plan = plan.map_err(text)?;
    let planned = start.elapsed().as_secs_f64() * 1e3;
    let mut c = context.zeros(&[m, m]).map_err(text)?;
    // SAFETY: the bench's stream belongs to the primary context, which outlives it.
    let stream = unsafe { Stream::from_raw(gpu.stream.cast()) };
    let times = measure(gpu, effort, &mut || {
        plan.run(&operands, &mut c, &stream).map_err(text)
    })?;
    println!(
        "join {}: {} pairs; lists {on_gpu:.1} ms, on the CPU {on_cpu:.1}; planned in {planned:.1} ms; {} {:.1} us cold",
        problem.workload,
        found.rows,
        plan.variant(),
        times.cold * 1e3,
    );
    let row = Row::product(
        problem,
        m,
        Dtype::F32,
        times.cold,
        times.warm,
        &Limits::published(),
    );
    recorder.add(Row {
        engine: "einsparse".into(),
        variant: plan.variant().into(),
        prepare_ms: Some(planned),
        prepared_bytes: Some(plan.workspace_bytes()),
        zeros: "strict".into(),
        note: format!(
            "{EXPRESSION}, {} pairs, lists in {on_gpu:.2} ms, on the CPU in {on_cpu:.2}",
            found.rows
        ),
        ..row
    })
}
