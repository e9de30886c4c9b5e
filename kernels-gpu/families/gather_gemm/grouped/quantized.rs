//! A and W both as e4m3: the Tensor Core sums each [`QUANTIZED_BLOCK`] along k from zero, and what it found is scaled as
//! it is added to f32 registers, while the other warpgroup keeps the Tensor Core busy: they take turns, or both would
//! add at the same time. Where products are synchronous nobody takes turns, and W alone as e4m3 is multiplied so too.

use super::out::NOWHERE;
use super::scaled::NO_SCALE;
use super::{DEPTH, Work};
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

/// Named barriers of the turns.
const TURNS: u32 = 1;
/// Blocks of A's rows in a stage.
const BLOCKS: usize = 2;
const _: () = assert!(BLOCKS * QUANTIZED_BLOCK == 2 * GROUPED_DEPTH);

/// Waits until the other warpgroup has issued what comes before.
#[inline(always)]
fn wait_turn(group: u32) {
    barrier::sync_named(TURNS + group, CONSUMERS * 32);
}

/// Lets the other warpgroup issue.
#[inline(always)]
fn arrive_turn(group: u32) {
    barrier::arrive_named(TURNS + (group ^ 1), CONSUMERS * 32);
}

/// Chunks of 64 columns that are summed at a time: more would not leave registers for the f32 sums.
pub(super) const PART: usize = 2;

/// For each 16 rows that a warp multiplies something of the lane's two.
type OfRows<T> = [[T; 2]; 4];

/// Scales of a stage: of the lane's rows, block by block, and of W's columns.
type Scales = (OfRows<[f32; BLOCKS]>, [f32; 2]);

impl<
    const CHUNKS: usize,
    const ORDER: u32,
    const GATED: bool,
    const ROWS: usize,
    A: Multiply,
    L: Loader,
