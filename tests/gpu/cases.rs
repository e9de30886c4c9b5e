//! Shapes that every row of the table must run: empty, one element, a tile minus or plus a step, ragged, and split
//! rows.

use crate::support::rows::products_here;
use std::collections::BTreeSet;

use crate::support::{Rng, WIDEST, fill_blocks, small, spread};
use einsparse::formats::CsrPattern;

/// A pattern and the numbers of columns that it runs with.
pub struct Shape {
    pub class: &'static str,
    pub pattern: CsrPattern,
    pub widths: Vec<usize>,
}

pub const ZERO_ROWS: &str = "zero rows";
pub const ZERO_COLUMNS: &str = "zero columns of A";
pub const ONE: &str = "one by one";
pub const NO_ENTRIES: &str = "no entries";
pub const LADDER: &str = "rows of every length";
pub const RAGGED: &str = "a tile less, a tile, a tile more";
pub const CUT: &str = "one row with everything";

pub const CLASSES: [&str; 7] = [ZERO_ROWS, ZERO_COLUMNS, ONE, NO_ENTRIES, LADDER, RAGGED, CUT];

/// Odd widths and widths near powers of two. The tile edges of the table are added.
const WIDTHS: [usize; 20] =
    [0, 1, 2, 3, 4, 7, 8, 12, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257];
const FEW: [usize; 6] = [1, 8, 33, 64, 129, 256];
const VERY_FEW: [usize; 4] = [0, 8, 33, 256];

fn all_widths() -> Vec<usize> {
    if small() {
        return vec![0, 1, 8, 33, 64, 256];
    }
    let mut widths = BTreeSet::from(WIDTHS);
    // Without kernels of one column, which support no other width.
    for row in products_here().filter(|row| row.columns >= row.vector) {
        let (tile, step) = (row.columns as usize, row.vector as usize);
        widths.extend([tile - step, tile, tile + step]);
    }
    assert!(
        widths.last().is_some_and(|&w| w <= WIDEST),
        "a tile is wider than the problems of the suite"
    );
    widths.into_iter().collect()
}

fn few() -> Vec<usize> {
    if small() { vec![8, 33, 64] } else { FEW.to_vec() }
}

/// Unstructured patterns.
pub fn entries() -> Vec<Shape> {
    let shape = |class, lens: &[usize], cols, widths: &[usize]| Shape {
        class,
        pattern: spread(lens, cols),
        widths: widths.to_vec(),
    };
    let mut shapes = vec![
        shape(ZERO_ROWS, &[], 5, &VERY_FEW),
        shape(ZERO_COLUMNS, &[0; 5], 0, &VERY_FEW),
        shape(ONE, &[1], 1, &few()),
        shape(NO_ENTRIES, &[0; 9], 7, &few()),
        // 71 is prime: every length from 0 to 70 occurs once, and adjacent lengths differ.
        shape(LADDER, &std::array::from_fn::<_, 71, _>(|r| r * 37 % 71), 70, &all_widths()),
    ];
    let mut rng = Rng(9);
    let items = products_here().map(|row| row.items as usize);
    let edges: BTreeSet<usize> = items.flat_map(|i| [i - 1, i, i + 1]).collect();
    for rows in edges.into_iter().filter(|&rows| rows > 0) {
        let lens: Vec<usize> =
            (0..rows).map(|_| (rng.word() % 12).saturating_sub(2) as usize).collect();
        shapes.push(shape(RAGGED, &lens, 23, &few()));
    }
    // Sixteen parts, split at 2048 nonzeros.
    let long = if small() { 2500 } else { 5000 };
    shapes.push(shape(CUT, &[0, 1, long, 0, 3], long, &few()));
    shapes.push(shape(CUT, &[long, 3, long - 201, 0, 300], long, &VERY_FEW));
    shapes
}

/// Patterns of full blocks, some cut by the edge of the matrix.
pub fn blocks((bm, bk): (usize, usize)) -> Vec<Shape> {
    let shape = |class, lens: &[usize], cols: usize, cut: [usize; 2], widths: &[usize]| {
        let blocks = spread(lens, cols);
        let rows = (lens.len() * bm).saturating_sub(cut[0]);
        let cols = (cols * bk).saturating_sub(cut[1]);
        Shape {
            class,
            pattern: fill_blocks(&blocks, (bm, bk), rows, cols),
            widths: widths.to_vec(),
        }
    };
    // Longer than the depth of the copy pipeline, then longer than the length at which a block row is split.
    let longest = match bk {
        1 => 70,
        16 => 14,
        32 => 9,
        _ => 5,
    };
    let everything = 1200 / bk;
    let ladder: Vec<usize> = (0..=longest).collect();
    let mut shapes = vec![
        shape(ZERO_ROWS, &[], 2, [0, 0], &VERY_FEW),
        shape(ZERO_COLUMNS, &[0, 0], 0, [0, 0], &VERY_FEW),
        shape(ONE, &[1], 1, [bm - 1, bk - 1], &few()),
        shape(NO_ENTRIES, &[0; 3], 2, [0, bk.min(2) - 1], &few()),
        shape(LADDER, &ladder, longest, [5.min(bm - 1), 3.min(bk - 1)], &all_widths()),
    ];
    for rows in [bm - 1, bm, bm + 1] {
        let lens = vec![2; rows.div_ceil(bm)];
        shapes.push(shape(RAGGED, &lens, 2, [lens.len() * bm - rows, 0], &few()));
    }
    shapes.push(shape(
        CUT,
        &[0, everything, 1],
        everything,
        [bm.min(2) - 1, bk.min(2) - 1],
        &few(),
    ));
    shapes
}
