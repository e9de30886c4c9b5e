//! The `transpose` family: matrices of 2-byte elements to their transposes, one behind the other. What a product reads whose dense
//! operand has to have its summed axis first.

use super::{Divisor, Dtype, Tile};

/// Threads of a thread block.
pub const TRANSPOSE_THREADS: u32 = 256;
/// Rows of the matrix of a thread block: 256 bytes of a row of the transpose.
pub const TRANSPOSE_ROWS: u32 = 128;
/// Columns of the matrix of a thread block: 128 bytes.
pub const TRANSPOSE_COLUMNS: u32 = 64;

/// Rows of the matrix allow loads of 16 bytes.
pub const TRANSPOSE_VECTORS: u32 = 1;

/// A thread block for 128 x 64 elements. Six of them have 96 KB on the way to a multiprocessor; 32 KB would keep memory busy.
#[derive(Clone, Copy, Debug)]
pub struct TransposeTile;

impl Tile for TransposeTile {
    const THREADS: u32 = TRANSPOSE_THREADS;
    const MIN_BLOCKS: u32 = 6;
    const COLUMNS: u32 = TRANSPOSE_COLUMNS;
    const ITEMS: u32 = 1;
    const PARTS: u32 = 1;
    const BURST: u32 = 4;
    const BLOCK: (u32, u32) = (TRANSPOSE_ROWS, TRANSPOSE_COLUMNS);
    fn shared_bytes(_: Dtype) -> u32 {
        TRANSPOSE_ROWS * TRANSPOSE_COLUMNS * 2
    }
    fn vector(_: Dtype) -> u32 {
        1
    }
}

/// Byte of the 16-byte chunk `chunk` of row `row` in shared memory. The eight chunks of a row lie in eight bank groups, and so do
/// the same chunk of rows 0, 1, 8, 9, 16, 17, 24, 25 and of those two, four and six further: what is read at once.
pub const fn transpose_place(row: u32, chunk: u32) -> u32 {
    let swizzled = chunk ^ (row / 8 % 4 * 2 + row % 2);
    row * (TRANSPOSE_COLUMNS * 2) + swizzled * 16
}

/// Parameters of the `transpose` kernels. The second dimension of the grid are items of a batch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TransposeParams {
    /// The matrices, row-major.
    pub source: u64,
    /// Out: their transposes, row-major, zeros behind the last row's element up to a multiple of 8.
    pub out: u64,
    /// Bytes from one row of a matrix to the next.
    pub row_bytes: u64,
    /// Bytes from one row of a transpose to the next, a multiple of 16.
    pub out_row_bytes: u64,
    /// Thread blocks across the columns.
    pub across: Divisor,
    /// Rows of a matrix.
    pub rows: u32,
    /// Columns of a matrix.
    pub columns: u32,
    /// `TRANSPOSE_*`.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<TransposeParams>() == 56);

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Every chunk has a place of its own, and what eight lanes write or read at once lies in eight bank groups.
    #[test]
    fn places_are_apart() {
        let all: BTreeSet<u32> = (0..TRANSPOSE_ROWS)
            .flat_map(|row| (0..8).map(move |chunk| transpose_place(row, chunk)))
            .collect();
        assert_eq!(all.len() as u32, TRANSPOSE_ROWS * 8);
        assert!(
            all.iter()
                .all(|at| *at < TransposeTile::shared_bytes(Dtype::F16))
        );
        let groups = |places: Vec<u32>| {
            places
                .iter()
                .map(|at| at / 16 % 8)
                .collect::<BTreeSet<_>>()
                .len()
        };
        for row in 0..TRANSPOSE_ROWS {
            assert_eq!(
                groups((0..8).map(|chunk| transpose_place(row, chunk)).collect()),
                8
            );
        }
        for chunk in 0..8 {
            for first in (0..TRANSPOSE_ROWS).filter(|row| row % 32 < 8 && row % 2 == 0) {
                let rows = (0..8).map(|r| first + r / 2 * 8 + r % 2);
                assert_eq!(
                    groups(rows.map(|row| transpose_place(row, chunk)).collect()),
                    8
                );
            }
        }
    }
}
