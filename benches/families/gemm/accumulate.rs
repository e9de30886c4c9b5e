//! `C += A B` next to `C = A B`, to measure the cost of accumulation. C must be read once more. `note` states which of
//! the two a row is.

use crate::prelude::*;
use einsparse::formats::{Bsr, BsrPattern, generate};
use std::sync::Arc;

pub const OP: &str = "accumulate";

const EXTENT: usize = 4096;
/// Edges of blocks, and their density.
const CASES: [(usize, f64); 4] = [(128, 0.1), (64, 0.1), (32, 0.1), (16, 0.05)];
/// Stride of the checked rows and columns of C.
const CHECKED: usize = 499;

/// Operands, and the initial C.
struct Values {
    pattern: Arc<BsrPattern>,
    a: Vec<bf16>,
    b: Vec<bf16>,
    start: Vec<bf16>,
}

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
            (0..count).map(|_| bf16::from_f32(rng.random_range(-1.0..1.0))).collect()
        };
        let values = Values {
            pattern: Arc::new(pattern),
            a: draw(slots),
            b: draw(EXTENT * EXTENT),
            start: draw(EXTENT * EXTENT),
        };
        let a = Bsr::new(Arc::clone(&values.pattern), values.a.clone())?;
        let a = bench.context.upload(a)?;
        let b = bench.tensor(&[EXTENT; 2], values.b.clone())?;
        for sign in ["=", "+="] {
            let mut c = bench.tensor(&[EXTENT; 2], values.start.clone())?;
            let expression = format!("C[m,n] {sign} A[m,k] * B[k,n]");
            let operands = [("A", (&a).into()), ("B", (&b).into())];
            let (plan, prepare) =
                bench.plan::<bf16, bf16>(&expression, &operands, &Options::default())?;
            bench.once(|| plan.run(&operands, &mut c, &bench.stream))?;
            let right = values.are_right(c.to_dense()?.values(), sign == "+=");
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

impl Values {
    /// Whether some elements of C equal the expected sums, up to bf16 rounding.
    fn are_right(&self, c: &[bf16], added: bool) -> bool {
        let (bm, bk) = self.pattern.block();
        let places = (0..EXTENT).step_by(CHECKED);
        places.clone().all(|row| {
            let offsets = &self.pattern.offsets()[row / bm..];
            places.clone().all(|column| {
                let at = row * EXTENT + column;
                let mut sum = Sum::default();
                if added {
                    sum.add(self.start[at].to_f64());
                }
                for p in offsets[0] as usize..offsets[1] as usize {
                    let first = self.pattern.columns()[p] as usize * bk;
                    for i in 0..bk {
                        let a = self.a[(p * bm + row % bm) * bk + i].to_f64();
                        sum.add(a * self.b[(first + i) * EXTENT + column].to_f64());
                    }
                }
                (c[at].to_f64() - sum.value).abs() <= 2e-3 * f64::max(sum.size, 1.0)
            })
        })
    }
}
