//! A product of at most 64 rows with an A most of whose columns are empty: each thread block finds those of its part of k that are
//! not (`scan`), gathers the rows of B that they meet into a ring of stages by copies of 16 bytes, multiplies, and meets the other
//! parts of its tile in the cluster (`out`). All bytes of B that are read are those of listed rows.

mod out;
mod scan;

use super::gpu;
use super::mma::MmaElem;
use super::ptx::{barrier, cluster, copy, global, grid, matrix};
use crate::abi::*;
use crate::frag;

/// The body, generic over the element; the tile is the implementor.
pub trait Body: Tile {
    /// # Safety
    /// `p` describes live device memory and the launch has this tile's geometry, `p.parts` thread blocks a cluster.
    unsafe fn run<W: WalkInfo, E: MmaElem>(p: &PitFewParams, at: u64);
}

/// Sums of a warp: atoms of 16 rows, then of 8 columns. Of the first as many are used as the tile has.
type Sums = [[[f32; 4]; 4]; 4];

/// Values of a listed column that a thread has on the way: pairs of neighbouring rows.
type Values = [[u32; 2]; 4];

/// What has been listed: from which column on, how many columns.
#[derive(Clone, Copy)]
struct Found {
    from: u32,
    count: u32,
}

impl Found {
    /// Stages of it.
    #[inline(always)]
    fn stages(self) -> u32 {
        self.count.div_ceil(FEW_DEPTH)
    }
}

impl<const MT: usize, const WARPS: usize> FewRows<MT, WARPS> {
    /// Stages of values on the way: the more rows, the fewer there are registers for.
    const QUEUE: usize = match MT {
        16 => 4,
        32 => 3,
        _ => 2,
    };

    /// This thread's warp and lane.
    #[inline(always)]
    fn own() -> (u32, u32) {
        (gpu::thread() / 32, gpu::thread() % 32)
    }

    /// Number of this thread block's tile.
    #[inline(always)]
    fn tile(p: &PitFewParams) -> u32 {
        gpu::block_x().checked_div(p.parts).unwrap_or(0)
    }

    /// Column of A of a place of the list; the place is one of it.
    #[inline(always)]
    fn listed(found: Found, place: u32) -> u32 {
        found.from + copy::load_shared_b16(copy::arena() + Self::LIST as u32 + place * 2)
    }

    /// First byte of a stage.
    #[inline(always)]
    fn stage(slot: u32) -> u32 {
        copy::arena() + slot * Self::STAGE as u32
    }

    /// Starts the copies of a stage, if there is one: eight rows of B at a time, a thread has 16 bytes of each. Places behind the
    /// last listed column are zeros, up to a step of the product: zeros of A times whatever is no number would be none.
    #[inline(always)]
    fn start(p: &PitFewParams, found: Found, s: u32, slot: u32) {
        const ROWS: u32 = 8;
        let across = WARPS as u32 * 4;
        let (row, chunk) = (gpu::thread() / across, gpu::thread() % across);
        let column = Self::tile(p) * Self::COLUMNS + chunk * 8;
        let inside = u32::from(column < p.n);
        let from = p.b + column as u64 * 2;
        let end = found.count.next_multiple_of(16);
        unroll!(i < 4, {
            let row = row + i as u32 * ROWS;
            let place = s * FEW_DEPTH + row;
            let to = Self::stage(slot) + frag::swizzle(row, chunk, Self::ROW_BYTES as u32);
            if place < found.count {
                let line = Self::listed(found, place) as u64 * p.ldb_bytes as u64;
                copy::copy_async_whole(to, from + line, inside);
            } else if place < end {
                copy::store_shared_v4(to, [0; 4]);
            }
        });
        // One group a stage, whether there is something in it or not.
        copy::copy_commit();
    }

    /// Starts the loads of a stage's values of A: a lane has a listed column, a warp pairs of rows.
    #[inline(always)]
    fn fetch(p: &PitFewParams, found: Found, s: u32) -> Values {
        let (warp, lane) = Self::own();
        let place = s * FEW_DEPTH + lane;
        let there = place < found.count;
        let column = if there { Self::listed(found, place) } else { 0 };
        let from = p.a + column as u64 * 2;
        let mut values = [[0; 2]; 4];
        unroll!(t < (MT / 2).div_ceil(WARPS), most 4, {
            let row = 2 * (warp + (t * WARPS) as u32);
            unroll!(h < 2, {
                let row = row + h as u32;
                let at = from + row as u64 * p.lda_bytes as u64;
                values[t][h] = global::load_b16_fresh(at, there && row < p.m);
            });
        });
        values
    }

