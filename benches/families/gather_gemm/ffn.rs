//! Second product of a feed-forward layer with ReLU, 20480 -> 5120 (a model of 13 billion parameters). Most rows of its
//! weights meet only zeros: 95 % for one token, 90 % for 32 and for 512. Times include the detection. The baseline is
//! dense cuBLAS.
//!
//! `nnz` is the elements of the nonempty columns; rates count only these.

use super::micro::{found, whole, worst_error};
use crate::prelude::*;

pub const OP: &str = "ffn";
/// Hidden activations, and outputs.
const HIDDEN: usize = 20_480;
const OUTPUTS: usize = 5120;
/// Tokens, and percentage of used rows of the weights.
const CASES: [(usize, usize); 3] = [(1, 5), (32, 10), (512, 10)];
/// Max number of checked rows of a product.
const CHECKED: usize = 4;

/// Values of mean 0 and variance 1, drawn from a pool of 4096, because millions are needed.
fn values<T: Scalar>(count: usize, rng: &mut StdRng) -> Vec<T> {
    let pool: Vec<T> = (0..4096).map(|_| T::from_f64(rng.random_range(-1.73..1.73))).collect();
    let mut state = rng.random::<u64>() | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        pool[(state >> 20) as usize % 4096]
    };
    (0..count).map(|_| next()).collect()
}

/// Activations after a ReLU. Exactly `percent` percent of the columns have an element above zero, and half of their
/// elements are above zero.
fn hidden<T: Scalar>(tokens: usize, percent: usize, rng: &mut StdRng) -> Result<Dense<T>> {
    let mut columns: Vec<usize> = (0..HIDDEN).collect();
    for i in 0..HIDDEN {
        let other = rng.random_range(i..HIDDEN);
        columns.swap(i, other);
    }
    let mut all = vec![T::ZERO; tokens * HIDDEN];
    for &column in &columns[..HIDDEN * percent / 100] {
        let always = rng.random_range(0..tokens);
        for row in 0..tokens {
            if row == always || rng.random() {
                all[row * HIDDEN + column] = T::from_f64(rng.random_range(0.01..2.0));
            }
        }
    }
    Ok(Dense::new([tokens, HIDDEN], all)?)
}

pub fn run(bench: &Bench<'_>) -> Result<()> {
    products::<f16>(&bench.anew()?, Dtype::F16)?;
    products::<bf16>(&bench.anew()?, Dtype::Bf16)
}

fn products<T: Scalar>(bench: &Bench<'_>, dtype: Dtype) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(SEED + 6);
    let w = Dense::new([HIDDEN, OUTPUTS], values(HIDDEN * OUTPUTS, &mut rng))?;
    let w_there = bench.upload(&w)?;
    for (tokens, percent) in CASES {
        let a = hidden::<T>(tokens, percent, &mut rng)?;
        let both = [&bench.upload(&a)?, &w_there];
        let extents = [tokens, HIDDEN, OUTPUTS];
        let row = |times: &Times| row::<T>(extents, percent, times);
        let error = |c: &Tensor<T>| {
            let checked = tokens.min(CHECKED);
            let apart = tokens / checked;
            let rows = (0..checked).map(|i| i * apart + i % apart);
            worst_error(|i, k| a.values()[i * HIDDEN + k], &w, c, rows)
        };
        // One kernel detects and multiplies, if a micro-tile holds all tokens.
        let micro = if tokens <= 64 { "few" } else { "128x1" };
        found(bench, (micro, Options::default()), both, error, (row, ""))?;
        whole(bench, (dtype, extents, CuBlas::gemm), both, row)?;
    }
    Ok(())
}

fn row<T: Scalar>([m, k, n]: [usize; 3], percent: usize, times: &Times) -> Row {
    let used = k * percent / 100;
    let workload = format!("ffn-second-m{m}-e{}", 1.0 - percent as f64 / 100.0);
    // Min bytes: A, the used rows of the weights, and C.
    let bytes = (m * k + used * n + m * n) * size_of::<T>();
    Row::new(OP, workload, [m, k, n], m * used, T::DTYPE.name())
        .timed(times)
        .flops(2.0 * (m * used * n) as f64)
        .bytes(bytes as f64)
        .dense()
}
