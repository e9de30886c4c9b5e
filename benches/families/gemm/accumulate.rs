//! `C += A B` beside `C = A B`: what adding costs. C has to be read once, no more. `note` says which of the two.

use crate::prelude::*;
use einsparse::formats::{Bsr, generate};

pub const OP: &str = "accumulate";

const EXTENT: usize = 4096;
/// Edges of blocks and their density.
const CASES: [(usize, f64); 4] = [(128, 0.1), (64, 0.1), (32, 0.1), (16, 0.05)];

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for (edge, density) in CASES {
        let name = format!("block{edge}-d{density}");
        if !bench.arguments.named(&name) {
            continue;
        }
        let bench = &bench.anew()?;
        let pattern = generate::blocks(EXTENT, EXTENT, (edge, edge), density, SEED)?;
        let slots = pattern.columns().len() * edge * edge;
        let mut rng = StdRng::seed_from_u64(SEED);
        let mut draw = |count: usize| -> Vec<bf16> {
            (0..count)
                .map(|_| bf16::from_f32(rng.random_range(-1.0..1.0)))
                .collect()
        };
        let a = bench.context.upload(Bsr::new(pattern, draw(slots))?)?;
        let b = bench.tensor(&[EXTENT; 2], draw(EXTENT * EXTENT))?;
        let start = draw(EXTENT * EXTENT);
        let mut product = Vec::new();
        for sign in ["=", "+="] {
            let mut c = bench.tensor(&[EXTENT; 2], start.clone())?;
            let expression = format!("C[m,n] {sign} A[m,k] * B[k,n]");
            let operands = [("A", (&a).into()), ("B", (&b).into())];
            let (plan, prepare) =
                bench.plan::<bf16, bf16>(&expression, &operands, &Options::default())?;
            bench.once(|| plan.run(&operands, &mut c, &bench.stream))?;
            let found = c.to_dense()?.into_values();
            let right = match sign {
                "=" => true,
                _ => (found.iter().zip(&start).zip(&product)).all(|((c, start), product)| {
                    is_sum([c, start, product].map(|x: &bf16| x.to_f32()))
                }),
            };
            if sign == "=" {
                product = found;
            }
            let times = bench.measure(|| plan.run(&operands, &mut c, &bench.stream))?;
            let row = Row::new(OP, name.as_str(), [EXTENT; 3], slots, Dtype::Bf16)
                .timed(&times)
                .flops(2.0 * (slots * EXTENT) as f64)
                .dense()
                .ours(plan.variant())
                .prepared(prepare, None);
            bench.add(row.judged(right, sign))?;
        }
    }
    Ok(())
}

/// Whether C holds what it did plus a product, which was rounded once more than C was.
fn is_sum([c, start, product]: [f32; 3]) -> bool {
    let size = start.abs().max(product.abs()).max(c.abs());
    (c - (start + product)).abs() <= size / 64.0
}
