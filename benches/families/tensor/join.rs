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
        let (context, nnz) = (&bench.context, problem.extents().2);
        let values = |seed: u64| generate::small_integers::<f32>(nnz, seed);
        let matrix = |seed| Csr::new(problem.pattern.clone(), values(seed));
        let (a, b) = (matrix(SEED)?, matrix(SEED + 1)?);
        let host = ab(&a, &b);
        let listed = |context: &Context| timed(|| Ok(context.position_lists(SPMM, &host)?));
        // The first call loads the modules.
        listed(context)?;
        let ((found, on_gpu), (wanted, on_cpu)) = (listed(context)?, listed(&Context::cpu())?);
        let pairs = found.rows;
        let (on_a, on_b) = (context.upload(&a)?, context.upload(&b)?);
        let row = Row::product(&problem, rows, Dtype::F32).strict().note(format!(
            "{SPMM}, {pairs} pairs, lists in {on_gpu:.2} ms, on the CPU in {on_cpu:.2}"
        ));
        let plan = (SPMM, &Options::default());
        let check = |_: &Tensor<f32>| Ok(exact(found == wanted));
        bench.product::<f32, f32>(row, plan, &ab(&on_a, &on_b), check)?;
    }
    Ok(())
}
