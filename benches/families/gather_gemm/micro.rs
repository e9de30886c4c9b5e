//! Shared code of benches with micro-tiles: operands with a share of empty tiles, and kernels with dynamic detection.

use crate::prelude::*;
use einsparse::dynamic::{Dynamic, SparsityHint};

/// Rows and columns of every matrix.
pub const EXTENT: usize = 4096;
/// Shares of empty micro-tiles, in percent.
pub const EMPTY: [u32; 4] = [0, 50, 90, 95];

/// Returns a random matrix with this share of empty micro-tiles, and the number of nonempty ones.
pub fn sample<T: Scalar>((h, w): (usize, usize), empty: u32) -> Result<(Dense<T>, usize)> {
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut values = vec![T::ZERO; EXTENT * EXTENT];
    let mut full = 0;
    for top in (0..EXTENT).step_by(h) {
        for left in (0..EXTENT).step_by(w) {
            if rng.random_range(0..100) < empty {
                continue;
            }
            full += 1;
            for row in top..top + h {
                for column in left..left + w {
                    // Uniform, of variance 1 and never 0.
                    let x = rng.random_range(0.01..1.73) * if rng.random() { 1.0 } else { -1.0 };
                    values[row * EXTENT + column] = T::from_f64(x);
                }
            }
        }
    }
    let dense = Dense::new([EXTENT, EXTENT], values)?;
    Ok((dense, full))
}

/// Indices of `count` checked rows.
pub fn checked(count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |i| i * (EXTENT / count) + i * 7)
}

/// Row of a square product with `entries` nonzero elements in A.
pub fn row(op: &str, workload: String, entries: usize, dtype: Dtype) -> Row {
    Row::new(op, workload, [EXTENT; 3], entries, dtype)
        .flops(2.0 * (entries * EXTENT) as f64)
        .dense()
}

/// Operand for which kernels of all micro-tiles are offered.
pub fn dynamic<T: Scalar>(tensor: &Tensor<T>) -> Operand<'_, T> {
    Dynamic::new(tensor).expecting(SparsityHint::MicroTiles(0.01)).into()
}

/// Options that force the kernel of these micro-tiles, such as `128x1`, for a product with a [`dynamic`] operand. The
/// kernel for few rows is named `few`.
pub fn skipping<T: Scalar>(
    bench: &Bench<'_>,
    text: &str,
    operands: &[(&str, Operand<'_, T>)],
    (micro, options): (&str, Options),
) -> Result<Options> {
    let (all, _) = bench.plan::<T, T>(text, operands, &options)?;
    let is_asked = |name: &&str| match micro {
        "few" => name.starts_with("pit_few"),
        _ => name.starts_with("pit_") && name.ends_with(&format!("_{micro}")),
    };
    let mut names = all.choice().candidates().map(|(name, _)| name);
    let name = names.find(is_asked).ok_or_else(|| format!("no kernel of {micro}: {all}"))?;
    Ok(options.variant(name))
}
