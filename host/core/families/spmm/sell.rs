//! Launch of the module `sell`: all warps get equal shares of the chunks.

use std::sync::Arc;

use einsparse_formats::SlicedEllPattern;
use einsparse_kernels::abi::FLAG_VECTORS;
use einsparse_kernels::families::{SLICE, SellParams, SellPiece};
use einsparse_kernels::table::Row;

use super::staged::{marked, windows};
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::indirect::SpmmForm;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{
    Extents, MAX_GRID_Y, Product, RawSpmm, SpmmConfig, Turns, flags, footprint, row_bytes, small,
    within,
};
use crate::worklist::Runs;

/// Kernel that is prepared for one pattern.
#[derive(Debug)]
pub(crate) struct Sell {
    kernel: Kernel<SellParams>,
    form: SpmmForm,
    extents: Extents,
    pattern: Arc<SlicedEllPattern>,
    windows: DeviceMemory,
    rows: DeviceMemory,
    pieces: DeviceMemory,
    spans: DeviceMemory,
    slots: DeviceMemory,
    partial: DeviceMemory,
    /// End of the last run: runs share partial sums and counters.
    turns: Turns,
    slices: u32,
    slot_count: u32,
    grid: [u32; 3],
}

/// Min chunks of a warp. The more warps share a slice, the longer it takes to add their sums.
const LEAST: u64 = 8;

/// Distribution of the chunks of all slices over warps.
#[derive(Debug, Default, PartialEq, Eq)]
struct Deal {
    pieces: Vec<SellPiece>,
    /// First piece of each warp, and one past the last.
    spans: Vec<u32>,
    /// First slot of partial sums of each slice.
    slots: Vec<u32>,
    /// Number of slots.
    count: u32,
}

impl Deal {
    /// Creates equal shares for the first warps of each of `blocks` thread blocks of `of_block` warps: as many warps as
    /// get [`LEAST`] chunks each. `offsets`: first chunk of each slice. A slice without chunks is assigned to the warp
    /// that begins with the next slice.
    fn new(offsets: &[u32], blocks: usize, of_block: usize) -> Deal {
        let warps = blocks * of_block;
        let total = offsets.last().map_or(0, |&end| u64::from(end));
        let most = (total / (blocks.max(1) as u64 * LEAST)) as usize;
        let busy = most.clamp(1, of_block);
        // Number of chunks before a warp.
        let share = |warp: usize| {
            let before = warp / of_block * busy + (warp % of_block).min(busy);
            (total * before as u64 / (blocks * busy) as u64) as u32
        };
        let mut deal = Deal::default();
        let mut slice = 0;
        for warp in 0..warps {
            deal.spans.push(deal.pieces.len() as u32);
            let (from, to) = (share(warp), share(warp + 1));
            let last = warp + 1 == warps;
            if from == to && !last {
                continue;
            }
            while slice + 1 < offsets.len() && (offsets[slice] < to || last) {
                let (first, end) = (offsets[slice].max(from), offsets[slice + 1].min(to));
                deal.pieces.push(SellPiece { first, end, slice: slice as u32, parts: 0 });
                if offsets[slice + 1] > to {
                    break;
                }
                slice += 1;
            }
        }
        deal.spans.push(deal.pieces.len() as u32);
        for pieces in deal.pieces.chunk_by_mut(|a, b| a.slice == b.slice) {
            deal.slots.push(deal.count);
            let parts = pieces.len() as u32;
            for (part, piece) in pieces.iter_mut().enumerate() {
                piece.parts = part as u32 | parts << 16;
            }
            if parts > 1 {
                deal.count += parts;
            }
        }
        deal
    }
}

impl Sell {
    pub(crate) fn new(
        of: SpmmConfig<'_>,
        (runs, pattern): (&Runs, &Arc<SlicedEllPattern>),
    ) -> Result<Self> {
        let (device, row, extents) = (of.device, of.row, of.extents);
        let kernel = Kernel::load(device, row)?;
        let Extents { m, n, .. } = extents;
        within("rows of A", m, i32::MAX as usize)?;
        within("columns of B", n, i32::MAX as usize / 2)?;
        let tiles = n.div_ceil(row.columns as usize);
        within("column tiles", tiles, MAX_GRID_Y)?;
        let slices = small("slices of A", pattern.offsets().len() - 1)?;
        let sms = device.machine().multiprocessors;
        let blocks = if slices == 0 { 0 } else { sms };
        let deal = Deal::new(pattern.offsets(), blocks as usize, row.items as usize);
        // Kernels index them with 32 bits.
        let most = i32::MAX as usize;
        within("counters of slices", tiles.saturating_mul(slices as usize), most)?;
        within("parts of cut slices", tiles.saturating_mul(deal.count as usize), most)?;
        let partial = deal.count as usize * tiles * SLICE * row.columns as usize * 4;
        let pieces: Vec<[u32; 4]> = deal
            .pieces
            .iter()
            .map(|piece| [piece.first, piece.end, piece.slice, piece.parts])
            .collect();
        Ok(Sell {
            kernel,
            form: of.form,
            extents,
            windows: device.upload(&windows(pattern))?,
            rows: device.upload(&marked(pattern.order(), runs))?,
            pieces: device.upload(&pieces)?,
            spans: device.upload(&deal.spans)?,
            slots: device.upload(&deal.slots)?,
            partial: DeviceMemory::alloc(device.context(), partial)?,
            pattern: Arc::clone(pattern),
            turns: Turns::with_counters(device, slices as usize * tiles * 4)?,
            slices,
            slot_count: deal.count,
            grid: [blocks, tiles as u32, 1],
        })
    }

