//! Choice between a dense kernel and micro-tiles of 128, 64 and 32 rows, by the expected density. Measures its loss
//! against the best kernel, for several kinds of patterns.

use crate::families::gather_gemm::micro::EXTENT;
use crate::prelude::*;
use einsparse::dynamic::{Dynamic, SparsityHint};
use einsparse::{Determinism, Plan};

pub const OP: &str = "pit_choice";

/// Height of the groups of rows in a column that are zero or nonzero together, and the share of nonzero groups.
const PATTERNS: &[(usize, f64)] = &[
    (4096, 0.5),
    (4096, 0.05),
    (128, 0.95),
    (128, 0.7),
    (128, 0.5),
    (128, 0.2),
    (128, 0.05),
    (64, 0.5),
    (64, 0.3),
    (64, 0.1),
    (64, 0.03),
    (32, 0.5),
    (32, 0.2),
    (32, 0.05),
    (32, 0.01),
    (1, 0.1),
    (1, 0.01),
    (1, 0.002),
    (1, 0.0005),
];

/// Columns of B.
const COLUMNS: [usize; 2] = [4096, 512];

fn sample(height: usize, share: f64) -> Result<Dense<f16>> {
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut values = vec![f16::ZERO; EXTENT * EXTENT];
    for top in (0..EXTENT).step_by(height) {
        for column in 0..EXTENT {
            if rng.random_bool(share) {
                for row in top..top + height {
                    values[row * EXTENT + column] = f16::from_f32(rng.random_range(0.01..1.73));
                }
            }
        }
    }
    Ok(Dense::new([EXTENT, EXTENT], values)?)
}

/// Measures every pattern, and prints the mean and the max loss.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    let mut losses = Vec::new();
    for n in COLUMNS {
        let b = bench.filled(&[EXTENT, n], 1, 1.0)?;
        for &(height, share) in PATTERNS {
            let a = bench.upload(&sample(height, share)?)?;
            losses.push(case(bench, [&a, &b], (height, share))?);
        }
    }
    let worst = losses.iter().copied().fold(0.0, f64::max);
    let mean = losses.iter().map(|l| l.ln_1p()).sum::<f64>() / losses.len() as f64;
    let mean = mean.exp_m1() * 100.0;
    println!("{OP}: loss against the best: mean {mean:.1} %, worst {:.1} %", worst * 100.0);
    Ok(())
}

/// Times every kernel. Returns the loss of a plan's choice.
fn case(
    bench: &Bench<'_>,
    [a, b]: [&Tensor<f16>; 2],
    (height, share): (usize, f64),
) -> Result<f64> {
    let n = b.shape()[1];
    let mut c = bench.zeros::<f16>(&[EXTENT, n])?;
    let plan = |a: Operand<'_, f16>, variant: Option<&str>| -> Result<Plan<f16>> {
        let options = forced(variant).determinism(Determinism::Relaxed);
        Ok(bench.plan(SPMM, &ab(a, b), &options)?.0)
    };
    let mut kernels = Vec::new();
    let named = ["pit_f16_128x1", "pit_f16_64x1", "pit_f16_32x1"];
    for variant in [None].into_iter().chain(named.map(Some)) {
        let operand: Operand<'_, f16> = match variant {
            None => a.into(),
            Some(_) => Dynamic::new(a).into(),
        };
        let plan = plan(operand.clone(), variant)?;
        let operands = ab(operand, b);
        let times = bench.measure(|| plan.run(&operands, &mut c, &bench.stream))?;
        kernels.push((plan.variant(), times));
    }
    // A group of at least 128 rows fills micro-tiles of every height. Taller micro-tiles hold several smaller groups,
    // and are nonempty as if single elements with this share were nonzero.
    let expected = match height {
        128.. => SparsityHint::MicroTiles(share),
        _ => SparsityHint::Elements(1.0 - (1.0 - share).powf(1.0 / height as f64)),
    };
    let taken = plan(Dynamic::new(a).expecting(expected).into(), None)?.variant();
    let cold = kernels.iter().map(|(_, times)| times.cold);
    let best = cold.fold(f64::INFINITY, f64::min);
    let own = kernels.iter().find(|(name, _)| *name == taken);
    let loss = own.map_or(f64::NAN, |(_, times)| times.cold) / best - 1.0;
    let nnz = (share * (EXTENT * EXTENT) as f64) as usize;
    let workload = format!("micro{height}x1-d{share}");
    let row = Row::new(OP, &workload, [EXTENT, EXTENT, n], nnz, Dtype::F16).dense();
    for (variant, times) in &kernels {
        let row = row.clone().ours(*variant).timed(times);
        bench.add(match *variant == taken {
            true => row.note(format!("selected, {:.1} % over the best", loss * 100.0)),
            false => row,
        })?;
    }
    Ok(loss)
}
