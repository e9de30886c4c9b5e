//! Stages of the modules `sampled` and `sddmm_tiles`: two halves of X, then gathered columns of Y. Both modules multiply
//! the tiles of a work list, which is ordered by rounds.

use crate::device::prelude::*;

/// Index of this thread block's tile of a round.
#[inline(always)]
pub(super) fn index(round: u32) -> u64 {
    (round * gpu::grid_x() + gpu::block_x()) as u64
}

/// Threads that copy.
#[inline(always)]
pub(super) fn team() -> Team {
    Team { thread: gpu::thread() % PRODUCER_THREADS, threads: PRODUCER_THREADS }
}

/// Index of the copy whose position this thread holds. If a thread starts a copy, neighbouring copies belong to
/// different warps: the lanes of a warp start theirs one after the other.
#[inline(always)]
pub(super) fn own_copy<L: Loader>() -> u32 {
    let thread = gpu::opaque_thread() % PRODUCER_THREADS;
    if L::BY_ONE { thread % 32 * 4 + thread / 32 } else { thread % 32 }
}

/// Starts the copies of the ring's next stage, `bytes` bytes. `own`: this thread's copy, and the position of that
/// copy across k. `start` gets the stage, the number of a copy and its position.
#[inline(always)]
pub(super) fn fill<S: Stages, L: Loader>(
    ring: &mut Ring<S>,
    bytes: u32,
    copies: u32,
    [own, across]: [u32; 2],
    start: impl Fn(u32, u32, u32),
) {
    ring.fill::<L>(team().thread, bytes, |slot| {
        L::each(copies, across, |lane, across| {
            start(slot, if L::BY_ONE { own } else { lane }, across);
        });
    });
}

/// Descriptor of an operand for a step of 32 bytes along k. `row`: bytes of a row across k.
#[inline(always)]
pub(super) fn operand(smem: Shared<u8>, step: usize, along_k: bool, row: u32) -> u64 {
    if along_k {
        smem.bytes(step as u32 * 32).descriptor(PANEL_BYTES as u32, 16)
    } else {
        smem.bytes(step as u32 * 16 * row).descriptor(row, HALF as u32 * row)
    }
}

/// Multiplies all sums by the scalar.
#[inline(always)]
pub(super) fn scale<const CHUNKS: usize>(acc: &mut Acc<CHUNKS>, alpha: f32) {
    if alpha != 1.0 {
        unroll!(c < CHUNKS, most 4, {
            unroll!(j < 8, {
                unroll!(i < 4, { acc.0[c][4 * j + i] *= alpha });
            });
        });
    }
}
