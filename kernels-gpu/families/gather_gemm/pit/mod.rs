//! Product with an operand whose empty micro-tiles were found at run time. Four producer warps gather the rows of B
//! that match the micro-tiles of a row block of A, and start the copies of the micro-tiles; two consumer warpgroups
//! multiply. The grid is persistent: the number of micro-tiles is read on the device.

use super::listed::{Share, Source, producer};
use super::pit_work::{ByList, Fill, Work, produce};
use crate::device::epilogue::{Output, output};
use crate::device::prelude::*;
use crate::device::stages::steps;
use crate::device::store::StoreTile;
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
    /// Rows of B of a stage that a warp gathers, and rows of a transposed A.
    const B_SHARE: Share =
        Share { rows: <Self as ByList>::ROWS, lanes: Self::COLUMNS / 8, slab: Self::SLAB as u32 };
    const A_SHARE: Share = Share { lanes: 8, ..Self::B_SHARE };
    /// Shape of a tile of A's packed values, for 64 rows of A or fewer.
    const A_TILE: Shape = Shape { rows: Self::DEPTH, row_bytes: Self::A_ROW, element: 2 };

    /// Returns the batch item of a row block, and its first row there. Without transposition the rows of A are those of
    /// all items.
    #[inline(always)]
    fn place(p: &PitParams, row_block: u32) -> (u32, u32) {
        let (item, within) = if F::TRANSPOSED { p.item.of(row_block) } else { (0, row_block) };
        (item, within * F::MT as u32)
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
        let b_tile = stage.bytes(Self::B_AT as u32);
        let (a, b) = if F::MT == 128 {
            (stage.bytes(group * Self::SLAB as u32), b_tile)
        } else {
            (stage, b_tile.bytes(group * 2 * Self::SLAB as u32))
        };
        let row = Self::A_ROW as u32;
        // 32 rows fill an operand of 64: its second half repeats the first.
        let between = if F::MT == 32 { 0 } else { Self::DEPTH as u32 * row };
        unroll!(step < Self::DEPTH / STEP as usize, most 4, {
            if (step as u32) < used {
                let deep = step as u32 * STEP;
                let a = a.bytes(deep * row).descriptor(row, between);
                let b = b.bytes(deep * PANEL_BYTES as u32).descriptor(128, Self::SLAB as u32);
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
        // SAFETY: `SHARED_BYTES` of the tile includes both output buffers.
        let smem = unsafe { Shared::dynamic(Self::OUT as u32 + group * SMEM_TILE as u32) };
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

/// The sources are those of B, and of a transposed A.
impl<F: PitForm<A: Multiply, L: Loader>> ByList for PitColumns<F> {
    const ROWS: u32 = Self::DEPTH as u32 / 4;
    const K_STEP: u32 = STEP;
    type Sources = [Source; 2];

    #[inline(always)]
    fn sources(p: &PitParams, work: Work, lane: u32) -> [Source; 2] {
        let column = work.column + lane % Self::B_SHARE.lanes * 8;
        let (item, _) = p.item.of(work.row_block);
        let b = p.b().row(item, p.item_bytes).cast::<u16>();
        let (item, left) = Self::place(p, work.row_block);
        let a = p.a().row(item, p.a_item);
        let left = left + lane % Self::A_SHARE.lanes * 8;
        let b = Source::new(b, [column, p.n], p.ldb_bytes);
        let a = Source::new(a, [left, p.m], p.lda_bytes);
        // The operands' own addresses are parameters: those of the batch items would take two registers each.
        [Source { matrix: p.b().cast(), ..b }, Source { matrix: p.a().cast(), ..a }]
    }

    /// A transposed A is gathered: missing pieces are zero, so that data of an earlier stage is not multiplied. With
    /// `cp.async` the arrivals of the other copies cover this one.
    #[inline(always)]
    fn start_a(p: &PitParams, at: Maps, [_, a]: [Source; 2], fill: Fill) {
        let (thread, to, full) = (producer(), Self::stage(fill.slot), Self::full(fill.slot));
        if F::TRANSPOSED {
            return a.gather::<false>(Self::A_SHARE, fill.row, to);
        }
        if F::L::BY_ONE && thread != 0 {
            return;
        }
        if F::L::BY_ONE {
            full.arrive_expect_tx(Self::A_BYTES as u32);
        }
        let y = fill.work.row_block * p.stride + fill.from;
        let team = Team { thread, threads: PIT_PRODUCER_THREADS };
        let map = (at.map(0), &p.a_map);
        F::L::tile(team, to, map, [0, y], Self::A_TILE, full);
        if F::MT == 128 {
            F::L::tile(team, to.bytes(Self::SLAB as u32), map, [64, y], Self::A_TILE, full);
        }
    }

    #[inline(always)]
    fn gather<const WHOLE: bool>([b, _]: [Source; 2], fill: Fill) {
        let to = Self::stage(fill.slot).bytes(Self::B_AT as u32);
        b.gather::<WHOLE>(Self::B_SHARE, fill.row, to);
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
            F::A: produce::<Self>(p, at),
            if F::MT == 128 && F::A::ASYNCHRONOUS {
                Self::consume::<E, 4>(p);
            } else {
                Self::consume::<E, 2>(p);
            }
        );
    }
}
