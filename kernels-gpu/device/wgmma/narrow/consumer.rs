//! A warpgroup that multiplies 8-bit operands. Integers go on in the same accumulators. Sums of fp8 are promoted: a stage or
//! two, 128 deep each, are summed by the Tensor Core from zero, 128 columns at a time, and added to f32 registers, while the
//! other warpgroup keeps the Tensor Core busy.

use super::NarrowElem;
use crate::abi::*;
use crate::device::gpu;
use crate::device::ptx::wgmma::{self, Acc};
use crate::device::ptx::{barrier, copy, warp};
use crate::device::wgmma::consumer::NONE;

/// Chunks of 64 columns that are summed at a time: more would not leave registers for the f32 sums.
const PART: usize = 2;

impl<const PM: usize, const PK: usize, const CHUNKS: usize, const ORDER: u32>
    Panel<PM, PK, CHUNKS, ORDER, 1>
{
    /// Stages that are summed before they are added: the Tensor Core idles in between. Several slices a stage leave no
    /// registers for more than one.
    const TOGETHER: usize = if Self::SLICES == 1 { 2 } else { 1 };

    #[inline(always)]
    pub(super) fn consume_narrow<E: NarrowElem>(p: &WgmmaParams) {
        let half = gpu::thread() / 128;
        let mut later = Self::strip(p, 0);
        let mut round = 0;
        // Stages so far, of all strips: slot and parity in one register.
        let mut place = 0;
        while later.row != NO_STRIP {
            let strip = later;
            let mut acc = Acc::<CHUNKS>::zero();
            if E::PROMOTED {
                Self::sum_promoted::<E>(&mut acc, strip.stages, half, place);
            } else {
                Self::sum::<E>(&mut acc, strip.stages, half, place);
            }
            place += strip.stages;
            // Not before: registers are scarce until here.
            round += 1;
            later = Self::strip(p, round);
            Self::leave_narrow::<E>(p, strip, half, &mut acc);
        }
    }

    /// Slot of a stage.
    #[inline(always)]
    fn slot(place: u32) -> u32 {
        place % Self::STAGES as u32
    }

    /// Waits for a stage, and says in which steps this half multiplies.
    #[inline(always)]
    fn arrived(place: u32, half: u32) -> u32 {
        const { assert!(Self::STAGES.is_power_of_two()) };
        let (slot, parity) = (Self::slot(place), place / Self::STAGES as u32 % 2);
        barrier::wait(Self::full(slot), parity);
        copy::load_shared_b32(Self::mask(slot)) >> half & 0x55
    }

    /// The same for all lanes, and known to ptxas to be so: it serialises `wgmma` behind a branch that might diverge.
    #[inline(always)]
    fn uniform(mask: u32) -> u32 {
        warp::shuffle::<32>(mask, 0, u32::MAX)
    }

    /// All stages of a strip into the same accumulators.
    #[inline(always)]
    fn sum<E: NarrowElem>(acc: &mut Acc<CHUNKS>, stages: u32, half: u32, first: u32) {
        let mut held = NONE;
        let mut place = first;
        while place != first + stages {
            let mask = Self::uniform(Self::arrived(place, half));
            let slot = Self::slot(place);
            if mask != 0 {
                acc.fence();
                Self::multiply_narrow::<E, CHUNKS>(acc, 0, slot, half, mask, true);
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
            place += 1;
        }
        acc.wait::<0>();
        Self::free(held);
    }

    /// All stages of a strip, some at a time summed apart and added to `acc`.
    #[inline(always)]
    fn sum_promoted<E: NarrowElem>(acc: &mut Acc<CHUNKS>, stages: u32, half: u32, first: u32) {
        let mut part = Acc::<PART>::unset();
        let (mut place, end) = (first, first + stages);
        while place != end {
            // A second stage's mask is 8 bits further up, and bit 16 says that there is one.
            let mut masks = Self::arrived(place, half);
            if Self::TOGETHER == 2 && place + 1 != end {
                masks |= Self::arrived(place + 1, half) << 8 | 1 << 16;
            }
            let masks = Self::uniform(masks);
            if masks & 0xffff != 0 {
                Self::promote::<E>(acc, &mut part, place, half, masks);
            } else {
                Self::free_some(place, masks);
            }
            place += 1 + (masks >> 16);
        }
    }

    #[inline(always)]
    fn free_some(place: u32, masks: u32) {
        Self::free(Self::slot(place));
        if masks >> 16 != 0 {
            Self::free(Self::slot(place + 1));
        }
    }

    /// Stages, summed apart and added to `acc`. Frees the stages.
    #[inline(always)]
    fn promote<E: NarrowElem>(
        acc: &mut Acc<CHUNKS>,
        part: &mut Acc<PART>,
        place: u32,
        half: u32,
        masks: u32,
    ) {
        unroll!(pass < CHUNKS / PART, {
            part.fence();
            unroll!(i < Self::TOGETHER, {
                let mask = masks >> (8 * (i % 2));
                if Self::TOGETHER == 1 || mask & 0x55 != 0 {
                    let onto = i > 0 && masks & 0x55 != 0;
                    let (first, slot) = (pass * PART, Self::slot(place + i as u32));
                    Self::multiply_narrow::<E, PART>(part, first, slot, half, mask, onto);
                }
            });
            wgmma::commit();
            part.wait::<0>();
            if pass + 1 == CHUNKS / PART {
                Self::free_some(place, masks);
            }
            unroll!(c < PART, {
                unroll!(j < 8, {
                    unroll!(i < 4, {
                        acc.0[pass * PART + c][4 * j + i] += part.0[c][4 * j + i];
                    });
                });
            });
            // Before the next `wgmma`, or its sums would want registers of their own.
            acc.settle();
        });
    }

    /// The `wgmma`s of one stage against `C` chunks of columns from `first`; `onto` what the accumulators hold, or not.
    #[inline(always)]
    fn multiply_narrow<E: NarrowElem, const C: usize>(
        acc: &mut Acc<C>,
        first: usize,
        slot: u32,
        half: u32,
        mask: u32,
        onto: bool,
    ) {
        let stage = Self::stage(slot);
        let slab = stage + half * SLAB as u32;
        let panel = stage + (2 * SLAB + first * 64 * PK) as u32;
        unroll!(slice < Self::SLICES, {
            let first = slice * STEPS / Self::SLICES;
            if Self::SLICES == 1 || mask >> (2 * first) & 1 != 0 {
                unroll!(i < STEPS / Self::SLICES, {
                    let step = first + i;
                    // Bits of the slices before, and one that is never set: were it known that nothing is added, ptxas would
                    // start these sums in further registers, ahead of the additions of those before, and there are none.
                    let before = 0x55 & ((1 << (2 * step)) - 1) | 1 << 31;
                    let onto = onto || i > 0 || mask & before != 0;
                    E::mma::<C>(acc, Self::a(slab, step), Self::b(panel, step), onto);
                });
            }
        });
    }
}
