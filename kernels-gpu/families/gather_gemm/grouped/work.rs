//! Order in which thread blocks compute the tiles of row blocks.

use crate::device::prelude::*;
use crate::families::discover::abi::ROUTE_RECORD;
use crate::families::gather_gemm::abi::*;

/// Work item: a row block by a tile of columns.
#[derive(Clone, Copy)]
pub(super) struct Work {
    /// Expert, which selects the matrix.
    pub(super) expert: u32,
    /// First slot of the row block.
    pub(super) first: u32,
    /// Number of slots of the row block, at most 128. 0 past the last work item.
    pub(super) rows: u32,
    /// First column of C.
    pub(super) column: u32,
    /// Whether the other thread block of the cluster multiplies by the same columns.
    pub(super) shared: bool,
}

impl Work {
    pub(super) const NONE: Work = Work { expert: 0, first: 0, rows: 0, column: 0, shared: false };
}

/// Position among the stages of a thread block without a cluster. The next work item is prefetched.
pub(super) struct Cursor {
    pub(super) index: u32,
    pub(super) tiles: u32,
    pub(super) work: Work,
    pub(super) later: Work,
    pub(super) deep: u32,
}

impl<const CHUNKS: usize, F: GroupedForm<A: Multiply, L: Loader>> GroupedTile<CHUNKS, F> {
    #[inline(always)]
    pub(super) fn first_stage(p: &GroupedParams) -> Cursor {
        let (tiles, index) = (Self::tiles(p), gpu::block_x());
        Cursor {
            index,
            tiles,
            work: Self::work(p, index, tiles),
            later: Self::work(p, index + gpu::grid_x(), tiles),
            deep: 0,
        }
    }

    /// Advances to the next stage. Returns whether it is the first of a work item.
    #[inline(always)]
    pub(super) fn next_stage(p: &GroupedParams, at: &mut Cursor) -> bool {
        at.deep += Self::STAGE_K;
        let ends = at.deep >= p.k;
        if ends {
            at.deep = 0;
            at.index += gpu::grid_x();
            at.work = at.later;
            at.later = Self::work(p, at.index + gpu::grid_x(), at.tiles);
        }
        ends
    }

    /// Returns the address of the number of row blocks, followed by their records.
    #[inline(always)]
    fn panels(p: &GroupedParams) -> Global<u32, Fresh> {
        // Like `opaque_if_mma_sync`.
        if F::A::ASYNCHRONOUS { p.panels() } else { p.panels().opaque() }
    }

    /// Returns the value. With `mma.sync` it also hides the value from the optimizer. The compiler then recomputes
    /// derived values, because the products leave no registers for them.
    #[inline(always)]
    pub(super) fn opaque_if_mma_sync(value: u32) -> u32 {
        if F::A::ASYNCHRONOUS { value } else { warp::opaque(value) }
    }

    /// Returns the number of work items, half of the tiles in clusters. The routing writes the number of row blocks.
    #[inline(always)]
    pub(super) fn tiles(p: &GroupedParams) -> u32 {
        let tiles = Self::panels(p).ld() * p.across.value;
        if Self::paired(p) { tiles / 2 } else { tiles }
    }

    /// Returns whether thread blocks run in clusters of two.
    #[inline(always)]
    pub(super) fn paired(p: &GroupedParams) -> bool {
        Self::PAIRS && warp::opaque(p.flags) & GROUPED_PAIRED != 0
    }

    /// Returns the number of this thread block's first work item.
    #[inline(always)]
    pub(super) fn first_work(p: &GroupedParams) -> u32 {
        gpu::block_x() >> u32::from(Self::paired(p))
    }

    /// Returns the distance from one work item to the next.
    #[inline(always)]
    pub(super) fn stride(p: &GroupedParams) -> u32 {
        gpu::grid_x() >> u32::from(Self::paired(p))
    }

    /// Returns work item `index` of `tiles`; `rows` is 0 past the last. There are three orders:
    ///
    /// - Few rows per matrix (`GROUPED_ONCE`): row block by row block, all columns of each. W is read once.
    /// - Otherwise, in a group of up to 12 row blocks of an expert: column tile by column tile, all row blocks of each.
    ///   A matrix larger than L2 is then read once for the group.
    /// - In clusters (`GROUPED_PAIRED`): two column tiles at a time. The two thread blocks compute two row blocks of
    ///   the same columns. If their number is odd, each computes one of the two column
    ///   tiles of the last row block.
    #[inline(always)]
    pub(super) fn work(p: &GroupedParams, index: u32, tiles: u32) -> Work {
        let paired = Self::paired(p);
        let (mut row_block, mut across) = p.across.of(if paired { 2 * index } else { index });
        let mut shared = false;
        let record = |row_block: u32| {
            let at = Self::panels(p).at((row_block as u64 + 1) * ROUTE_RECORD as u64);
            at.cast::<[u32; 4]>().ld_if(index < tiles)
        };
        if paired {
            let [.., group] = record(row_block);
            let (first, together) = (row_block - (group & 0xffff), group >> 16);
            // Two tiles across at a time, for all row blocks of the group.
            let own = index - first * (p.across.value / 2);
            let columns = own.checked_div(together).unwrap_or(0);
            let turn = own - columns * together;
            let rank = cluster::rank();
            shared = turn < (together & !1);
            let [panel, tile] = if shared {
                [(turn & !1) + rank, turn % 2]
            } else {
                // The last row block of an odd number: each thread block computes one tile of it.
                [turn, rank]
            };
            (row_block, across) = (first + panel, 2 * columns + tile);
        } else if p.flags & GROUPED_ONCE == 0 {
            // A group's tiles are ordered column by column: a matrix larger than L2 is read once for the whole group.
            let [.., group] = record(row_block);
            let (first, together) = (row_block - (group & 0xffff), group >> 16);
            let own = index - first * p.across.value;
            across = own.checked_div(together).unwrap_or(0);
            row_block = first + own - across * together;
        }
        let [expert, first, rows, _] = record(row_block);
        Work { expert, first, rows, column: across * Self::COLUMNS, shared }
    }

    /// Returns the number of rows of a row block, warp-uniform.
    #[inline(always)]
    pub(super) fn count(work: Work) -> u32 {
        warp::uniform(work.rows)
    }

    /// Returns the rest of a row block after its first 64 rows.
    #[inline(always)]
    pub(super) fn second_half(work: Work) -> Work {
        Work { first: work.first + 64, rows: work.rows - 64, ..work }
    }
}
