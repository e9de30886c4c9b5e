//! A and W both as e4m3. The Tensor Core sums each [`QUANTIZED_BLOCK`] along k from zero. CUDA cores then multiply the
//! sums by the scales and add them to f32 registers. Two named barriers make the warpgroups alternate: one adds while
//! the Tensor Core multiplies for the other. The variant for `mma.sync` is `codes`.

use super::DEPTH;
use super::out::NOWHERE;
use super::work::Work;
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

/// First of the named barriers by which the warpgroups alternate.
const TURNS: u32 = 1;
/// Blocks of A's rows in a stage.
pub(super) const BLOCKS: usize = 2;
const _: () = assert!(BLOCKS * QUANTIZED_BLOCK == 2 * GROUPED_DEPTH);

/// Waits until the other warpgroup has issued its products.
#[inline(always)]
fn wait_turn(group: u32) {
    barrier::sync_named(TURNS + group, CONSUMER_WARPS * 32);
}

/// Allows the other warpgroup to issue its products.
#[inline(always)]
fn arrive_turn(group: u32) {
    barrier::arrive_named(TURNS + (group ^ 1), CONSUMER_WARPS * 32);
}

/// Chunks of 64 columns that are summed at a time: more would leave no registers for the f32 sums.
const PART: usize = 2;

/// Scales of a stage: of the lane's two rows for each block, and of W's columns.
type Scales = ([[f32; BLOCKS]; 2], [f32; 2]);

impl<const CHUNKS: usize, F: GroupedForm<A: Multiply, L: Loader>> GroupedTile<CHUNKS, F> {
    /// Returns the number of scales of a row that is `deep` pairs long.
    #[inline(always)]
    pub(super) fn scales_of(deep: u32) -> u32 {
        deep.div_ceil(DEPTH) * BLOCKS as u32
    }

    /// Arrives for the second warpgroup, so that the first one begins.
    #[inline(always)]
    pub(super) fn first_turn(group: u32) {
        if group == 1 {
            arrive_turn(group);
        }
    }

    /// Completes the barrier at which the second warpgroup arrived last: no products wait for it.
    #[inline(always)]
    pub(super) fn last_turn(group: u32) {
        if group == 0 {
            wait_turn(group);
        }
    }

    /// Returns the number of scale pairs that precede those of the lane's two rows of A; [`NOWHERE`] for missing rows.
    #[inline(always)]
    fn row_scales(p: &GroupedParams, work: Work, (group, choice): (u32, u32)) -> [u32; 2] {
        let row = Self::own_row(group);
        let source = match p.flags & GROUPED_GATHER {
            0 => work.first + row,
            _ => p.top.of(choice).0,
        };
        let lane = gpu::opaque_thread() % 32;
        let stages = p.k.div_ceil(DEPTH);
        [0, 8].map(|r| {
            let source = warp::shfl(source, lane / 4 + r);
            let there = group * 64 + gpu::opaque_thread() / 32 % 4 * 16 + lane / 4 + r;
            if there < work.rows { source * stages } else { NOWHERE }
        })
    }

    /// Loads the scales of the stage that begins at `deep`; zeros past the last one.
    #[inline(always)]
    fn stage_scales(p: &GroupedParams, rows: [u32; 2], columns: [u32; 2], deep: u32) -> Scales {
        let of_rows = rows.map(|row| {
            let there = row != NOWHERE && deep < p.k;
            let at = p.a_scales().cast::<[u32; BLOCKS]>().at(row + deep / DEPTH);
            at.ld_if(there).map(f32::from_bits)
        });
        (of_rows, Self::factors(p, columns, deep))
    }

    /// Multiplies e4m3 with scales, like `products`, and releases the stages.
    #[inline(always)]
    pub(super) fn quantized_products(
        p: &GroupedParams,
        work: Work,
        (group, choice): (u32, u32),
        ring: &mut Ring<Self>,
        acc: &mut Acc<CHUNKS>,
    ) {
        let rows = Self::row_scales(p, work, (group, choice));
        let columns = Self::scales(p, work);
        // Whether the other warpgroup has rows too.
        let turns = Self::count(work) > 64;
        let mut part = Acc::<PART>::uninit();
        let mut next = Self::stage_scales(p, rows, columns, 0);
        let mut deep = 0;
        while deep < p.k {
            let (by_row, by_column) = next;
            deep += DEPTH;
            let slot = ring.wait_full();
            if p.flags & GROUPED_GATHER != 0 {
                // `cp.async` wrote the gathered rows through the generic proxy.
                F::A::fence_proxy_async();
            }
            // After the fence, which waits for loads too.
            next = Self::stage_scales(p, rows, columns, deep);
            unroll!(step < BLOCKS * CHUNKS / PART, most 4, {
                let (block, first) = (step % BLOCKS, step / BLOCKS * PART);
                if turns {
                    wait_turn(group);
                }
                F::A::fence(&mut part);
                Self::multiply_codes(p, &mut part, (slot, group), (block, first));
                F::A::commit();
                if turns {
                    arrive_turn(group);
                }
                F::A::wait::<PART, 0>(&mut part);
                if step + 1 == BLOCKS * CHUNKS / PART {
                    Self::release(slot);
                }
                unroll!(c < PART, most 4, {
                    let of_chunk = by_column[(first + c) / Self::SCALE_CHUNKS];
                    let by = by_row.map(|row| row[block] * of_chunk);
                    unroll!(j < 8, {
                        unroll!(i < 4, {
                            let sum = &mut acc.0[first + c][4 * j + i];
                            *sum = matrix::fma_f32(part.0[c][4 * j + i], by[i / 2], *sum);
                        });
                    });
                });
                // Before the next `wgmma`, otherwise its sums would need registers of their own.
                acc.compiler_fence();
            });
            ring.advance();
        }
    }

    /// Starts the `wgmma`s of a block along k, from zero, for the columns of [`PART`] chunks from `first` on.
    #[inline(always)]
    fn multiply_codes(
        p: &GroupedParams,
        part: &mut Acc<PART>,
        (slot, group): (u32, u32),
        (block, first): (usize, usize),
    ) {
        let (a_tile, b_tile) = Self::operands(slot, group);
        let b_tile = b_tile.bytes((first * SMEM_TILE) as u32);
        unroll!(i < 2, {
            let step = (2 * block + i) as u32;
            let a = a_tile.bytes(step * 32).descriptor(PANEL_BYTES as u32, 16);
            let b = b_tile.bytes(step * 32).descriptor(PANEL_BYTES as u32, 16);
            // Tests a bit that is never set. If ptxas could see that nothing is added, it would start these sums in
            // other registers, and there are none left.
            let onto = i > 0 || warp::opaque(p.flags) >> 31 != 0;
            F::A::mma_bytes::<E4m3, PART>(part, a, b, onto);
        });
    }
}
