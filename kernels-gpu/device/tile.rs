//! Tiles of the kernels on `mma.sync` in shared memory: where a stage lies in dynamic shared memory, and how lanes read fragments.

use super::ptx::{copy, matrix};
use crate::abi::PANEL_BYTES;
use crate::frag;

/// A's tile of a stage: `B` rows of [`PANEL_BYTES`], 16-byte chunks swizzled.
#[derive(Clone, Copy)]
pub struct ATile(pub u32);

impl ATile {
    /// Shared address of a 16-byte chunk.
    #[inline(always)]
    pub fn chunk(self, row: u32, chunk: u32) -> u32 {
        self.0 + frag::swizzle(row, chunk, PANEL_BYTES as u32)
    }

    /// Fragment of the 16 rows from `row` and the 32 bytes of k-step `step`.
    #[inline(always)]
    pub fn fragment(self, row: u32, step: u32, lane: u32) -> [u32; 4] {
        let (r, c) = frag::ldmatrix_x4(lane);
        matrix::ldmatrix_x4(self.chunk(row + r, step * 2 + c))
    }
}

/// B's tile of a stage, rows along k. 16-bit rows are swizzled, 32-bit rows padded.
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

    /// 16-bit elements: fragments of the two n8 atoms from column `column`, k-step `step` of 16 rows.
    #[inline(always)]
    pub fn fragment_b16(self, step: u32, column: u32, lane: u32) -> [[u32; 2]; 2] {
        let (r, c) = frag::ldmatrix_x4(lane);
        let [a, b, c, d] = matrix::ldmatrix_x4_trans(self.chunk(step * 16 + r, column / 8 + c));
        [[a, b], [c, d]]
    }

    /// 32-bit elements: fragment of the n8 atom from column `column`, k-step `step` of 8 rows.
    #[inline(always)]
    pub fn fragment_b32(self, step: u32, column: u32, lane: u32) -> [u32; 2] {
        let word = |r: u32| {
            let (k, n) = frag::b_k8(lane, r);
            copy::ld_shared_b32(self.0 + (step * 8 + k) * ROW_BYTES as u32 + (column + n) * 4)
        };
        [word(0), word(1)]
    }
}
