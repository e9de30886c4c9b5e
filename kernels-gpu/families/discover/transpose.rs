//! Transpose of a matrix of 2-byte elements: a tile of 128 x 64 passes through swizzled shared memory, with 16-byte
//! accesses on both sides. `ldmatrix.trans` gives a lane pairs of vertically adjacent elements of a column. The lane
//! addresses select the rows of an 8 x 8 matrix. They are chosen so that a lane's four pairs are eight neighbors in a
//! row of the transpose.

use crate::device::prelude::*;
use crate::families::discover::abi::*;

impl TransposeTile {
    /// Loads eight elements of a row from `column` on; zeros outside the matrix, except past the columns of a row.
    #[inline(always)]
    fn vector(p: &TransposeParams, source: u64, row: u32, column: u32) -> [u32; 4] {
        let inside = row < p.rows && column < p.columns;
        let at = source + row as u64 * p.row_bytes + column as u64 * 2;
        if p.flags & TRANSPOSE_VECTORS != 0 {
            return global::ld_no_allocate_v4(at, inside);
        }
        let mut words = [0; 4];
        unroll!(w < 4, {
            unroll!(i < 2, {
                let place = 2 * w as u32 + i as u32;
                let valid = row < p.rows && column + place < p.columns;
                let half = global::ld_cg_b16(at + place as u64 * 2, valid);
                words[w] |= half << (16 * i);
            });
        });
        words
    }

    /// Copies the tile at this corner to shared memory: eight lanes per row.
    #[inline(always)]
    fn fetch(p: &TransposeParams, source: u64, [top, left]: [u32; 2]) {
        let (row, chunk) = (gpu::thread() / 8, gpu::thread() % 8);
        let mut raw = [[0u32; 4]; 4];
        unroll!(i < 4, {
            raw[i] = Self::vector(p, source, top + row + i as u32 * 32, left + chunk * 8);
        });
        unroll!(i < 4, {
            let place = transpose_place(row + i as u32 * 32, chunk);
            copy::st_shared_v4(copy::dynamic_shared() + place, raw[i]);
        });
    }

    /// Stores the columns of the tile: eight per warp, 256 bytes each.
    #[inline(always)]
    fn store(p: &TransposeParams, out: u64, [top, left]: [u32; 2]) {
        let (chunk, lane) = (gpu::thread() / 32, gpu::thread() % 32);
        // The row of this lane's `ldmatrix` address: row `lane % 8` of matrix `lane / 8`.
        let (of, r) = (lane / 8, lane % 8);
        let given = r / 2 * 8 + of * 2 + r % 2;
        let column = left + chunk * 8 + lane / 4;
        let row = top + lane % 4 * 8;
        let line = out + column as u64 * p.out_row_bytes + row as u64 * 2;
        // All `ldmatrix` precede the predicated stores: `ldmatrix` requires the whole warp.
        let mut eights = [[0u32; 4]; 4];
        unroll!(i < 4, {
            let place = transpose_place(given + i as u32 * 32, chunk);
            eights[i] = matrix::ldmatrix_x4_trans(copy::dynamic_shared() + place);
        });
        unroll!(i < 4, {
            if column < p.columns && row + (i as u32 * 32) < p.rows {
                global::st_v4(line + i as u64 * 64, eights[i]);
            }
        });
    }
}

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, TransposeParams> for TransposeTile {
    #[inline(always)]
    unsafe fn run(p: &TransposeParams, _: u64) {
        let item = gpu::block_y() as u64;
        let (down, across) = p.across.of(gpu::block_x());
        let corner = [down * TRANSPOSE_ROWS, across * TRANSPOSE_COLUMNS];
        let source = p.source + item * p.rows as u64 * p.row_bytes;
        let out = p.out + item * p.columns as u64 * p.out_row_bytes;
        grid::launch_dependents();
        grid::wait_dependency();
        Self::fetch(p, source, corner);
        gpu::sync_threads();
        Self::store(p, out, corner);
    }
}