> GroupedTile<CHUNKS, ORDER, GATED, ROWS, A, L>
{
    /// Times 16 rows of a warp during products.
    const SIXTEENS: usize = if A::QUARTERS { 4 } else { 1 };
    /// Sums from zero along k in a stage.
    const SUMS: usize = if ORDER == QUANTIZED_COLUMNS { BLOCKS } else { 1 };

    /// Scales of a row that is `deep` pairs long.
    #[inline(always)]
    pub(super) fn scales_of(deep: u32) -> u32 {
        deep.div_ceil(DEPTH) * BLOCKS as u32
    }

    /// The second warpgroup lets the first one begin.
    #[inline(always)]
    pub(super) fn first_turn(group: u32) {
        if group == 1 {
            arrive_turn(group);
        }
    }

    /// Nobody waits for the turn at which the second warpgroup arrived last.
    #[inline(always)]
    pub(super) fn last_turn(group: u32) {
        if group == 0 {
            wait_turn(group);
        }
    }

    /// Pairs of scales ahead of those of the lane's rows of A; [`NOWHERE`] of a row that is not there.
    #[inline(always)]
    fn row_scales(p: &GroupedParams, work: Work, (group, choice): (u32, u32)) -> OfRows<u32> {
        let mut found = [[NOWHERE; 2]; 4];
        if ORDER != QUANTIZED_COLUMNS {
            return found;
        }
        let row = Self::own_row(group);
        let gathers = p.flags & GROUPED_GATHER != 0;
        let source = if gathers { p.top.of(choice).0 } else { work.first + row };
        let lane = gpu::rematerialize_thread() % 32;
        let stages = p.k.div_ceil(DEPTH);
        unroll!(m < Self::SIXTEENS, most 4, {
            found[m] = [0, 8].map(|r| {
                if A::QUARTERS {
                    let row = m as u32 * 16 + lane / 4 + r;
                    let there = row < work.rows;
                    let at = p.order + (work.first + row) as u64 * 4;
                    let choice = global::load_b32_fresh(at, there && gathers);
                    let source = if gathers { p.top.of(choice).0 } else { work.first + row };
                    return if there { source * stages } else { NOWHERE };
                }
                let source = warp::shuffle::<32>(source, lane / 4 + r, u32::MAX);
                let there = group * 64 + gpu::rematerialize_thread() / 32 % 4 * 16 + lane / 4 + r;
                if there < work.rows { source * stages } else { NOWHERE }
            });
        });
        found
    }

    /// The scales of the stage that begins at `deep`; past the last one nothing. Rows of other types than e4m3 have none.
    #[inline(always)]
    fn stage_scales(p: &GroupedParams, rows: OfRows<u32>, columns: [u32; 2], deep: u32) -> Scales {
        let mut of_rows = [[[1.0; BLOCKS]; 2]; 4];
        if ORDER == QUANTIZED_COLUMNS {
            unroll!(m < Self::SIXTEENS, most 4, {
                of_rows[m] = rows[m].map(|row| {
                    let there = row != NOWHERE && deep < p.k;
                    let at = p.a_scales + (row + deep / DEPTH) as u64 * (BLOCKS * 4) as u64;
                    global::load_v2_fresh(at, there).map(f32::from_bits)
                });
            });
        }
        (of_rows, Self::factors(p, columns, deep))
    }

    /// [`Self::scales`], of a quarter of the columns that of its chunk in front.
    #[inline(always)]
    fn scales_of_share(p: &GroupedParams, work: Work) -> [u32; 2] {
        let [first, second] = Self::scales(p, work);
        if !A::QUARTERS {
            return [first, second];
        }
        let is_second = Self::SCALE_CHUNKS == 1 && gpu::rematerialize_thread() / 64 % 2 != 0;
        [if is_second { second } else { first }, NO_SCALE]
    }

    /// As `products`, of codes that are scaled as they are added.
    #[inline(always)]
    pub(super) fn products_of_codes<E: WgmmaElem>(
        p: &GroupedParams,
        work: Work,
        (group, choice): (u32, u32),
        ring: &mut Ring<Self>,
        acc: &mut Acc<CHUNKS>,
    ) -> u32 {
        let rows = Self::row_scales(p, work, (group, choice));
        let columns = Self::scales_of_share(p, work);
        let count = Self::count(work);
        // The other one has rows too.
        let turns = Self::TURNS && count > 64;
        let mut part = Acc::<PART>::unset();
        let mut next = ([[[0.0; BLOCKS]; 2]; 4], [0.0; 2]);
        if A::ASYNCHRONOUS {
            next = Self::stage_scales(p, rows, columns, 0);
        }
        let (mut deep, mut held) = (0, 0);
        while deep < p.k {
            if !A::ASYNCHRONOUS {
                // Products take longer than these loads, and all registers.
                next = Self::stage_scales(p, rows, columns, deep);
            }
            let (by_row, by_column) = next;
            deep += DEPTH;
            let slot = ring.wait_full();
            if p.flags & GROUPED_GATHER != 0 {
                // The gathered rows were written by ordinary copies.
                A::fence_copies();
            }
            if A::ASYNCHRONOUS {
                // Behind the fence, which waits for loads too.
                next = Self::stage_scales(p, rows, columns, deep);
            }
            unroll!(step < Self::SUMS * CHUNKS / PART, most 4, {
                let (block, first) = (step % Self::SUMS, step / Self::SUMS * PART);
                if turns {
                    wait_turn(group);
                }
                A::fence(&mut part);
                Self::multiply_codes::<E>(p, &mut part, (slot, group), (block, first), count);
                A::commit();
                if turns {
                    arrive_turn(group);
                }
                A::wait::<PART, 0>(&mut part);
                if step + 1 == Self::SUMS * CHUNKS / PART {
                    if A::ASYNCHRONOUS || deep < p.k {
                        Self::release(slot);
                    } else {
                        held = slot;
                    }
                }
                Self::add_scaled(acc, &part, first, |m, r, c| {
                    let c = if A::QUARTERS { 0 } else { c / Self::SCALE_CHUNKS };
                    by_row[m][r][block] * by_column[c]
                });
                // Before the next `wgmma`, or its sums would want registers of their own.
                acc.settle();
            });
            ring.advance();
        }
        held
    }

    /// Adds sums of the columns of [`PART`] chunks from `first` on. `by`: what those of 16 rows, the lane's upper or lower
    /// one, and a chunk of columns are multiplied with.
    #[inline(always)]
    fn add_scaled(
        acc: &mut Acc<CHUNKS>,
        part: &Acc<PART>,
        first: usize,
        by: impl Fn(usize, usize, usize) -> f32,
    ) {
        unroll!(c < PART, most 4, {
            unroll!(j < 8, {
                let m = if A::QUARTERS { (8 * c + j) / (2 * PART) } else { 0 };
                let by = [by(m, 0, first + c), by(m, 1, first + c)];
                unroll!(i < 4, {
                    let sum = &mut acc.0[first + c][4 * j + i];
                    *sum = matrix::fma_f32(part.0[c][4 * j + i], by[i / 2], *sum);
                });
            });
        });
    }

    /// The products of a block along k, from zero, by the columns of [`PART`] chunks from `first` on, for the first `rows`
    /// rows.
    #[inline(always)]
    fn multiply_codes<E: WgmmaElem>(
        p: &GroupedParams,
        part: &mut Acc<PART>,
        (slot, group): (u32, u32),
        (block, first): (usize, usize),
        rows: u32,
    ) {
        let a_tile = Self::stage(slot) + group * SMEM_TILE as u32;
        let b_tile = Self::w_of(slot).0 + (first * Self::CHUNK_BYTES) as u32;
        if ORDER != QUANTIZED_COLUMNS {
            Self::multiply_mixed::<E>(part, a_tile, b_tile, rows);
            return;
        }
        unroll!(i < 2, {
            let step = (2 * block + i) as u32;
            let a = frag::descriptor(a_tile + step * 32, PANEL_BYTES as u32, 16);
            let b = frag::descriptor(b_tile + step * 32, PANEL_BYTES as u32, 16);
            // A bit that is never set: were it known that nothing is added, ptxas would start these sums in further
            // registers, and there are none.
            let onto = i > 0 || A::ASYNCHRONOUS && warp::rematerialize(p.flags) >> 31 != 0;
            A::mma_bytes_rows::<E4m3, PART>(part, a, b, onto, rows);
        });
    }
}
