//! Shared-memory tiles of `mma.sync` kernels: layout of a stage, and how lanes load fragments.

use super::shared::Shared;
use crate::abi::PANEL_BYTES;
use crate::frag;

/// Tile of A: `B` rows of [`PANEL_BYTES`] with swizzled 16-byte chunks.
#[derive(Clone, Copy)]
pub struct ATile(pub Shared<u8>);

impl ATile {
    /// Shared address of a 16-byte chunk.
    #[inline(always)]
    pub fn chunk(self, row: u32, chunk: u32) -> Shared<[u32; 4]> {
        self.0.bytes(frag::swizzle(row, chunk, PANEL_BYTES as u32)).cast()
    }

    /// Loads the fragment of 16 rows from `row` on and the 32 bytes of k-step `step`.
    #[inline(always)]
    pub fn fragment(self, row: u32, step: u32, lane: u32) -> [u32; 4] {
        let (r, c) = frag::ldmatrix_x4(lane);
        self.chunk(row + r, step * 2 + c).ldmatrix()
    }
}

/// Tile of B with rows along k. Rows of 16-bit elements are swizzled, rows of 32-bit elements are padded.
#[derive(Clone, Copy)]
pub struct BTile<const ROW_BYTES: usize>(pub Shared<u8>);

impl<const ROW_BYTES: usize> BTile<ROW_BYTES> {
    /// Shared address of a 16-byte chunk.
    #[inline(always)]
    pub fn chunk(self, row: u32, chunk: u32) -> Shared<[u32; 4]> {
        let byte = if ROW_BYTES.is_multiple_of(128) {
            frag::swizzle(row, chunk, ROW_BYTES as u32)
        } else {
            row * ROW_BYTES as u32 + chunk * 16
        };
        self.0.bytes(byte).cast()
    }

    /// Loads fragments of 16-bit elements: two n8 atoms from column `column` on, k-step `step` of 16 rows.
    #[inline(always)]
    pub fn fragment_b16(self, step: u32, column: u32, lane: u32) -> [[u32; 2]; 2] {
        let (r, c) = frag::ldmatrix_x4(lane);
        let [a, b, c, d] = self.chunk(step * 16 + r, column / 8 + c).ldmatrix_trans();
        [[a, b], [c, d]]
    }

    /// Loads the fragment of 32-bit elements: the n8 atom from column `column` on, k-step `step` of 8 rows.
    #[inline(always)]
    pub fn fragment_b32(self, step: u32, column: u32, lane: u32) -> [u32; 2] {
        let word = |r: u32| {
            let (k, n) = frag::b_k8(lane, r);
            self.0.bytes((step * 8 + k) * ROW_BYTES as u32).cast::<u32>().at(column + n).ld()
        };
        [word(0), word(1)]
    }
}
