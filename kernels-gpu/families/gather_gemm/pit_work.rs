//! Work items and producer loop of `pit` and `pit_tf32`.

use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

buffers! {
    // `PitLaunch::params` checks the alignment of the operands, its callers their shapes
    // (`host/core/families/gather_gemm/offers/pit`, `host/core/offer/run.rs`). The detection of A on the same stream writes
    // lists of at most `stride` rows of B.
    unsafe PitParams {
        lists: u32, Fresh;
        counts: u32, Fresh;
        b: u8, ReadWrite;
        c: u8, ReadWrite;
        a: u16, ReadWrite;
    }
}

/// Row block by a tile of columns, and its number of micro-tiles.
#[derive(Clone, Copy)]
pub struct Work {
    pub row_block: u32,
    pub column: u32,
    pub count: u32,
}

impl Work {
    /// Returns work item `index` for tiles of `columns` columns. Neighbouring items share columns of B.
    #[inline(always)]
    pub fn new(p: &PitParams, index: u32, columns: u32) -> Work {
        let across = index.checked_div(p.panels).unwrap_or(0);
        let row_block = index - across * p.panels;
        Work { row_block, column: across * columns, count: p.counts().at(row_block).ld() }
    }
}

/// Stage that the producers fill.
#[derive(Clone, Copy)]
pub struct Fill {
    pub work: Work,
    /// First micro-tile.
    pub from: u32,
    pub slot: u32,
    /// A row of B of this warp, held by this lane.
    pub row: u32,
}

/// Tile whose producers gather rows of B by the list of a row block.
pub trait ByList: Tile + Stages {
    /// Rows of B of a stage that a warp gathers: a quarter of its micro-tiles.
    const ROWS: u32;
    /// Micro-tiles of a k-step.
    const K_STEP: u32;
    /// Addresses of the bytes that a lane copies.
    type Sources: Copy;
    /// Computes the sources once a work item: work done for each stage would delay its first copy after the wait.
    fn sources(p: &PitParams, work: Work, lane: u32) -> Self::Sources;
    /// Starts the copies of a stage's micro-tiles.
    fn start_a(p: &PitParams, at: Maps, sources: Self::Sources, fill: Fill);
    /// Starts this warp's copies of rows of B. `WHOLE`: all rows exist.
    fn gather<const WHOLE: bool>(sources: Self::Sources, fill: Fill);
}

/// Fills the ring with the stages of every tile; called by all four producer warps.
#[inline(always)]
pub fn produce<T: ByList>(p: &PitParams, at: Maps) {
    let thread = gpu::thread() - CONSUMER_WARPS * 32;
    let (warp, lane) = (thread / 32, thread % 32);
    let depth = 4 * T::ROWS;
    let mut ring = Ring::<T>::producer();
    let mut index = gpu::block_x();
    while index < p.tiles {
        let work = Work::new(p, index, T::COLUMNS);
        let list = p.lists().at(work.row_block as u64 * p.stride as u64);
        let sources = T::sources(p, work, lane);
        // A lane holds one row of its warp; those of the next stage are prefetched.
        let place = |from: u32| list.at(from + warp * T::ROWS + lane % T::ROWS);
        let mut rows = place(0).ld_if(work.count > 0);
        let mut from = 0;
        while from < work.count {
            let row = rows;
            let more = from + depth < work.count;
            rows = place(from + depth).ld_if(more);
            let fill = Fill { work, from, slot: ring.wait_empty(), row };
            T::start_a(p, at, sources, fill);
            let steps = (work.count - from).min(depth).div_ceil(T::K_STEP);
            if from + (warp + 1) * T::ROWS <= work.count {
                T::gather::<true>(sources, fill);
            } else if warp * T::ROWS < steps * T::K_STEP {
                T::gather::<false>(sources, fill);
            }
            ring.full().arrive_after_copies();
            ring.advance();
            from += depth;
        }
        index += gpu::grid_x();
    }
    copy::cp_async_wait_all();
}
