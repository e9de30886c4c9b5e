//! A warpgroup that multiplies: waits for a stage, issues its `wgmma`s, and frees the stage before it.

use super::{WgmmaElem, strip, strips};
use crate::abi::*;
use crate::device::gpu;
use crate::device::ptx::wgmma::{self, Acc};
use crate::device::ptx::{barrier, bulk, copy};

/// No stage is waiting to be freed.
const NONE: u32 = u32::MAX;

impl<const PM: usize, const PK: usize, const CHUNKS: usize, const ORDER: u32>
    Panel<PM, PK, CHUNKS, ORDER>
{
    #[inline(always)]
    pub(super) fn consume<E: WgmmaElem>(p: &WgmmaParams, at: u64) {
        let half = gpu::thread() / 128;
        let (mut index, end) = strips(p);
        let (mut slot, mut parity) = (0, 0);
        while index < end {
            let strip = strip(p, index);
            let mut acc = Acc::<CHUNKS>::zero();
            let mut held = NONE;
            let mut s = 0;
            while s < strip.stages {
                barrier::wait(Self::full(slot), parity);
                let mask = copy::load_shared_b32(Self::mask(slot)) >> half;
                if mask & 0x55 != 0 {
                    acc.fence();
                    Self::multiply::<E>(&mut acc, slot, half, mask);
                    wgmma::commit();
                    acc.wait::<1>();
                    Self::free(held);
                    held = slot;
                } else {
                    acc.wait::<0>();
                    Self::free(held);
                    Self::free(slot);
                    held = NONE;
                }
                slot += 1;
                if slot == Self::STAGES as u32 {
                    slot = 0;
                    parity ^= 1;
                }
                s += 1;
            }
            acc.wait::<0>();
            Self::free(held);
            Self::leave::<E>(p, at, strip, half, &mut acc);
            index += 1;
        }
        // The copy engine reads this thread block's memory until then.
        bulk::wait_read::<0>();
    }

    /// The `wgmma`s of one stage.
    #[inline(always)]
    fn multiply<E: WgmmaElem>(acc: &mut Acc<CHUNKS>, slot: u32, half: u32, mask: u32) {
        let stage = Self::stage(slot);
        let (slab, panel) = (stage + half * SLAB as u32, stage + 2 * SLAB as u32);
        unroll!(step < STEPS, {
            if PK >= Self::DEPTH || mask >> (2 * step) & 1 != 0 {
                let (a, b) = (Self::a(slab, step), Self::b(panel, step));
                match (ORDER & A_COLUMNS != 0, ORDER & B_COLUMNS != 0) {
                    (false, false) => E::mma::<CHUNKS, 0, 1>(acc, a, b),
                    (true, false) => E::mma::<CHUNKS, 1, 1>(acc, a, b),
                    (false, true) => E::mma::<CHUNKS, 0, 0>(acc, a, b),
                    (true, true) => E::mma::<CHUNKS, 1, 0>(acc, a, b),
                }
            }
        });
    }

    /// Lets the stage be overwritten.
    #[inline(always)]
    fn free(slot: u32) {
        if slot != NONE && gpu::thread() % 128 == 0 {
            barrier::arrive(Self::empty(slot));
        }
    }
}
