//! Second product of a feed-forward layer with ReLU, 20480 -> 5120 (a model of 13 billion parameters). Most rows of its
//! weights meet only zeros: 95 % for one token, 90 % for 32 and for 512. Times include the detection. The baseline is
//! dense cuBLAS.
//!
//! `nnz` is the elements of the nonempty columns; rates count only these.

use super::micro::{dynamic, skipping};
use crate::check::product_error;
use crate::prelude::*;
use rand::seq::SliceRandom;

pub const OP: &str = "ffn";
/// Hidden activations, and outputs.
const HIDDEN: usize = 20_480;
const OUTPUTS: usize = 5120;
/// Tokens, and percentage of used rows of the weights.
const CASES: [(usize, usize); 3] = [(1, 5), (32, 10), (512, 10)];
/// Max number of checked rows of a product.
const CHECKED: usize = 4;

/// Activations after a ReLU. Exactly `percent` percent of the columns have an element above zero, and half of their
/// elements are above zero.
fn hidden<T: Scalar>(tokens: usize, percent: usize, rng: &mut StdRng) -> Result<Dense<T>> {
    let mut columns: Vec<usize> = (0..HIDDEN).collect();
    columns.shuffle(rng);
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
    let w = values::dense::<T>(&[HIDDEN, OUTPUTS], 1, NORMAL);
    let w_there = bench.upload(&w)?;
    for (tokens, percent) in CASES {
        let a = hidden::<T>(tokens, percent, &mut rng)?;
        let a_there = bench.upload(&a)?;
        let used = HIDDEN * percent / 100;
        let workload = format!("ffn-second-m{tokens}-e{}", 1.0 - percent as f64 / 100.0);
        let extents = [tokens, HIDDEN, OUTPUTS];
        // Min bytes: A, the used rows of the weights, and C.
        let bytes = (tokens * (HIDDEN + OUTPUTS) + used * OUTPUTS) * size_of::<T>();
        let row = Row::new(OP, workload, extents, tokens * used, dtype)
            .flops(2.0 * (tokens * used * OUTPUTS) as f64)
            .bytes(bytes as f64)
            .dense();
        // One kernel detects and multiplies, if a micro-tile holds all tokens.
        let micro = if tokens <= 64 { "few" } else { "128x1" };
        let operands = ab(dynamic(&a_there), &w_there);
        let options = skipping(bench, SPMM, &operands, (micro, Options::default()))?;
        let own = row.clone().note("detection inside");
        bench.product::<T, T>(own, (SPMM, &options), &operands, |c| {
            let apart = tokens / tokens.min(CHECKED);
            let rows = (0..tokens.min(CHECKED)).map(|i| i * apart + i % apart);
            product_error(|i, k| a.values()[i * HIDDEN + k], w.values(), c, rows)
        })?;
        let both = [at(&a_there)?, at(&w_there)?];
        bench.whole(row.named("dense product"), (dtype, extents, Order::Rows), both)?;
    }
    Ok(())
}
