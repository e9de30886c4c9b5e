//! The kernels `transpose`: transposes a batch of contiguous matrices of 2-byte elements, for products whose dense
//! operand must have its summed axis first.

use crate::abi::{Divisor, Tile};

/// Threads in a thread block.
pub const TRANSPOSE_THREADS: u32 = 256;
/// Rows of the matrix per thread block: 256 bytes of a row of the transpose.
pub const TRANSPOSE_ROWS: u32 = 128;
/// Columns of the matrix per thread block: 128 bytes.
pub const TRANSPOSE_COLUMNS: u32 = 64;

/// Rows of the matrix allow loads of 16 bytes.
pub const TRANSPOSE_VECTORS: u32 = 1;

/// One thread block per 128 x 64 elements. Six of them have 96 KB in flight per SM; 32 KB are enough to saturate
/// memory.
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

/// Byte offset of the 16-byte chunk `chunk` of row `row` in shared memory. The eight chunks of a row are in eight bank
/// groups. So are the same chunks of rows 0, 1, 8, 9, 16, 17, 24, 25, which are read at once, and of those rows plus
/// two, four and six.
pub const fn transpose_place(row: u32, chunk: u32) -> u32 {
    let swizzled = chunk ^ (row / 8 % 4 * 2 + row % 2);
    row * (TRANSPOSE_COLUMNS * 2) + swizzled * 16
}

/// Parameters of the `transpose` kernels. The second dimension of the grid is the items of a batch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TransposeParams {
    /// The matrices, row-major.
    pub source: u64,
    /// Out: the transposes, row-major, with zeros after the element of the last row up to a multiple of 8.
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

    /// Whether eight offsets are in eight bank groups of 16 bytes.
    fn apart(place: impl Fn(u32) -> u32) -> bool {
        let groups = (0..8).fold(0u32, |seen, i| seen | 1 << (place(i) / 16 % 8));
        groups == 0xff
    }

    /// A row's chunks are in its own 128 bytes. Chunks that eight lanes write or read at once are in eight bank groups.
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

    /// Each lane's four pairs of rows of a transposed fragment are eight neighbors (`families/discover/transpose.rs`).
    #[test]
    fn pairs_of_a_lane_are_neighbours() {
        // Row `r` of matrix `of` in the order of lane addresses. A lane has rows 2 t and 2 t + 1 of each matrix, where
        // t is its index in four lanes.
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
