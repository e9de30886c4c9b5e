//! A kernel of the modules `dense_csr` and `dense_csr_mma`: tiles of a dense product, and where the entries of A go in their stages, found once
//! for a pattern.

use std::sync::Arc;

use einsparse_kernels::abi::StripDeal;
use einsparse_kernels::families::DenseCsrParams;
use einsparse_kernels::table::Row;

use super::dense::Tiles;
use crate::error::{Error, Refusal, Result};
use crate::families::convert::{Placed, Strips};
use crate::kernel::{Kernel, Queue};
use crate::launch::{Asked, Matrix, Planned, Product, RawSpmm};
use crate::worklist::Runs;

/// A kernel chosen for one pattern.
#[derive(Debug)]
pub(crate) struct DenseCsr {
    kernel: Kernel<DenseCsrParams>,
    tiles: Tiles,
    planned: Planned,
    strips: Strips,
}

/// Warps that take turns at the stages of a strip.
pub(super) fn turns(row: &Row) -> u32 {
    // A warp multiplies 16 rows; the others lay.
    (row.threads / 32 - row.block.0 / 16) * row.items / row.block.0
}

/// Rows of a strip and strips of a tile, and how so many stages are dealt to the warps of a strip.
fn deal(row: &Row, stages: u32) -> ([u32; 2], StripDeal) {
    let deal = StripDeal { stages, parts: row.parts, turns: turns(row) };
    ([row.items, row.block.0 / row.items], deal)
}

impl DenseCsr {
    pub(crate) fn new(
        of: Asked<'_>,
        matrix: Matrix<'_>,
    ) -> Result<std::result::Result<Self, Refusal>> {
        let (device, row) = (of.device, of.row);
        let Matrix::Sparse { runs, spans, columns, stored, address, .. } = matrix else {
            return Err(Error::operand(&of.form.sparse, "has no entries in row order"));
        };
        let kernel = Kernel::load(device, row)?;
        let tiles = Tiles::new(of)?;
        let uploaded;
        let spans = match spans {
            Some(spans) => spans.address(),
            None => {
                uploaded = device.upload(&runs.spans())?;
                uploaded.address()
            }
        };
        let pattern = Placed { columns: address, slots: stored, spans, rows: runs.rows.len() };
        // SAFETY: columns and spans are those of a checked pattern, borrowed until the wait, and the lists are made for
        // it.
        let queue = unsafe { Queue::new(device.after_all()?) };
        let strips = match Strips::new(device, pattern, deal(row, tiles.stages()), queue)? {
            Ok(strips) => strips,
            Err(reason) => return Ok(Err(Refusal::of(row.name, reason))),
        };
        Ok(Ok(DenseCsr { kernel, tiles, planned: Planned::new(runs, columns), strips }))
    }
}

impl Product for DenseCsr {
    fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    fn fits(&self, runs: &Arc<Runs>, columns: Option<&[u32]>) -> bool {
        self.planned.is(runs, columns)
    }

    fn bytes(&self) -> usize {
        self.strips.bytes()
    }

    fn describe(&self) -> String {
        self.tiles.describe(self.bytes())
    }

    fn run(&self, raw: &RawSpmm, queue: Queue<'_>) -> Result<()> {
        let params = DenseCsrParams {
            product: self.tiles.params(raw, None)?,
            heads: self.strips.heads(),
            words: self.strips.words(),
            values: raw.values,
            room: self.strips.room(),
            reserved: 0,
        };
        queue.launch(&self.kernel, self.tiles.grid(), &params)
    }
}
