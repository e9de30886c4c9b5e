//! Producer warps: copies into the ring.

use super::{DEPTH, STEP, Work};
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;
use crate::families::gather_gemm::listed::{Share, Source, producer};

impl<F: PitConvForm<A: Multiply, L: Loader>> PitConv<F> {
    /// Positions of a tile that the threads copy at once, 16 bytes each.
    const AT_ONCE: u32 = PIT_CONV_PRODUCER_THREADS / 8;

    /// Shape of a stage's packed filters, 64 of them.
    const B_TILE: Shape = Shape { rows: PIT_CONV_DEPTH, row_bytes: PANEL_BYTES, element: 2 };
    /// Rows of B of a stage that a warp gathers.
    const B_SHARE: Share =
        Share { rows: STEP, lanes: 8 * F::CHUNKS as u32, slab: SMEM_TILE as u32 };

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

    /// Starts this thread's copies of channels of a tile's positions, the first of which meets `[x, y]`: eight threads
    /// copy a line. Positions outside of the image and channels past the last one are zero.
    #[inline(always)]
    fn bring_a(p: &PitConvParams, image: u32, [x, y]: [u32; 2], from: u32, slot: u32) {
        let thread = producer();
        let (own, chunk) = (thread / 8, thread % 8);
        let (of_line, of_images) = (p.a_map[MAP_EXTENTS], p.a_map[MAP_EXTENTS + 1]);
        let (bytes, wide, tall) = (of_line as u32, (of_line >> 32) as u32, of_images as u32);
        let [right, down, next] = [0, 1, 2].map(|axis| p.a_map[MAP_STRIDES + axis]);
        let first = from * 2 + chunk * 16;
        // SAFETY: the host made the map of a tensor that it has checked. `valid` positions are
        // inside of its extents.
        let a: Global<u8, ReadWrite> = unsafe { Global::new(p.a_map[MAP_ADDRESS]) };
        let line = a.row(image, next).bytes(first);
        let to = Self::stage(slot).bytes(own * PANEL_BYTES as u32).bytes((chunk ^ (own % 8)) * 16);
        unroll!(i < F::MT / Self::AT_ONCE as usize, {
            let further = i as u32 * Self::AT_ONCE;
            let (lower, later) = p.wide.of(own + further);
            let x = x.wrapping_add(lower * p.stride[0]);
            let y = y.wrapping_add(later * p.stride[1]);
            let valid = first < bytes && x < tall && y < wide;
            let from = line.row(x, down).row(y, right);
            let from = if valid { from } else { a };
            let to = to.bytes(further * PANEL_BYTES as u32);
            if bytes.is_multiple_of(16) {
                from.cp_async_16_or_zero(to, valid);
            } else {
                let there = bytes.saturating_sub(first).min(16);
                from.cp_async_16(to, if valid { there } else { 0 });
            }
        });
    }

    /// Fills the ring with the stages of every tile. All producer threads copy; with packed filters and TMA, one thread
    /// starts all copies.
    #[inline(always)]
    pub(super) fn produce(p: &PitConvParams, at: Maps) {
        let thread = gpu::thread() - CONSUMER_WARPS * 32;
        let (warp, lane) = (thread / 32, thread % 32);
        let columns = Self::columns(p);
        let tiles = p.positions * columns.div_ceil(Self::COLUMNS);
        let mut ring = Ring::<Self>::producer();
        let mut index = gpu::block_x();
        while index < tiles {
            let work = Self::work(p, index);
            let list = p.lists().at(work.image as u64 * p.list_stride as u64);
            let column = work.column + lane % Self::B_SHARE.lanes * 8;
            let mut b = Source::new(p.b(), [column, p.filters], p.ldb_bytes);
            // A lane holds one row of its warp; those of the next stage are prefetched.
            let place = |from: u32| list.at(from + warp * STEP + lane % STEP);
            let mut rows = if F::FILTERS { 0 } else { place(0).ld_if(work.count > 0) };
            let chunks = (columns - work.column).min(Self::COLUMNS).div_ceil(64);
            let (map, bytes) = if F::FILTERS {
                (at.map(0), Self::A_BYTES as u32 + chunks * SMEM_TILE as u32)
            } else if Self::is_narrow(work.count) {
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
                    // After the last channel the first one follows, for the next tap. Rows of a single stage are loaded
                    // already.
                    if !F::FILTERS && work.count > DEPTH {
                        let more = from + DEPTH < work.count;
                        rows = place(if more { from + DEPTH } else { 0 }).ld();
                    }
                    let (slot, full) = (ring.wait_empty(), ring.full());
                    if !F::L::BY_ONE {
                        Self::bring_a(p, work.image, origin, from, slot);
                    } else if F::FILTERS || thread == 0 {
                        let [x, y] = origin;
                        full.arrive_expect_tx(bytes);
                        map.load_4d(Self::stage(slot), [from, y, x, work.image], full);
                    }
                    let to = Self::stage(slot).bytes(Self::A_BYTES as u32);
                    if F::FILTERS {
                        Self::start_b(p, at, chunks, [work.column, from, tap], (to, full));
                    } else if from + (warp + 1) * STEP <= work.count {
                        b.gather::<true>(Self::B_SHARE, now, to);
                    } else if from + warp * STEP < work.count {
                        b.gather::<false>(Self::B_SHARE, now, to);
                    }
                    if !F::FILTERS || !F::L::BY_ONE {
                        full.arrive_after_copies();
                    }
                    ring.advance();
                    from += DEPTH;
                }
                b.from = b.from.row(p.channels, p.ldb_bytes);
                tap += 1;
            }
            index += gpu::grid_x();
        }
        copy::cp_async_wait_all();
    }

    /// Starts the copies of packed, listed filters: chunks of 64 columns from `[column, channel, tap]` on.
    #[inline(always)]
    fn start_b(
        p: &PitConvParams,
        at: Maps,
        chunks: u32,
        [column, from, tap]: [u32; 3],
        (to, full): (Shared<u8>, Shared<Mbarrier>),
    ) {
        let thread = producer();
        let team = Team { thread, threads: PIT_CONV_PRODUCER_THREADS };
        let mut chunk = 0;
        while chunk < chunks {
            let place = [column + chunk * 64, from, tap];
            let to = to.bytes(chunk * SMEM_TILE as u32);
            F::L::tile(team, to, (at.map(1), &p.b_map), place, Self::B_TILE, full);
            chunk += 1;
        }
    }
}
