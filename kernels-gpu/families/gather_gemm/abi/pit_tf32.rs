//! Module `pit_tf32`: the products of `pit` for f32 operands rounded to TF32, computed transposed as `C^T = B^T A^T`.
//! `wgmma` reads operands of 4 bytes from shared memory only if they are contiguous along k. Micro-tiles are packed
//! that way. Rows of B are gathered untransposed and pass through registers.

use core::marker::PhantomData;

use crate::abi::{AtomInfo, CpAsync, LoaderInfo, MmaSync, PANEL_BYTES, Tile, Tma, Wgmma};

/// Micro-tiles of a stage.
pub const PIT_TF32_DEPTH: usize = PANEL_BYTES / 4;
/// Columns of a piece of a stage's rows of B.
pub const PIT_TF32_PIECE: usize = PANEL_BYTES / 4;
/// Tile of `pit_tf32`: `MT` rows by 256 columns, half of them for each of two warpgroups. Its parameters are
/// [`PitParams`](super::PitParams) with A's packed values as a matrix: one row for each row of A, `stride` values wide.
#[derive(Clone, Copy, Debug)]
pub struct PitWords<const MT: usize, A = Wgmma, L = Tma>(PhantomData<(A, L)>);

impl<const MT: usize, A: AtomInfo, L: LoaderInfo> PitWords<MT, A, L> {
    /// Blocks of 64 columns of a warpgroup. Without `setmaxnreg` a consumer thread has registers for 64 accumulators:
    /// with 128 rows a tile has half as many columns.
    pub const BLOCKS: usize = if MT == 128 && !A::ASYNCHRONOUS { 1 } else { 2 };
    /// Columns of C of a thread block.
    pub const ACROSS: usize = 128 * Self::BLOCKS;
    /// Bytes of A in a stage.
    pub const A_BYTES: usize = MT * PANEL_BYTES;
    /// Bytes of a piece: 32 rows of B by 32 columns.
    pub const PIECE: usize = PIT_TF32_DEPTH * PANEL_BYTES;
    /// Offset of B in a stage. With fewer than 64 rows `wgmma` also reads part of B as A; those accumulators are not
    /// stored.
    pub const B_AT: usize = Self::A_BYTES;
    /// Bytes of a stage.
    pub const STAGE: usize = Self::B_AT + Self::ACROSS / PIT_TF32_PIECE * Self::PIECE;
    /// Stages of the ring.
    pub const STAGES: usize = match (A::ASYNCHRONOUS, MT) {
        (true, 128) => 4,
        (true, 64) => 5,
        (true, _) => 6,
        // Limit: 99 KB of shared memory.
        (false, 128) => 3,
        (false, _) => 2,
    };
    /// Arrivals that fill a stage: every producer thread, and TMA if it copies A.
    pub const ARRIVALS: u32 = super::PIT_PRODUCER_THREADS + L::BY_ONE as u32;
    /// Offset of the barriers: full and empty for each stage.
    pub const BARRIERS: usize = Self::STAGES * Self::STAGE;
}

impl<const MT: usize, A: AtomInfo, L: LoaderInfo> Tile for PitWords<MT, A, L> {
    const THREADS: u32 = 256 + super::PIT_PRODUCER_THREADS;
    const NEEDS: u32 = A::NEEDS | L::NEEDS;
    const STANDS_IN: bool = !A::ASYNCHRONOUS;
    const COLUMNS: u32 = Self::ACROSS as u32;
    const BURST: u32 = Self::STAGES as u32;
    const BLOCK: (u32, u32) = (MT as u32, 1);
    const SHARED_BYTES: u32 = (Self::BARRIERS + Self::STAGES * 16) as u32;
    const ACCESS: u32 = 16;
}

const _: () = assert!(PitWords::<128>::BARRIERS + 96 <= 227 << 10);
const _: () = assert!(PitWords::<64>::BARRIERS + 96 <= 227 << 10);
const _: () = assert!(PitWords::<32>::BARRIERS + 96 <= 227 << 10);
// Max shared memory of a thread block on GPUs of compute capability 8.6, 8.9 and 12.0.
const _: () = assert!(PitWords::<128, MmaSync, CpAsync>::SHARED_BYTES <= 99 << 10);
const _: () = assert!(PitWords::<64, MmaSync, CpAsync>::SHARED_BYTES <= 99 << 10);
// Tiles that `wgmma` reads must begin at a multiple of the swizzle's period.
const _: () = assert!(PitWords::<32>::STAGE.is_multiple_of(1024));

/// Returns the offset of 16-byte chunk `chunk` of row `row` of a piece. The lanes of a fragment read two neighbouring
/// chunks of four rows, four words of each, from 32 different banks. They then hold neighbouring columns, so a row of C
/// is stored in whole sectors.
pub const fn pit_tf32_place(row: u32, chunk: u32) -> u32 {
    let turn = row % 4 * 2 + row / 4 % 2;
    row * PANEL_BYTES as u32 + (chunk ^ turn) * 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frag;

    /// Each fragment load reads every bank once, for any warp, register and step. The eight lanes that copy a row's
    /// chunks fill the row.
    #[test]
    fn fragments_read_every_bank_once() {
        for step in 0..4 {
            for r in 0..4 {
                for first in [0, 16] {
                    let mut banks = 0u32;
                    for lane in 0..32 {
                        let (g, k) = frag::a_k8(lane, r);
                        let column = first + g;
                        let at = pit_tf32_place(step * 8 + k, column / 4) + column % 4 * 4;
                        banks |= 1 << (at / 4 % 32);
                    }
                    assert_eq!(banks, u32::MAX, "step {step}, register {r}");
                }
            }
        }
        for row in 0..32 {
            let mut chunks = 0u32;
            for chunk in 0..8 {
                let at = pit_tf32_place(row, chunk);
                assert_eq!(at / 128, row);
                chunks |= 1 << (at / 16 % 8);
            }
            assert_eq!(chunks, 0xff);
        }
    }
}
