//! Starts of the values of stages, one lane for each stage.

use crate::device::prelude::*;
use crate::families::spmm::abi::*;

/// Stages whose starts a warp holds at once, one in each lane.
pub(super) const AHEAD: u32 = BIT_AHEAD as u32;

/// Starts of the values of a stage's tiles, and the end of the last one, in the units of the format. At most five are
/// used.
pub(super) type Starts = [u32; 8];

/// Loads the starts of this thread block's first stages from a list of their own, which needs no data of its first
/// piece.
#[inline(always)]
pub(super) fn first_starts<const GROUPS: usize>(p: &BitmapParams) -> Starts {
    let stage = gpu::block_x() * AHEAD + gpu::thread() % 32;
    let at = p.first().row(stage, ((GROUPS + 1) * 4) as u64);
    let mut own = [0; 8];
    unroll!(j < GROUPS + 1, { own[j] = at.at(j as u64).ld() });
    own
}

/// Loads the starts of the tiles of this lane's stage among the [`AHEAD`] from `stage` on. Past the last tile row the
/// start is the end of that row.
#[inline(always)]
pub(super) fn starts<const GROUPS: usize>(p: &BitmapParams, piece: BitPiece, stage: u32) -> Starts {
    let stage = stage + gpu::thread() % 32;
    let tile = piece.tile + stage * piece.step;
    let mut own = [0; 8];
    unroll!(j < GROUPS + 1, {
        let within = if (j as u32) < piece.height { j as u32 } else { piece.height };
        let at = p.starts().at(tile as u64 + within as u64);
        own[j] = at.ld_if(stage < piece.stages);
    });
    own
}

/// Returns the starts held by the lane of a stage.
#[inline(always)]
pub(super) fn of_stage<const GROUPS: usize>(all: Starts, stage: u32) -> Starts {
    let mut own = [0; 8];
    unroll!(j < GROUPS + 1, { own[j] = warp::shfl(all[j], stage) });
    own
}
