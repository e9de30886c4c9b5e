//! Launch of the module `dense_csr`: tiles of a dense product. The positions of A's nonzeros in
//! the stages are computed once per pattern.

use einsparse_kernels::abi::StripDeal;
use einsparse_kernels::families::DenseCsrParams;
use einsparse_kernels::table::Row;

use super::dense::Tiles;
use crate::error::{Error, Result};
use crate::families::convert::{Placed, Strips};
use crate::kernel::{Kernel, Queue};
use crate::launch::{Matrix, Product, RawSpmm, SpmmConfig};
use crate::offer::refuse;

/// Kernel that is prepared for one pattern.
#[derive(Debug)]
pub(crate) struct DenseCsr {
    kernel: Kernel<DenseCsrParams>,
    tiles: Tiles,
    strips: Strips,
}

/// Warps that alternate on the stages of a row group.
pub(super) fn turns(row: &Row) -> u32 {
    // One warp multiplies each 16 rows; the other warps scatter nonzeros.
    (row.threads / 32 - row.block.0 / 16) * row.items / row.block.0
}

/// Rows of a row group, row groups of a tile, and the distribution of `stages` stages over the warps of a row group.
fn deal(row: &Row, stages: u32) -> ([u32; 2], StripDeal) {
    let deal = StripDeal { stages, parts: row.parts, turns: turns(row) };
    ([row.items, row.block.0 / row.items], deal)
}

impl DenseCsr {
    pub(crate) fn new(of: SpmmConfig<'_>, matrix: Matrix<'_>) -> Result<Self> {
        let (device, row) = (of.device, of.row);
        let Matrix::Sparse { runs, spans, stored, address, .. } = matrix else {
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
        // SAFETY: columns and spans belong to a validated pattern, borrowed until the wait, and the lists are made for
        // this pattern.
        let queue = unsafe { Queue::new(device.after_all()?) };
        let strips = Strips::new(device, pattern, deal(row, tiles.stages()), queue)?;
        let strips = strips.map_err(|reason| refuse(row.name, reason))?;
        Ok(DenseCsr { kernel, tiles, strips })
    }
}

impl Product for DenseCsr {
    fn row(&self) -> &'static Row {
        self.kernel.row()
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