    /// Leaves the values of a stage where [`Self::multiply`] reads them; rows that A does not have are zeros.
    #[inline(always)]
    fn put(s: u32, values: Values) {
        let (warp, lane) = Self::own();
        let to = Self::values(s) + lane * Self::A_ROW as u32;
        unroll!(t < (MT / 2).div_ceil(WARPS), most 4, {
            let pair = warp + (t * WARPS) as u32;
            if pair < MT as u32 / 2 {
                let [low, high] = values[t];
                copy::store_shared_b32(to + pair * 4, low | high << 16);
            }
        });
    }

    /// Where the values of a stage lie.
    #[inline(always)]
    fn values(s: u32) -> u32 {
        copy::arena() + (Self::A_AT as u32) + s % 2 * Self::A_BYTES as u32
    }

    /// Multiplies a stage: all rows with this warp's 32 columns.
    #[inline(always)]
    fn multiply<E: MmaElem>(found: Found, s: u32, slot: u32, sums: &mut Sums) {
        let (warp, lane) = Self::own();
        let (stage, values) = (Self::stage(slot), Self::values(s));
        let (row, chunk) = frag::ldmatrix_x4(lane);
        let (deep, eight) = frag::ldmatrix_x4_columns(lane);
        unroll!(step < 2, {
            let step = step as u32 * 16;
            if s * FEW_DEPTH + step < found.count {
                let mut b = [[0; 2]; 4];
                unroll!(h < 2, {
                    let chunk = warp * 4 + 2 * h as u32 + chunk;
                    let place = frag::swizzle(step + row, chunk, Self::ROW_BYTES as u32);
                    let [w, x, y, z] = matrix::ldmatrix_x4_trans(stage + place);
                    b[2 * h] = [w, x];
                    b[2 * h + 1] = [y, z];
                });
                let from = values + (step + deep) * Self::A_ROW as u32 + eight * 16;
                unroll!(i < MT / 16, most 4, {
                    let a = matrix::ldmatrix_x4_trans(from + i as u32 * 32);
                    unroll!(j < 4, { E::mma(&mut sums[i][j], a, b[j]) });
                });
            }
        });
    }

    /// Gathers and multiplies what has been listed.
    #[inline(always)]
    fn gather<E: MmaElem>(p: &PitFewParams, found: Found, sums: &mut Sums) {
        const AHEAD: u32 = FEW_STAGES as u32 - 1;
        let stages = found.stages();
        let mut s = 0;
        while s < AHEAD {
            Self::start(p, found, s, s);
            s += 1;
        }
        // Several stages of values are on the way, each in registers of its own: one alone would be waited for at every stage.
        let mut values = [[[0; 2]; 4]; 4];
        unroll!(j < Self::QUEUE, most 4, {
            values[j] = Self::fetch(p, found, j as u32);
        });
        // The slot of stage s, and the one in front of it in the ring.
        let (mut slot, mut freed) = (0, AHEAD);
        let mut first = 0;
        while first < stages {
            unroll!(j < Self::QUEUE, most 4, {
                let s = first + j as u32;
                if s < stages {
                    Self::put(s, values[j]);
                    values[j] = Self::fetch(p, found, s + Self::QUEUE as u32);
                    copy::copy_wait::<{ FEW_STAGES as u32 - 2 }>();
                    // All have written their part of stage s, and read stage s - 1.
                    gpu::sync_threads();
                    Self::start(p, found, s + AHEAD, freed);
                    Self::multiply::<E>(found, s, slot, sums);
                    freed = slot;
                    slot = if slot == AHEAD { 0 } else { slot + 1 };
                }
            });
            first += Self::QUEUE as u32;
        }
    }

    /// Makes the barrier of the sums, which expects those of the other parts.
    #[inline(always)]
    fn set_up(p: &PitFewParams) {
        if p.parts > 1 && gpu::thread() == 0 {
            let bytes = (Self::ATOMS * Self::ATOM) as u32;
            let own = bytes.checked_div(p.parts).unwrap_or(0);
            barrier::init(Self::summed(), 1);
            barrier::init_fence();
            barrier::arrive_expect(Self::summed(), bytes - own);
        }
    }
}

impl<const MT: usize, const WARPS: usize> Body for FewRows<MT, WARPS> {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: MmaElem>(p: &PitFewParams, _: u64) {
        grid::let_next_start();
        Self::set_up(p);
        Self::clear();
        gpu::sync_threads();
        grid::wait_for_previous();
        let mut from = cluster::rank() * p.share;
        let end = p.k.min(from + p.share);
        let mut sums: Sums = [[[0.0; 4]; 4]; 4];
        while from < end {
            let width = FEW_SECTION.min(end - from);
            Self::scan(p, from, width);
            gpu::sync_threads();
            let count = Self::list();
            gpu::sync_threads();
            Self::gather::<E>(p, Found { from, count }, &mut sums);
            from += width;
            if from < end {
                // Nobody reads bits any more, and behind the next barrier nobody the stages.
                Self::clear();
                gpu::sync_threads();
            }
        }
        Self::leave::<E>(p, &sums);
    }
}
