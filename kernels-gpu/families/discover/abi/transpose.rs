//! The module `transpose`: matrices of 2-byte elements to their transposes, one behind the other. What a product reads
//! whose dense operand has to have its summed axis first.

use crate::abi::{Divisor, Tile};

/// Threads of a thread block.
pub const TRANSPOSE_THREADS: u32 = 256;
/// Rows of the matrix of a thread block: 256 bytes of a row of the transpose.
pub const TRANSPOSE_ROWS: u32 = 128;
/// Columns of the matrix of a thread block: 128 bytes.
pub const TRANSPOSE_COLUMNS: u32 = 64;

/// Rows of the matrix allow loads of 16 bytes.
pub const TRANSPOSE_VECTORS: u32 = 1;

/// A thread block for 128 x 64 elements. Six of them have 96 KB on the way to a multiprocessor; 32 KB would keep memory
/// busy.
#[derive(Clone, Copy, Debug)]
pub struct TransposeTile;

impl Tile for TransposeTile {
    const THREADS: u32 = TRANSPOSE_THREADS;
    const MIN_BLOCKS: u32 = 6;
    const COLUMNS: u32 = TRANSPOSE_COLUMNS;
    const BURST: u32 = 4;
    const BLOCK: (u32, u32) = (TRANSPOSE_ROWS, TRANSPOSE_COLUMNS);
    const SHARED_BYTES: u32 = TRANSPOSE_ROWS * TRANSPOSE_COLUMNS * 2;
    const ACCESS: u32 = 1;
}

/// Byte of the 16-byte chunk `chunk` of row `row` in shared memory. The eight chunks of a row lie in eight bank groups,
/// and so do the same chunk of rows 0, 1, 8, 9, 16, 17, 24, 25 and of those two, four and six further: what is read at
/// once.
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

    /// Whether eight places lie in eight bank groups of 16 bytes.
    fn apart(place: impl Fn(u32) -> u32) -> bool {
        let groups = (0..8).fold(0u32, |seen, i| seen | 1 << (place(i) / 16 % 8));
        groups == 0xff
    }

    /// A row's chunks lie in its own 128 bytes, and what eight lanes write or read at once lies in eight bank groups.
    #[test]
    fn places_are_apart() {
        for row in 0..TRANSPOSE_ROWS {
            assert!((0..8).all(|chunk| transpose_place(row, chunk) / 128 == row));
            assert!(apart(|chunk| transpose_place(row, chunk)));
        }
        for chunk in 0..8 {
            for first in (0..TRANSPOSE_ROWS).filter(|row| row % 32 < 8 && row % 2 == 0) {
                let row = |r: u32| first + r / 2 * 8 + r % 2;
                assert!(apart(|r| transpose_place(row(r), chunk)));
            }
        }
    }

    /// Each lane's four pairs of rows of a transposed fragment are eight neighbours (`families/discover/transpose.rs`).
    #[test]
    fn pairs_of_a_lane_are_neighbours() {
        // Row `r` of matrix `of`, as lanes give it; a lane holds rows 2 t and 2 t + 1 of each matrix, t its number in
        // four.
        let given = |of: u32, r: u32| r / 2 * 8 + of * 2 + r % 2;
        for t in 0..4 {
            for of in 0..4 {
                for half in 0..2 {
                    assert_eq!(given(of, 2 * t + half), t * 8 + 2 * of + half);
                }
            }
        }
    }
}
