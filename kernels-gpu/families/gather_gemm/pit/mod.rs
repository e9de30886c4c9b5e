//! Product with an operand whose empty micro-tiles were found at run time. Four producer warps gather the rows of B
//! that match the micro-tiles of a row block of A, and start the copies of the micro-tiles; two consumer warpgroups
//! multiply. The grid is persistent: the number of micro-tiles is read on the device.

use super::pit_work::Work;
use crate::device::epilogue::{Output, output};
use crate::device::prelude::*;
use crate::device::stages::steps;
use crate::device::store::StoreTile;
use crate::families::discover::abi::NO_TILE;
use crate::families::gather_gemm::abi::*;

/// Micro-tiles of a k-step.
const STEP: u32 = 16;

impl PitParams {
    #[inline(always)]
    fn output(&self, item: u32) -> Output {
        Output {
            c: self.c().row(item, self.c_item),
            flags: warp::opaque(self.flags),
            ..output!(self)
        }
    }
}

impl<F: PitForm> Stages for PitColumns<F> {
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<F: PitForm<A: Multiply, L: Loader>> PitColumns<F> {
    /// Rows of B of a stage that a warp gathers.
    const ROWS: u32 = Self::DEPTH as u32 / 4;
    /// Lanes that share a row of B.
    const LANES: u32 = Self::COLUMNS / 8;
    /// Rows of B that a warp copies at once.
    const AT_ONCE: usize = 32 / Self::LANES as usize;
    /// Shape of a tile of A's packed values, for 64 rows of A or fewer.
    const A_TILE: Shape = Shape { rows: Self::DEPTH, row_bytes: Self::A_ROW, element: 2 };

    /// Returns the batch item of a row block, and its first row there. Without transposition the rows of A are those of
    /// all items.
    #[inline(always)]
    fn place(p: &PitParams, row_block: u32) -> (u32, u32) {
        let (item, within) = if F::TRANSPOSED { p.item.of(row_block) } else { (0, row_block) };
        (item, within * F::MT as u32)
    }

    #[inline(always)]
    fn produce(p: &PitParams, at: Maps) {
        let thread = gpu::thread() - CONSUMER_WARPS * 32;
        let (warp, lane) = (thread / 32, thread % 32);
        let mut ring = Ring::<Self>::producer();
        let mut index = gpu::block_x();
        while index < p.tiles {
            let work = Work::new(p, index, Self::COLUMNS);
            let list = p.lists().at(work.row_block as u64 * p.stride as u64);
            let column = work.column + lane % Self::LANES * 8;
            let (item, _) = p.item.of(work.row_block);
            let b = p.b().row(item, p.item_bytes).cast::<u16>().at(column);
            let lanes = (b, u32::from(column < p.n));
            // Once a tile: work done for each stage would delay its first copy after the wait.
            let of_a = Self::own_of_a(p, work, lane);
            // A lane holds one row of its warp; those of the next stage are prefetched.
            let place = |from: u32| list.at(from + warp * Self::ROWS + lane % Self::ROWS);
            let mut rows = place(0).ld_if(work.count > 0);
            let mut from = 0;
            while from < work.count {
                let now = rows;
                let more = from + (Self::DEPTH as u32) < work.count;
                rows = place(from + Self::DEPTH as u32).ld_if(more);
                ring.wait_empty();
                if F::TRANSPOSED {
                    Self::gather_a(p, of_a, ring.slot, now);
                } else {
                    Self::start_a(p, at, work, from, ring.slot);
                }
                if from + (warp + 1) * Self::ROWS <= work.count {
                    Self::gather::<true>(p, lanes, ring.slot, now);
                } else if warp * Self::ROWS < Self::used(work.count, from) * STEP {
                    Self::gather::<false>(p, lanes, ring.slot, now);
                }
                copy::cp_async_arrive(ring.full());
                ring.advance();
                from += Self::DEPTH as u32;
            }
            index += gpu::grid_x();
        }
        copy::cp_async_wait_all();
    }

    /// Returns the k-steps that are used of the stage that begins at micro-tile `from`.
    #[inline(always)]
    fn used(count: u32, from: u32) -> u32 {
        if Self::DEPTH == 64 {
            steps::<64, STEP>(count, from)
        } else {
            steps::<32, STEP>(count, from)
        }
    }

    /// Starts the copy of a stage's micro-tiles. With `cp.async` the arrivals of the other copies cover it.
    #[inline(always)]
    fn start_a(p: &PitParams, at: Maps, work: Work, from: u32, slot: u32) {
        let thread = gpu::opaque_thread() - CONSUMER_WARPS * 32;
        if F::L::BY_ONE && thread != 0 {
            return;
        }
        let (to, full) = (Self::stage(slot), Self::full(slot));
        if F::L::BY_ONE {
            barrier::arrive_expect_tx(full, Self::A_BYTES as u32);
        }
        let y = work.row_block * p.stride + from;
        let team = Team { thread, threads: PIT_PRODUCER_THREADS };
        let map = (at.map(0), &p.a_map);
        F::L::tile(team, to, map, [0, y], Self::A_TILE, full);
        if F::MT == 128 {
            F::L::tile(team, to + Self::SLAB as u32, map, [64, y], Self::A_TILE, full);
        }
    }

    /// Returns the address of a lane's 16 bytes of the first row of a transposed A, and whether A has them.
    #[inline(always)]
    fn own_of_a(p: &PitParams, work: Work, lane: u32) -> (Global<u16, ReadWrite>, u32) {
        if !F::TRANSPOSED {
            return (p.a(), 0);
        }
        let (item, left) = Self::place(p, work.row_block);
        let column = left + lane % 8 * 8;
        let from = p.a().row(item, p.a_item).at(column);
        (from, u32::from(column < p.m))
    }

    /// Starts this warp's copies of pieces of rows of A: 8 lanes copy one. Missing pieces are zero, so that data of an
    /// earlier stage is not multiplied.
    #[inline(always)]
    fn gather_a(
        p: &PitParams,
        (from, inside): (Global<u16, ReadWrite>, u32),
        slot: u32,
        rows: u32,
    ) {
        let thread = gpu::opaque_thread() - CONSUMER_WARPS * 32;
        let (warp, lane) = (thread / 32, thread % 32);
        let (within, chunk) = (lane / 8, lane % 8);
        let to = Self::stage(slot) + warp * Self::ROWS * PANEL_BYTES as u32;
        unroll!(four < Self::DEPTH / 16, most 4, {
            let place = 4 * (four as u32) + within;
            let row = warp::shfl(rows, place);
            let to = to + place * PANEL_BYTES as u32 + (chunk ^ (place % 8)) * 16;
            let valid = inside != 0 && row != NO_TILE;
            let from = from.row(row, p.lda_bytes);
            let from = if valid { from } else { p.a() };
            from.cp_async_16_or_zero(to, valid);
        });
    }

    /// Starts this warp's copies of rows of B: a lane copies 16 bytes of each, from its own column on. `WHOLE`: all
    /// rows exist. Otherwise missing rows are zero, since zeros of A times a NaN would be NaN.
    #[inline(always)]
    fn gather<const WHOLE: bool>(
        p: &PitParams,
        (from, inside): (Global<u16, ReadWrite>, u32),
        slot: u32,
        rows: u32,
    ) {
        let thread = gpu::opaque_thread() - CONSUMER_WARPS * 32;
        let (warp, lane) = (thread / 32, thread % 32);
        // This lane's row among those that a warp copies at once.
        let own = if Self::AT_ONCE == 1 { 0 } else { lane / Self::LANES };
        let lane = lane % Self::LANES;
        let to = Self::stage(slot) + Self::B_AT as u32;
        let to = to + lane / 8 * Self::SLAB as u32 + warp * Self::ROWS * PANEL_BYTES as u32;
        unroll!(eight < Self::DEPTH / 32, most 4, {
            unroll!(i < 8 / Self::AT_ONCE, {
                let first = (i * Self::AT_ONCE) as u32;
                let (place, within) = (8 * eight as u32 + first + own, first + own);
                let row = warp::shfl(rows, place);
                let to = to + ((lane % 8) ^ within) * 16 + place * PANEL_BYTES as u32;
                if WHOLE {
                    from.row(row, p.ldb_bytes).cp_async_16_if(to, inside);
                } else {
                    let valid = inside != 0 && row != NO_TILE;
                    let from = from.row(row, p.ldb_bytes);
                    let from = if valid { from } else { p.b().cast() };
                    from.cp_async_16_or_zero(to, valid);
                }
            });
        });
    }

    /// Multiplies and stores `C` chunks of 64 columns for each warpgroup. The warpgroups split 128 rows; with fewer
    /// rows both have all of them and half of the columns.
    #[inline(always)]
    fn consume<E: WgmmaElem, const C: usize>(p: &PitParams) {
        let group = gpu::thread() / 128;
        let mut ring = Ring::<Self>::consumer();
        let mut index = gpu::block_x();
        while index < p.tiles {
            let work = Work::new(p, index, Self::COLUMNS);
            let count = warp::uniform(work.count);
            let mut acc = Acc::<C>::zero();
            let mut from = 0;
            while from < count {
                let slot = ring.wait_full();
                // `cp.async` wrote the gathered rows through the generic proxy.
                F::A::fence_proxy_async();
                F::A::fence(&mut acc);
                Self::multiply::<E, C>(&mut acc, slot, group, Self::used(count, from));
                ring.issued::<F::A, _>(&mut acc);
                ring.advance();
                from += Self::DEPTH as u32;
            }
            ring.drain::<F::A, _>(&mut acc);
            Self::epilogue::<E, C>(p, work, group, count, &mut acc);
            index += gpu::grid_x();
        }
    }

    #[inline(always)]
    fn multiply<E: WgmmaElem, const C: usize>(acc: &mut Acc<C>, slot: u32, group: u32, used: u32) {
        let stage = Self::stage(slot);
        let b_tile = stage + Self::B_AT as u32;
        let (a, b) = if F::MT == 128 {
            (stage + group * Self::SLAB as u32, b_tile)
        } else {
            (stage, b_tile + group * 2 * Self::SLAB as u32)
        };
        let row = Self::A_ROW as u32;
        // 32 rows fill an operand of 64: its second half repeats the first.
        let between = if F::MT == 32 { 0 } else { Self::DEPTH as u32 * row };
        unroll!(step < Self::DEPTH / STEP as usize, most 4, {
            if (step as u32) < used {
                let deep = step as u32 * STEP;
                let a = frag::descriptor(a + deep * row, row, between);
                let b = frag::descriptor(b + deep * PANEL_BYTES as u32, 128, Self::SLAB as u32);
                F::A::mma::<E, C, 1, 1>(acc, a, b);
            }
        });
    }

    #[inline(always)]
    fn epilogue<E: WgmmaElem, const C: usize>(
        p: &PitParams,
        work: Work,
        group: u32,
        count: u32,
        acc: &mut Acc<C>,
    ) {
        let (item, top) = Self::place(p, work.row_block);
        let (row, column) = if F::MT == 128 {
            (top + group * 64, work.column)
        } else {
            (top, work.column + group * 128)
        };
        let smem = copy::dynamic_shared() + Self::OUT as u32 + group * SMEM_TILE as u32;
        let end = p.m.min(top + F::MT as u32);
        let o = p.output(item);
        F::A::exchange_quarters(acc, smem, 1 + group);
        if const { F::ORDER & C_COLUMNS == 0 } {
            StoreTile::<C, PLAIN>::write::<E>(o, end, [row, column], (group, smem), count, acc);
        } else {
            StoreTile::<C, C_COLUMNS>::write::<E>(o, end, [row, column], (group, smem), count, acc);
        }
    }
}

impl<W: WalkInfo, E: WgmmaElem, F: PitForm<A: Multiply, L: Loader>> Kernel<W, E, PitParams>
    for PitColumns<F>
{
    #[inline(always)]
    unsafe fn run(p: &PitParams, at: Maps) {
        grid::launch_dependents();
        if gpu::thread() == 0 {
            Self::make_barriers(Self::ARRIVALS, CONSUMER_WARPS);
            if !F::TRANSPOSED {
                F::L::prefetch_maps::<1>(at);
            }
        }
        gpu::sync_threads();
        grid::wait_dependency();
        roles!(
            F::A: Self::produce(p, at),
            if F::MT == 128 && F::A::ASYNCHRONOUS {
                Self::consume::<E, 4>(p);
            } else {
                Self::consume::<E, 2>(p);
            }
        );
    }
}
