//! Producer warps: copies into the ring.

use super::{DEPTH, STEP, Work};
use crate::device::prelude::*;
use crate::device::stages::steps;
use crate::families::discover::abi::NO_TILE;
use crate::families::gather_gemm::abi::*;

impl<F: PitConvForm<A: Multiply, L: Loader>> PitConv<F> {
    /// Positions of a tile that the threads copy at once, 16 bytes each.
    const AT_ONCE: u32 = PIT_CONV_PRODUCER_THREADS / 8;

    /// Shape of a stage's packed filters, 64 of them.
    const B_TILE: Shape = Shape { rows: PIT_CONV_DEPTH, row_bytes: PANEL_BYTES, element: 2 };
    /// Lanes that copy a row of B, 16 bytes each.
    const LANES: u32 = 8 * F::CHUNKS as u32;

    /// Returns the position of A that the first of the tile's positions meets at this tap. Outside of the image it
    /// wraps around, as TMA requires.
    #[inline(always)]
    fn origin(p: &PitConvParams, work: Work, tap: u32) -> [u32; 2] {
        let (i, j) = p.window.of(tap);
        let along = |axis: usize, t: u32| {
            (work.corner[axis] * p.stride[axis] + t * p.dilation[axis])
                .wrapping_sub(p.padding[axis])
        };
        [along(0, i), along(1, j)]
    }

    #[inline(always)]
    fn start_a(map: u64, image: u32, [x, y]: [u32; 2], from: u32, slot: u32) {
        bulk::tma_load_4d(Self::stage(slot), map, [from, y, x, image], Self::full(slot));
    }

    /// Starts this thread's copies of channels of a tile's positions, the first of which meets `[x, y]`: eight threads
    /// copy a line. Positions outside of the image and channels past the last one are zero.
    #[inline(always)]
    fn bring_a(p: &PitConvParams, image: u32, [x, y]: [u32; 2], from: u32, slot: u32) {
        let thread = gpu::opaque_thread() - CONSUMER_WARPS * 32;
        let (own, chunk) = (thread / 8, thread % 8);
        let (of_line, of_images) = (p.a_map[MAP_EXTENTS], p.a_map[MAP_EXTENTS + 1]);
        let (bytes, wide, tall) = (of_line as u32, (of_line >> 32) as u32, of_images as u32);
        let [right, down, next] = [0, 1, 2].map(|axis| p.a_map[MAP_STRIDES + axis]);
        let first = from * 2 + chunk * 16;
        let line = p.a_map[MAP_ADDRESS] + image as u64 * next + first as u64;
        let to = Self::stage(slot) + own * PANEL_BYTES as u32 + (chunk ^ (own % 8)) * 16;
        unroll!(i < F::MT / Self::AT_ONCE as usize, {
            let further = i as u32 * Self::AT_ONCE;
            let (lower, later) = p.wide.of(own + further);
            let x = x.wrapping_add(lower * p.stride[0]);
            let y = y.wrapping_add(later * p.stride[1]);
            let valid = first < bytes && x < tall && y < wide;
            let from = line + x as u64 * down + y as u64 * right;
            let from = if valid { from } else { p.a_map[MAP_ADDRESS] };
            let to = to + further * PANEL_BYTES as u32;
            if bytes.is_multiple_of(16) {
                copy::cp_async_16_or_zero(to, from, valid);
            } else {
                let there = bytes.saturating_sub(first).min(16);
                copy::cp_async_16(to, from, if valid { there } else { 0 });
            }
        });
    }

    /// Gathers the rows of B that match the listed channels.
    #[inline(always)]
    pub(super) fn gather(p: &PitConvParams, at: u64) {
        let thread = gpu::thread() - CONSUMER_WARPS * 32;
        let (warp, lane) = (thread / 32, thread % 32);
        let tiles = p.positions * p.filters.div_ceil(Self::COLUMNS);
        let mut ring = Ring::<Self>::producer();
        let mut index = gpu::block_x();
        while index < tiles {
            let work = Self::work(p, index);
            let list = p.lists + work.image as u64 * p.list_stride as u64 * 4;
            let column = work.column + lane % Self::LANES * 8;
            let inside = u32::from(column < p.filters);
            let mut b = p.b + column as u64 * 2;
            // A lane holds one row of its warp; those of the next stage are prefetched.
            let place = |from: u32| list + (from + warp * STEP + lane % STEP) as u64 * 4;
            let mut rows = global::ld_cg_b32(place(0), work.count > 0);
            let (map, bytes) = if Self::is_narrow(work.count) {
                (at + 128, Self::A_BYTES as u32 / 2)
            } else {
                (at, Self::A_BYTES as u32)
            };
            let mut tap = 0;
            while tap < p.taps {
                let origin = Self::origin(p, work, tap);
                let mut from = 0;
                while from < work.count {
                    let now = rows;
                    let more = from + DEPTH < work.count;
                    // After the last channel the first one follows, for the next tap. Rows of a single stage are loaded
                    // already.
                    if work.count > DEPTH {
                        let from = if more { from + DEPTH } else { 0 };
                        rows = global::ld_cg_b32(place(from), true);
                    }
                    ring.wait_empty();
                    if !F::L::BY_ONE {
                        Self::bring_a(p, work.image, origin, from, ring.slot);
                    } else if thread == 0 {
                        barrier::arrive_expect_tx(ring.full(), bytes);
                        Self::start_a(map, work.image, origin, from, ring.slot);
                    }
                    if from + (warp + 1) * STEP <= work.count {
                        Self::bring::<true>(p, (b, inside), ring.slot, now);
                    } else if warp < steps::<DEPTH, STEP>(work.count, from) {
                        Self::bring::<false>(p, (b, inside), ring.slot, now);
                    }
                    copy::cp_async_arrive(ring.full());
                    ring.advance();
                    from += DEPTH;
                }
                b += p.channels as u64 * p.ldb_bytes as u64;
                tap += 1;
            }
            index += gpu::grid_x();
        }
        copy::cp_async_wait_all();
    }

