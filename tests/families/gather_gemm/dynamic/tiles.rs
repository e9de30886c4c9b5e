//! Products with micro-tiles and more tiles than multiprocessors. A thread block computes several tiles, with lists of
//! all lengths in sequence. Exact on integers.

use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Scalar, Tensor};

use super::HEIGHTS;
use crate::support::dense::{integers, nan, strided};
use crate::support::gpu;
use crate::support::runs::finish;
use crate::support::skipping::{LEFT, Skipping, TRANSPOSED};

/// Number of panels; tiles have 256 columns, the last one fewer. They fill three rounds of 132 multiprocessors and part
/// of a fourth.
const PANELS: usize = 30;
const COLUMNS: usize = 14 * 256 - 8;
const DEPTH: usize = 400;

/// Number of micro-tiles of a panel: none, one, whole stages of 64, one more, and all.
const LENGTHS: [usize; 8] = [0, 1, 64, 65, 128, 260, DEPTH, 15];

/// Returns the nonzero columns of A in a panel, spread evenly.
fn used(panel: usize, turn: usize) -> Vec<usize> {
    let count = LENGTHS[(panel + turn) % LENGTHS.len()];
    (0..count).map(|i| i * DEPTH / count).collect()
}

fn element(row: usize, column: usize) -> f64 {
    ((row * 7 + column * 3) % 4) as f64 - 1.5
}

/// Returns a matrix of full and empty micro-tiles of `height` rows.
fn mixed<T: Scalar>(rows: usize, height: usize, turn: usize) -> Dense<T> {
    let mut values = vec![T::ZERO; rows * DEPTH];
    for row in 0..rows {
        for column in used(row / height, turn) {
            values[row * DEPTH + column] = T::from_f64(2.0 * element(row, column));
        }
    }
    Dense::new(vec![rows, DEPTH], values).unwrap()
}

/// Checks a sixteenth of each panel's rows, different ones in each, and that all others were stored.
fn check<T: Scalar>(c: &Tensor<T>, b: &Dense<T>, (height, turn): (usize, usize)) {
    let c = c.to_dense().unwrap();
    for (row, found) in c.values().chunks(COLUMNS).enumerate() {
        let panel = row / height;
        if !(row * 5 + panel).is_multiple_of(16) {
            let empty = found.iter().position(|x| x.to_f64().is_nan());
            assert_eq!(empty, None, "{} x 1, turn {turn}: row {row}", height);
            continue;
        }
        let mut sums = vec![0.0; COLUMNS];
        for column in used(panel, turn) {
            let factor = 2.0 * element(row, column);
            let line = &b.values()[column * COLUMNS..][..COLUMNS];
            for (sum, x) in sums.iter_mut().zip(line) {
                *sum += factor * x.to_f64();
            }
        }
        for (j, (found, wanted)) in found.iter().zip(sums).enumerate() {
            assert!(
                *found == T::from_f64(wanted),
                "{} {height} x 1, turn {turn}: C[{row},{j}] is {found}, not {wanted}",
                T::NAME
            );
        }
    }
}

fn many_tiles<T: Scalar>(context: &Context, skipping: Skipping) {
    // The last panel is partial.
    let height = skipping.tile();
    let rows = PANELS * height - 8;
    let b = integers::<T>(&[DEPTH, COLUMNS], 5);
    let b_there = context.upload_dense(&b).unwrap();
    let product = skipping.plan::<T>(context, [rows, DEPTH, COLUMNS]);
    // A C whose rows are not aligned is stored element by element.
    for (turn, room) in [(0, COLUMNS), (1, COLUMNS + 24), (2, COLUMNS + 3)] {
        let [a, _] = skipping.stored([&mixed::<T>(rows, height, turn), &b]);
        let a = context.upload_dense(&a).unwrap();
        let room = if skipping.by_columns { COLUMNS } else { room };
        let mut c = strided(context, &nan(&[rows, COLUMNS]), room, T::ONE);
        finish(context, |stream| product.run([&a, &b_there], &mut c, stream));
        check(&c, &b, (height, turn));
    }
}

#[test]
fn products_of_many_tiles() {
    let Some(gpu) = gpu() else { return };
    for height in HEIGHTS {
        many_tiles::<f16>(&gpu, Skipping { height, ..LEFT });
    }
    many_tiles::<bf16>(&gpu, LEFT);
    many_tiles::<f16>(&gpu, TRANSPOSED);
}
