//! Products with micro-tiles and more tiles than multiprocessors. A thread block computes several tiles, with lists of
//! all lengths in sequence. Exact on integers.

use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Scalar, Stream, Tensor};

use super::matmul::integers;
use crate::support::dense::{nan, strided};
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

fn poisoned<T: Scalar>(context: &Context, rows: usize, room: usize) -> Tensor<T> {
    strided(context, &nan(&[rows, COLUMNS]), room, T::ONE)
}

fn multiplies<T: Scalar>(context: &Context, height: usize, stream: &Stream) {
    // The last panel is partial.
    let rows = PANELS * height - 8;
    let b = integers::<T>([DEPTH, COLUMNS], 5);
    let b_there = context.upload_dense(&b).unwrap();
    let product = Skipping { height, ..LEFT }.plan::<T>(context, [rows, DEPTH, COLUMNS]);
    // A C whose rows are not aligned is stored element by element.
    for (turn, room) in [(0, COLUMNS), (1, COLUMNS + 24), (2, COLUMNS + 3)] {
        let a = context.upload_dense(&mixed::<T>(rows, height, turn));
        let mut c = poisoned::<T>(context, rows, room);
        product.run([&a.unwrap(), &b_there], &mut c, stream).unwrap();
        stream.synchronize().unwrap();
        check(&c, &b, (height, turn));
    }
}

#[test]
fn dynamic_product_of_many_tiles() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    for height in [128, 64, 32] {
        multiplies::<f16>(&gpu, height, &stream);
    }
    multiplies::<bf16>(&gpu, 128, &stream);
}

#[test]
fn turned_product_of_many_tiles() {
    let Some(gpu) = gpu() else { return };
    let rows = PANELS * 64 - 8;
    let b = integers::<f16>([DEPTH, COLUMNS], 5);
    let b_there = gpu.upload_dense(&b).unwrap();
    let product = TRANSPOSED.plan::<f16>(&gpu, [rows, DEPTH, COLUMNS]);
    for turn in 0..3 {
        let a = mixed::<f16>(rows, 64, turn);
        let at = |i: &[usize]| a.values()[i[1] * DEPTH + i[0]];
        let a = Dense::from_fn(vec![DEPTH, rows], at).unwrap();
        let a = gpu.upload_dense(&a).unwrap();
        let mut c = poisoned::<f16>(&gpu, rows, COLUMNS);
        finish(&gpu, |stream| product.run([&a, &b_there], &mut c, stream));
        check(&c, &b, (64, turn));
    }
}