    fn params(&self, raw: &RawSpmm) -> Result<SellParams> {
        let Extents { k, n, .. } = self.extents;
        let element = self.row().dtype.bytes();
        let (mut flags, column_bias) = flags(&self.form, self.extents, raw)?;
        for (name, address) in [("columns of A", raw.columns), ("values of A", raw.values)] {
            crate::launch::in_vectors(name, address)?;
        }
        let lines = [raw.ldb, raw.ldc, n];
        let whole = lines.iter().all(|x| x.is_multiple_of(16 / element));
        let at = [raw.b, raw.c, column_bias];
        if whole && at.iter().all(|address| address.is_multiple_of(16)) {
            flags |= FLAG_VECTORS;
        }
        let bytes = |of: &str, leading: usize| row_bytes(of, leading, element);
        Ok(SellParams {
            windows: self.windows.address(),
            columns: raw.columns,
            values: raw.values,
            rows: self.rows.address(),
            pieces: self.pieces.address(),
            spans: self.spans.address(),
            slots: self.slots.address(),
            partial: self.partial.address(),
            counters: self.turns.counters().address(),
            b: raw.b,
            c: raw.c,
            bias: raw.bias,
            alpha: raw.alpha,
            n: small("columns of B", n)?,
            k: small("rows of B", k)?,
            ldb_bytes: bytes("B", raw.ldb)?,
            ldc_bytes: bytes("C", raw.ldc)?,
            flags,
            slices: self.slices,
            slot_count: self.slot_count,
            reserved: 0,
        })
    }

    fn held(&self) -> [&DeviceMemory; 7] {
        [
            &self.windows,
            &self.rows,
            &self.pieces,
            &self.spans,
            &self.slots,
            &self.partial,
            self.turns.counters(),
        ]
    }
}

impl Product for Sell {
    fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    fn bytes(&self) -> usize {
        self.held().iter().map(|memory| memory.bytes()).sum()
    }

    fn describe(&self) -> String {
        format!(
            "{} slices of {SLICE} rows, {} chunks, {} parts of cut slices, 0 rows cut, grid {} x {}, {}",
            self.slices,
            self.pattern.windows().len() / 2,
            self.slot_count,
            self.grid[0],
            self.grid[1],
            footprint(self.row(), self.bytes())
        )
    }

    fn run(&self, raw: &RawSpmm, queue: Queue<'_>) -> Result<()> {
        let params = self.params(raw)?;
        if self.grid.contains(&0) {
            return Ok(());
        }
        let grid = Grid::of(self.grid).early();
        self.turns.queue(self.slot_count > 0, queue.stream(), || {
            queue.launch(&self.kernel, grid, &params)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every chunk occurs once and in order, parts are counted, and no warp exceeds its share.
    #[test]
    fn chunks_are_dealt_once() {
        for (lengths, blocks, of_block) in [
            (vec![3, 0, 10, 1, 0], 4, 1),
            (vec![0, 0], 3, 2),
            (vec![1000], 7, 4),
            (vec![1; 50], 7, 1),
            (vec![], 2, 2),
            (vec![2, 3], 4, 16),
            (vec![400, 90, 0, 7], 3, 8),
        ] {
            let mut offsets = vec![0u32];
            for length in &lengths {
                offsets.push(offsets[offsets.len() - 1] + length);
            }
            let deal = Deal::new(&offsets, blocks, of_block);
            assert_eq!(deal.spans.len(), blocks * of_block + 1);
            let total = offsets[lengths.len()] as usize;
            let share = total.div_ceil(blocks * of_block);
            let share = share.max((LEAST as usize).min(total.div_ceil(blocks)) * 2);
            for span in deal.spans.windows(2) {
                let own = &deal.pieces[span[0] as usize..span[1] as usize];
                let chunks: u32 = own.iter().map(|piece| piece.end - piece.first).sum();
                assert!(chunks as usize <= share, "{lengths:?} {blocks} {of_block}");
            }
            let mut chunks = vec![0; lengths.len()];
            let mut parts = vec![0; lengths.len()];
            for piece in &deal.pieces {
                let slice = piece.slice as usize;
                assert_eq!(piece.first, offsets[slice] + chunks[slice]);
                assert_eq!(piece.parts & 0xffff, parts[slice]);
                chunks[slice] += piece.end - piece.first;
                parts[slice] += 1;
            }
            assert_eq!(chunks, lengths);
            for piece in &deal.pieces {
                assert_eq!(piece.parts >> 16, parts[piece.slice as usize]);
            }
            let cut: u32 = parts.iter().filter(|&&parts| parts > 1).sum();
            assert_eq!((deal.slots.len(), deal.count), (lengths.len(), cut));
        }
    }
}
