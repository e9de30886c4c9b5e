//! `C += A B` next to `C = A B`, to measure the cost of accumulation. C must be read once more. `note` states which of
//! the two a row is.

use super::blocks_terms;
use crate::prelude::*;
use einsparse::formats::{Bsr, generate};

pub const OP: &str = "accumulate";

const EXTENT: usize = 4096;
/// Edges of blocks, and their density.
const CASES: [(usize, f64); 4] = [(128, 0.1), (64, 0.1), (32, 0.1), (16, 0.05)];
/// Stride of the checked rows of C.
const CHECKED: usize = 499;

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for (edge, density) in CASES {
        let name = format!("block{edge}-d{density}");
        if !bench.arguments.named(&name) {
            continue;
        }
        let bench = &bench.anew()?;
        let pattern = generate::blocks(EXTENT, EXTENT, (edge, edge), density, SEED)?;
        let slots = pattern.columns().len() * edge * edge;
        let a = Bsr::new(pattern, values::<bf16>(slots, 1, 1.0))?;
        let [b, start] = [2, 3].map(|seed| values::dense::<bf16>(&[EXTENT; 2], seed, 1.0));
        let terms = blocks_terms(
            a.pattern(),
            |i| a.values()[i].to_f64(),
            |k, j| b.values()[k * EXTENT + j].to_f64(),
        );
        let (a_there, b_there) = (bench.context.upload(&a)?, bench.upload(&b)?);
        let operands = ab(&a_there, &b_there);
        for sign in ["=", "+="] {
            let expression = format!("C[m,n] {sign} A[m,k] * B[k,n]");
            let (plan, prepare) =
                bench.plan::<bf16, bf16>(&expression, &operands, &Options::default())?;
            bench.checked(
                Row::new(OP, name.as_str(), [EXTENT; 3], slots, Dtype::Bf16)
                    .flops(2.0 * (slots * EXTENT) as f64)
                    .dense()
                    .ours(plan.variant())
                    .prepared(prepare, None)
                    .note(sign),
                &mut bench.upload(&start)?,
                |c| plan.run(&operands, c, &bench.stream),
                |c| {
                    let terms = |row: usize, sums: &mut [Sum]| {
                        if sign == "+=" {
                            add_line(sums, 1.0, &start.values()[row * EXTENT..]);
                        }
                        terms(row, sums);
                    };
                    let rows = (0..EXTENT).step_by(CHECKED);
                    let error = rounding::<bf16>(EXTENT);
                    Ok(rows_error(c.to_dense()?.values(), EXTENT, rows, terms, error))
                },
            )?;
        }
    }
    Ok(())
}
