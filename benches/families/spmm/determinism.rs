//! `determinism`: what sums in a fixed order cost. `C += A * B` in f32 on graphs, whose long rows are cut: parts carried and added in order,
//! the default, beside the same tile with parts added by atomics (family `relaxed`).

use crate::device::{Gpu, Result, is_built};
use crate::ours::text;
use crate::problems::{Dtype, Problem, SEED, Source, Workload};
use crate::record::{Limits, Recorder, Row};
use crate::timing::{Effort, measure};
use einsparse::formats::{Csr, Dense, generate};
use einsparse::{Context, Determinism, Operand, Options, Stream};

/// Name of the operation.
pub const OP: &str = "determinism";

const EXPRESSION: &str = "C[m,n] += A[m,k] * B[k,n]";
/// Columns of B, and the tiles that are compared.
const CASES: [(usize, &str); 4] = [
    (32, "csr_f32_n32"),
    (128, "csr_f32_n128"),
    (128, "csr_f32_n128_l16"),
    (256, "csr_f32_n128_l16"),
];

/// Measures every pair.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    if !is_built("relaxed") {
        return Ok(());
    }
    let context = Context::cuda(0).map_err(text)?;
    // SAFETY: the bench's stream belongs to the primary context and outlives this function.
    let stream = unsafe { Stream::from_raw(gpu.stream.cast()) };
    for scale in [17, 20] {
        let problem = Problem::load(&Workload {
            op: OP,
            name: format!("rmat{scale}"),
            source: Source::Rmat(scale),
            ns: &[],
            dtypes: &[],
            quick: true,
        })?;
        let (m, k, nnz) = problem.extents();
        // Whole numbers: sums are exact in any order.
        let values = generate::small_integers::<f32>(nnz, SEED);
        let a = Csr::new(problem.pattern.clone(), values).map_err(text)?;
        let a = context.upload(a).map_err(text)?;
        for (n, tile) in CASES {
            let b = Dense::new(vec![k, n], generate::small_integers::<f32>(k * n, SEED + 1));
            let b = context.upload_dense(&b.map_err(text)?).map_err(text)?;
            let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
            let mut first: Option<Vec<f32>> = None;
            for family in ["spmm", "relaxed"] {
                let options = Options {
                    determinism: Determinism::Relaxed,
                    variant: Some(format!("{family}_{tile}")),
                    ..Options::default()
                };
                let plan = context
                    .plan(EXPRESSION, &operands, &options)
                    .map_err(text)?;
                let mut c = context.zeros(&[m, n]).map_err(text)?;
                plan.run(&operands, &mut c, &stream).map_err(text)?;
                stream.synchronize().map_err(text)?;
                let found = c.to_dense().map_err(text)?.into_values();
                if first.get_or_insert_with(|| found.clone()) != &found {
                    return Err(format!("WRONG: {} differs", plan.variant()));
                }
                let times = measure(gpu, effort, &mut || {
                    plan.run(&operands, &mut c, &stream).map_err(text)
                })?;
                let limits = Limits::published();
                let (cold, warm) = (times.cold, times.warm);
                let row = Row::product(&problem, n, Dtype::F32, cold, warm, &limits);
                recorder.add(Row {
                    engine: "einsparse".into(),
                    variant: plan.variant().into(),
                    zeros: "strict".into(),
                    note: "C += A B".into(),
                    ..row
                })?;
            }
        }
    }
    Ok(())
}
