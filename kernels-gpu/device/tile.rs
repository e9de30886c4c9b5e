//! Shared-memory tiles of `mma.sync` kernels: layout of a stage, and how lanes load fragments.

use super::ptx::{copy, matrix};
use crate::abi::PANEL_BYTES;
use crate::frag;

/// Tile of A: `B` rows of [`PANEL_BYTES`] with swizzled 16-byte chunks.
#[derive(Clone, Copy)]
pub struct ATile(pub u32);

impl ATile {
    /// Shared address of a 16-byte chunk.
    #[inline(always)]
    pub fn chunk(self, row: u32, chunk: u32) -> u32 {
        self.0 + frag::swizzle(row, chunk, PANEL_BYTES as u32)
    }

    /// Loads the fragment of 16 rows from `row` on and the 32 bytes of k-step `step`.
    #[inline(always)]
    pub fn fragment(self, row: u32, step: u32, lane: u32) -> [u32; 4] {
        let (r, c) = frag::ldmatrix_x4(lane);
        matrix::ldmatrix_x4(self.chunk(row + r, step * 2 + c))
    }
}

/// Tile of B with rows along k. Rows of 16-bit elements are swizzled, rows of 32-bit elements are padded.
#[derive(Clone, Copy)]
pub struct BTile<const ROW_BYTES: usize>(pub u32);

impl<const ROW_BYTES: usize> BTile<ROW_BYTES> {
    /// Shared address of a 16-byte chunk.
    #[inline(always)]
    pub fn chunk(self, row: u32, chunk: u32) -> u32 {
        if ROW_BYTES.is_multiple_of(128) {
            self.0 + frag::swizzle(row, chunk, ROW_BYTES as u32)
        } else {
            self.0 + row * ROW_BYTES as u32 + chunk * 16
        }
    }

    /// Loads fragments of 16-bit elements: two n8 atoms from column `column` on, k-step `step` of 16 rows.
    #[inline(always)]
    pub fn fragment_b16(self, step: u32, column: u32, lane: u32) -> [[u32; 2]; 2] {
        let (r, c) = frag::ldmatrix_x4(lane);
        let [a, b, c, d] = matrix::ldmatrix_x4_trans(self.chunk(step * 16 + r, column / 8 + c));
        [[a, b], [c, d]]
    }

    /// Loads the fragment of 32-bit elements: the n8 atom from column `column` on, k-step `step` of 8 rows.
    #[inline(always)]
    pub fn fragment_b32(self, step: u32, column: u32, lane: u32) -> [u32; 2] {
        let word = |r: u32| {
            let (k, n) = frag::b_k8(lane, r);
            copy::ld_shared_b32(self.0 + (step * 8 + k) * ROW_BYTES as u32 + (column + n) * 4)
        };
        [word(0), word(1)]
    }
}
