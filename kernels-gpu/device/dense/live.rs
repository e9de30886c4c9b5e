//! The same product for rows whose number is known on the device: family `dense_live`.

use super::{Body, DenseElem, gpu, grid};
use crate::abi::*;
use crate::device::ptx::global;

impl<const GROUPS: usize, const CHUNKS: usize, const CUT: usize> Body
    for LiveTile<GROUPS, CHUNKS, CUT>
{
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: DenseElem>(p: &DenseParams, at: u64) {
        grid::let_next_start();
        grid::wait_for_previous();
        let top = gpu::block_y() * DenseTile::<GROUPS, CHUNKS, CUT>::ROWS as u32;
        // All threads alike: nobody waits for those that leave.
        if top >= global::load_b32_fresh(p.live, true) {
            return;
        }
        // SAFETY: the caller's promise; the geometry is that of the tile.
        unsafe { DenseTile::<GROUPS, CHUNKS, CUT>::run::<W, E>(p, at) }
    }
}
