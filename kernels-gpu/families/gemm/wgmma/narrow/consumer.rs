//! Consumer warpgroup for 8-bit operands. Integer sums stay in the same accumulators. fp8 sums are promoted: the Tensor
//! Core sums every stage, 128 deep, from zero, 128 columns at a time, and these sums are added to f32 registers. The
//! other warpgroup keeps the Tensor Core busy meanwhile: without turns, both would add at the same time.

use crate::device::prelude::*;
use crate::families::gemm::abi::*;

/// Chunks of 64 columns that are summed at a time. More would leave no registers for the f32 sums.
const PART: usize = 2;

/// First named barrier of the turns, after those of the split-K fix-up.
const TURNS: u32 = 3;

/// Waits until the other warpgroup has issued the preceding products.
#[inline(always)]
fn wait_turn(group: u32) {
    barrier::sync_named(TURNS + group, 256);
}

/// Lets the other warpgroup issue.
#[inline(always)]
fn arrive_turn(group: u32) {
    barrier::arrive_named(TURNS + (group ^ 1), 256);
}

impl<const CHUNKS: usize, F: PanelForm<A: Multiply, L: Loader>> Panel<CHUNKS, F> {
    /// Returns whether a stage's sums are added to others. `mma.sync` adds each product to f32 sums.
    const fn promotes<E: BytesElem>() -> bool {
        E::PROMOTED && F::A::ASYNCHRONOUS
    }

    #[inline(always)]
    pub(super) fn consume_narrow<E: BytesElem>(p: &WgmmaParams) {
        let group = gpu::thread() / 128;
        let mut later = Self::strip(p, 0);
        let mut round = 0;
        let mut ring = Ring::<Self>::consumer();
        if Self::promotes::<E>() && group == 1 {
            arrive_turn(group);
        }
        while later.row != NO_STRIP {
            let strip = later;
            let mut acc = Acc::<CHUNKS>::zero();
            let mut part = Acc::<PART>::uninit();
            let mut s = 0;
            while s < strip.stages {
                let slot = ring.wait_full();
                let mask = Self::mask_of(slot, group);
                if Self::promotes::<E>() {
                    if mask & 0x55 != 0 {
                        Self::promote::<E>(&mut acc, &mut part, slot, group, mask);
                    } else {
                        Self::pass(slot, group);
                    }
                } else if mask & 0x55 != 0 {
                    F::A::fence(&mut acc);
                    Self::multiply_narrow::<E, CHUNKS>(&mut acc, 0, slot, group, mask, true);
                    ring.issued::<F::A, CHUNKS>(&mut acc);
                } else {
                    ring.drain::<F::A, CHUNKS>(&mut acc);
                    Self::release(slot);
                }
                ring.advance();
                s += 1;
            }
            if !Self::promotes::<E>() {
                ring.drain::<F::A, CHUNKS>(&mut acc);
            }
            // Loaded only here: registers are scarce before.
            round += 1;
            if F::A::ASYNCHRONOUS {
                later = Self::strip(p, round);
            }
            let strip = match F::A::ASYNCHRONOUS {
                true => strip,
                false => Self::strip(p, warp::opaque(round) - 1),
            };
            Self::epilogue_narrow::<E>(p, strip, group, &mut acc);
            if !F::A::ASYNCHRONOUS {
                later = Self::strip(p, round);
            }
        }
        if Self::promotes::<E>() && group == 0 {
            // The other warpgroup's last arrival is not followed by a turn, so it is awaited here.
            wait_turn(group);
        }
    }

    /// Passes the turns of a stage without work for this warpgroup: turns alternate even if nothing is issued.
    #[inline(always)]
    fn pass(slot: u32, group: u32) {
        unroll!(_pass < CHUNKS / PART, {
            wait_turn(group);
            arrive_turn(group);
        });
        Self::release(slot);
    }

    /// Sums one stage separately and adds it to `acc`. Releases the stage.
    #[inline(always)]
    fn promote<E: BytesElem>(
        acc: &mut Acc<CHUNKS>,
        part: &mut Acc<PART>,
        slot: u32,
        group: u32,
        mask: u32,
    ) {
        unroll!(pass < CHUNKS / PART, {
            wait_turn(group);
            F::A::fence(part);
            Self::multiply_narrow::<E, PART>(part, pass * PART, slot, group, mask, false);
            F::A::commit();
            arrive_turn(group);
            F::A::wait::<PART, 0>(part);
            if pass + 1 == CHUNKS / PART {
                Self::release(slot);
            }
            unroll!(c < PART, {
                unroll!(j < 8, {
                    unroll!(i < 4, {
                        acc.0[pass * PART + c][4 * j + i] += part.0[c][4 * j + i];
                    });
                });
            });
            // Before the next `wgmma`: otherwise its sums would need registers of their own.
            acc.compiler_fence();
        });
    }

    /// Issues the `wgmma`s of one stage against `C` chunks of columns from `first`. `onto`: adds to the accumulators.
    #[inline(always)]
    fn multiply_narrow<E: BytesElem, const C: usize>(
        acc: &mut Acc<C>,
        first: usize,
        slot: u32,
        group: u32,
        mask: u32,
        onto: bool,
    ) {
        let stage = Self::stage(slot);
        let smem = stage.bytes(group * SMEM_TILE as u32);
        let b_tile = stage.bytes((2 * SMEM_TILE + first * 64 * F::PK) as u32);
        unroll!(slice < Self::SLICES, {
            let first = slice * STEPS / Self::SLICES;
            if Self::SLICES == 1 || mask >> (2 * first) & 1 != 0 {
                unroll!(i < STEPS / Self::SLICES, {
                    let step = first + i;
                    // Bits of the preceding slices, and one that is never set. If ptxas could prove that nothing is
                    // added, it would start these sums in further registers, ahead of the preceding additions. No
                    // registers are free.
                    let before = 0x55 & ((1 << (2 * step)) - 1) | 1 << 31;
                    let onto = onto || i > 0 || mask & before != 0;
                    F::A::mma_bytes::<E, C>(acc, Self::a(smem, step), Self::b(b_tile, step), onto);
                });
            }
        });
    }
}
