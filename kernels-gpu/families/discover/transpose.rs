//! Transpose of a matrix of 2-byte elements: a tile of 128 x 64 passes through swizzled shared memory, with 16-byte
//! accesses on both sides. `ldmatrix.trans` gives a lane pairs of vertically adjacent elements of a column. The lane
//! addresses select the rows of an 8 x 8 matrix. They are chosen so that a lane's four pairs are eight neighbors in a
//! row of the transpose.

use crate::device::prelude::*;
use crate::families::discover::abi::*;
use crate::families::discover::elements::vector;

buffers! {
    // The product checks the shape of its operand, the source (`host/core/families/gather_gemm/found.rs`). `TransposeLaunch`
    // allocates the transposes, and sets `TRANSPOSE_VECTORS` for aligned rows (`host/core/families/discover/transpose.rs`).
    unsafe TransposeParams {
        source: u8, ReadWrite;
        out: u16, ReadWrite;
    }
}

/// Chunk `chunk` of row `row` in shared memory.
#[inline(always)]
fn chunk_of(row: u32, chunk: u32) -> Shared<[u32; 4]> {
    // SAFETY: `TransposeTile` has shared memory for all chunks of `TRANSPOSE_ROWS` rows.
    unsafe { Shared::dynamic(0) }.bytes(transpose_place(row, chunk))
}

impl TransposeTile {
    /// Copies the tile at this corner to shared memory: eight lanes per row.
    #[inline(always)]
    fn fetch(p: &TransposeParams, source: Global<u8, ReadWrite>, [top, left]: [u32; 2]) {
        let (row, chunk) = (gpu::thread() / 8, gpu::thread() % 8);
        let mut raw = [[0u32; 4]; 4];
        unroll!(i < 4, {
            let row = top + row + i as u32 * 32;
            let columns = (left + chunk * 8, p.columns, row < p.rows);
            let aligned = p.flags & TRANSPOSE_VECTORS != 0;
            let from = source.row(row, p.row_bytes);
            raw[i] = vector(from, columns, 16, aligned);
        });
        unroll!(i < 4, {
            chunk_of(row + i as u32 * 32, chunk).st(raw[i]);
        });
    }

    /// Stores the columns of the tile: eight per warp, 256 bytes each.
    #[inline(always)]
    fn store(p: &TransposeParams, out: Global<u16, ReadWrite>, [top, left]: [u32; 2]) {
        let (chunk, lane) = (gpu::thread() / 32, gpu::thread() % 32);
        // The row of this lane's `ldmatrix` address: row `lane % 8` of matrix `lane / 8`.
        let (of, r) = (lane / 8, lane % 8);
        let given = r / 2 * 8 + of * 2 + r % 2;
        let column = left + chunk * 8 + lane / 4;
        let row = top + lane % 4 * 8;
        let line = out.row(column, p.out_row_bytes).at(row);
        // All `ldmatrix` precede the predicated stores: `ldmatrix` requires the whole warp.
        let mut eights = [[0u32; 4]; 4];
        unroll!(i < 4, {
            eights[i] = chunk_of(given + i as u32 * 32, chunk).ldmatrix_trans();
        });
        unroll!(i < 4, {
            if column < p.columns && row + (i as u32 * 32) < p.rows {
                line.at(i as u64 * 32).cast::<[u32; 4]>().st(eights[i]);
            }
        });
    }
}

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, TransposeParams> for TransposeTile {
    #[inline(always)]
    unsafe fn run(p: &TransposeParams, _: Maps) {
        let item = gpu::block_y() as u64;
        let (down, across) = p.across.of(gpu::block_x());
        let corner = [down * TRANSPOSE_ROWS, across * TRANSPOSE_COLUMNS];
        let source = p.source().bytes(item * p.rows as u64 * p.row_bytes);
        let out = p.out().bytes(item * p.columns as u64 * p.out_row_bytes);
        grid::launch_dependents();
        grid::wait_dependency();
        Self::fetch(p, source, corner);
        gpu::sync_threads();
        Self::store(p, out, corner);
    }
}
