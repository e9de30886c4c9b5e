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
    fn start_a(map: TensorMap, image: u32, [x, y]: [u32; 2], from: u32, slot: u32) {
        map.load_4d(Self::stage(slot), [from, y, x, image], Self::full(slot));
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
        // SAFETY: the host made the map of a tensor that it has checked. `valid` positions are
        // inside of its extents.
        let a: Global<u8, ReadWrite> = unsafe { Global::new(p.a_map[MAP_ADDRESS]) };
        let line = a.row(image, next).bytes(first);
        let to = Self::stage(slot) + own * PANEL_BYTES as u32 + (chunk ^ (own % 8)) * 16;
        unroll!(i < F::MT / Self::AT_ONCE as usize, {
            let further = i as u32 * Self::AT_ONCE;
            let (lower, later) = p.wide.of(own + further);
            let x = x.wrapping_add(lower * p.stride[0]);
            let y = y.wrapping_add(later * p.stride[1]);
            let valid = first < bytes && x < tall && y < wide;
            let from = line.row(x, down).row(y, right);
            let from = if valid { from } else { a };
            let to = to + further * PANEL_BYTES as u32;
            if bytes.is_multiple_of(16) {
                from.cp_async_16_or_zero(to, valid);
            } else {
                let there = bytes.saturating_sub(first).min(16);
                from.cp_async_16(to, if valid { there } else { 0 });
            }
        });
    }

    /// Gathers the rows of B that match the listed channels.
    #[inline(always)]
    pub(super) fn gather(p: &PitConvParams, at: Maps) {
        let thread = gpu::thread() - CONSUMER_WARPS * 32;
        let (warp, lane) = (thread / 32, thread % 32);
        let tiles = p.positions * p.filters.div_ceil(Self::COLUMNS);
        let mut ring = Ring::<Self>::producer();
        let mut index = gpu::block_x();
        while index < tiles {
            let work = Self::work(p, index);
            let list = p.lists().at(work.image as u64 * p.list_stride as u64);
            let column = work.column + lane % Self::LANES * 8;
            let inside = u32::from(column < p.filters);
            let mut b = p.b().at(column);
            // A lane holds one row of its warp; those of the next stage are prefetched.
            let place = |from: u32| list.at(from + warp * STEP + lane % STEP);
            let mut rows = place(0).ld_if(work.count > 0);
            let (map, bytes) = if Self::is_narrow(work.count) {
                (at.map(1), Self::A_BYTES as u32 / 2)
            } else {
                (at.map(0), Self::A_BYTES as u32)
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
                        rows = place(from).ld();
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
                b = b.row(p.channels, p.ldb_bytes);
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
        (from, inside): (Global<u16, ReadWrite>, u32),
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
                        from.row(row, p.ldb_bytes).cp_async_16_if(to, inside);
                    } else {
                        let valid = inside != 0 && row != NO_TILE;
                        let from = if valid { from.row(row, p.ldb_bytes) } else { p.b() };
                        from.cp_async_16_or_zero(to, valid);
                    }
                }
            });
        });
    }

    /// Copies A and the packed, listed filters: one thread starts the TMA copies, or all threads copy.
    #[inline(always)]
    pub(super) fn slide(p: &PitConvParams, at: Maps) {
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
                        Self::start_a(at.map(0), work.image, origin, from, slot);
                    } else {
                        Self::bring_a(p, work.image, origin, from, slot);
                    }
                    let to = Self::stage(slot) + Self::A_BYTES as u32;
                    let mut chunk = 0;
                    while chunk < chunks {
                        let column = work.column + chunk * 64;
                        let to = to + chunk * SMEM_TILE as u32;
                        let place = [column, from, tap];
                        F::L::tile(team, to, (at.map(1), &p.b_map), place, Self::B_TILE, full);
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
