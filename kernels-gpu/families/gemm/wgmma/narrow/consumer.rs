//! A warpgroup that multiplies 8-bit operands. Integers go on in the same accumulators. Sums of fp8 are promoted: every
//! stage, 128 deep, is summed by the Tensor Core from zero, 128 columns at a time, and added to f32 registers, while
//! the other warpgroup keeps the Tensor Core busy: they take turns, or both would add at the same time.

use crate::device::prelude::*;
use crate::families::gemm::abi::*;

/// Chunks of 64 columns that are summed at a time: more would not leave registers for the f32 sums.
const PART: usize = 2;

/// Named barriers of the turns, after those of the warpgroups that fix up.
const TURNS: u32 = 3;

/// Waits until the other warpgroup has issued what comes before.
#[inline(always)]
fn wait_turn(group: u32) {
    barrier::sync_named(TURNS + group, 256);
}

/// Lets the other warpgroup issue.
#[inline(always)]
fn arrive_turn(group: u32) {
    barrier::arrive_named(TURNS + (group ^ 1), 256);
}

impl<
    const PM: usize,
    const PK: usize,
    const CHUNKS: usize,
    const ORDER: u32,
    A: Multiply,
    L: Loader,
> Panel<PM, PK, CHUNKS, ORDER, 1, A, L>
{
    /// Sums of a stage are added to others. `mma.sync` adds each product to f32 sums.
    const fn promotes<E: BytesElem>() -> bool {
        E::PROMOTED && A::ASYNCHRONOUS
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
            let mut part = Acc::<PART>::unset();
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
                    A::fence(&mut acc);
                    Self::multiply_narrow::<E, CHUNKS>(&mut acc, 0, slot, group, mask, true);
                    ring.issued::<A, CHUNKS>(&mut acc);
                } else {
                    ring.drain::<A, CHUNKS>(&mut acc);
                    Self::release_pending(slot);
                }
                ring.advance();
                s += 1;
            }
            if !Self::promotes::<E>() {
                ring.drain::<A, CHUNKS>(&mut acc);
            }
            // Not before: registers are scarce until here.
            round += 1;
            if A::ASYNCHRONOUS {
                later = Self::strip(p, round);
            }
            let strip = match A::ASYNCHRONOUS {
                true => strip,
                false => Self::strip(p, warp::opaque(round) - 1),
            };
            Self::epilogue_narrow::<E>(p, strip, group, &mut acc);
            if !A::ASYNCHRONOUS {
                later = Self::strip(p, round);
            }
        }
        if Self::promotes::<E>() && group == 0 {
            // Nobody waits for the turn at which the other one arrived last.
            wait_turn(group);
        }
    }

    /// A stage without anything for this warpgroup: turns are taken whether there is something to issue or not.
    #[inline(always)]
    fn pass(slot: u32, group: u32) {
        unroll!(_pass < CHUNKS / PART, {
            wait_turn(group);
            arrive_turn(group);
        });
        Self::release_pending(slot);
    }

    /// One stage, summed apart and added to `acc`. Frees the stage.
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
            A::fence(part);
            Self::multiply_narrow::<E, PART>(part, pass * PART, slot, group, mask, false);
            A::commit();
            arrive_turn(group);
            A::wait::<PART, 0>(part);
            if pass + 1 == CHUNKS / PART {
                Self::release_pending(slot);
            }
            unroll!(c < PART, {
                unroll!(j < 8, {
                    unroll!(i < 4, {
                        acc.0[pass * PART + c][4 * j + i] += part.0[c][4 * j + i];
                    });
                });
            });
            // Before the next `wgmma`, or its sums would want registers of their own.
            acc.compiler_fence();
        });
    }

    /// The `wgmma`s of one stage against `C` chunks of columns from `first`; `onto` what the accumulators hold, or not.
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
        let smem = stage + group * SMEM_TILE as u32;
        let b_tile = stage + (2 * SMEM_TILE + first * 64 * PK) as u32;
        unroll!(slice < Self::SLICES, {
            let first = slice * STEPS / Self::SLICES;
            if Self::SLICES == 1 || mask >> (2 * first) & 1 != 0 {
                unroll!(i < STEPS / Self::SLICES, {
                    let step = first + i;
                    // Bits of the slices before, and one that is never set: were it known that nothing is added, ptxas
                    // would start these sums in further registers, ahead of the additions of those before, and there
                    // are none.
                    let before = 0x55 & ((1 << (2 * step)) - 1) | 1 << 31;
                    let onto = onto || i > 0 || mask & before != 0;
                    A::mma_bytes::<E, C>(acc, Self::a(smem, step), Self::b(b_tile, step), onto);
                });
            }
        });
    }
}
