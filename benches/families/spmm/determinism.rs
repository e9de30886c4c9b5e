//! `determinism`: the cost of sums in a fixed order. `C += A * B` in f32 on graphs, whose long rows are split. By
//! default, partial sums are stored and added in order. The baseline is the same tile with partial sums added by
//! atomics (family `relaxed`).

use crate::device::is_built;
use crate::prelude::*;
use einsparse::Determinism;
use einsparse::formats::generate;

pub const OP: &str = "determinism";

const EXPRESSION: &str = "C[m,n] += A[m,k] * B[k,n]";
/// Columns of B, and the compared tile.
const CASES: [(usize, &str); 4] = [
    (32, "csr_f32_n32"),
    (128, "csr_f32_n128"),
    (128, "csr_f32_n128_l16"),
    (256, "csr_f32_n128_l16"),
];

pub fn run(bench: &Bench<'_>) -> Result<()> {
    if !is_built("relaxed") {
        return Ok(());
    }
    for scale in [17, 20] {
        let problem = Problem::of(OP, format!("rmat{scale}"), Source::Rmat(scale))?;
        let (m, k, nnz) = problem.extents();
        // Integers: sums are exact in any order.
        let values = generate::small_integers::<f32>(nnz, SEED);
        let a = Csr::new(problem.pattern.clone(), values)?;
        let a = bench.context.upload(a)?;
        for (n, tile) in CASES {
            let b = bench.tensor(&[k, n], generate::small_integers(k * n, SEED + 1))?;
            let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
            let mut first: Option<Vec<f32>> = None;
            for family in ["spmm", "relaxed"] {
                let options = Options {
                    determinism: Determinism::Relaxed,
                    ..forced(Some(&format!("{family}_{tile}")))
                };
                let (plan, _) = bench.plan::<f32, f32>(EXPRESSION, &operands, &options)?;
                let mut c = bench.zeros(&[m, n])?;
                bench.once(|| plan.run(&operands, &mut c, &bench.stream))?;
                let found = c.to_dense()?.into_values();
                if first.get_or_insert_with(|| found.clone()) != &found {
                    return Err(format!("WRONG: {} differs", plan.variant()).into());
                }
                let times = bench.measure(|| plan.run(&operands, &mut c, &bench.stream))?;
                let row = Row::product(&problem, n, Dtype::F32, &times);
                bench.add(row.ours(plan.variant()).strict().note("C += A B"))?;
            }
        }
    }
    Ok(())
}