    /// Starts this warp's copies of 16 rows of B: a lane copies 16 bytes, from its own column on. `WHOLE`: all 16
    /// exist. Otherwise missing rows are zero, since zeros of A times a NaN would be NaN.
    #[inline(always)]
    fn bring<const WHOLE: bool>(
        p: &PitConvParams,
        (from, inside): (u64, u32),
        slot: u32,
        rows: u32,
    ) {
        let thread = gpu::opaque_thread() - CONSUMER_WARPS * 32;
        let (warp, lane) = (thread / 32, thread % 32);
        let (line, lane) = (lane / Self::LANES, lane % Self::LANES);
        let to = Self::stage(slot) + Self::A_BYTES as u32;
        let to = to + lane / 8 * SMEM_TILE as u32 + warp * STEP * PANEL_BYTES as u32;
        unroll!(eight < 2, {
            unroll!(i < 8, {
                if (8 * eight + i) < STEP as usize * Self::LANES as usize / 32 {
                    let place = (8 * eight + i) as u32 * (32 / Self::LANES) + line;
                    let row = warp::shfl(rows, place);
                    let to = to + ((lane % 8) ^ (place % 8)) * 16 + place * PANEL_BYTES as u32;
                    if WHOLE {
                        let from = from + row as u64 * p.ldb_bytes as u64;
                        copy::cp_async_16_if(to, from, inside);
                    } else {
                        let valid = inside != 0 && row != NO_TILE;
                        let from = if valid { from + row as u64 * p.ldb_bytes as u64 } else { p.b };
                        copy::cp_async_16_or_zero(to, from, valid);
                    }
                }
            });
        });
    }

    /// Copies A and the packed, listed filters: one thread starts the TMA copies, or all threads copy.
    #[inline(always)]
    pub(super) fn slide(p: &PitConvParams, at: u64) {
        let columns = Self::columns(p);
        let tiles = p.positions * columns.div_ceil(Self::COLUMNS);
        let thread = gpu::opaque_thread() - CONSUMER_WARPS * 32;
        let team = Team { thread, threads: PIT_CONV_PRODUCER_THREADS };
        let mut ring = Ring::<Self>::producer();
        let mut index = gpu::block_x();
        while index < tiles {
            let work = Self::work(p, index);
            let chunks = (columns - work.column).min(Self::COLUMNS).div_ceil(64);
            let bytes = Self::A_BYTES as u32 + chunks * SMEM_TILE as u32;
            let mut tap = 0;
            while tap < p.taps {
                let origin = Self::origin(p, work, tap);
                let mut from = 0;
                while from < work.count {
                    let (slot, full) = (ring.wait_empty(), ring.full());
                    if F::L::BY_ONE {
                        barrier::arrive_expect_tx(full, bytes);
                        Self::start_a(at, work.image, origin, from, slot);
                    } else {
                        Self::bring_a(p, work.image, origin, from, slot);
                    }
                    let to = Self::stage(slot) + Self::A_BYTES as u32;
                    let mut chunk = 0;
                    while chunk < chunks {
                        let column = work.column + chunk * 64;
                        let to = to + chunk * SMEM_TILE as u32;
                        let place = [column, from, tap];
                        F::L::tile(team, to, (at + 128, &p.b_map), place, Self::B_TILE, full);
                        chunk += 1;
                    }
                    if !F::L::BY_ONE {
                        copy::cp_async_arrive(full);
                    }
                    ring.advance();
                    from += DEPTH;
                }
                tap += 1;
            }
            index += gpu::grid_x();
        }
        F::L::wait_own();
    }
}
