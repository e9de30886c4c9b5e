//! Launch of the module `sddmm_staged`: the rows of Y that each thread block keeps in shared memory, and the runs of
//! entries in these columns.

use einsparse_kernels::families::{SddmmStagedParams, Shelf};
use einsparse_kernels::table::Row;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::einsum::Mode;
use crate::error::Result;
use crate::families::sddmm::SddmmExtents;
use crate::families::sddmm::sddmm::Sddmm;
use crate::families::sddmm::shelves::Shelves;
use crate::families::spmm::gather::Words;
use crate::kernel::{Grid, Queue};
use crate::launch::{Product, RawSddmm, within};
use crate::worklist::Runs;

#[derive(Debug)]
pub(crate) struct SddmmStaged {
    /// Entries as items, and the state that the module `sddmm` also has.
    entries: Sddmm<SddmmStagedParams>,
    shelves: DeviceMemory,
    blocks: u32,
    width: usize,
}

impl SddmmStaged {
    pub(crate) fn new(
        device: &Device,
        row: &'static Row,
        extents: SddmmExtents,
        mode: Mode,
        (runs, columns): (&Runs, &[u32]),
    ) -> Result<Self> {
        let most = row.shared_bytes as usize / (extents.k * row.dtype.bytes()).max(1);
        let multiprocessors = device.machine().multiprocessors as usize;
        let list = Shelves::new((runs, columns), extents.n, most, multiprocessors);
        let blocks = within("thread blocks", list.shelves.len(), crate::launch::MAX_GRID_X)?;
        Ok(SddmmStaged {
            entries: Sddmm::of_items(device, row, extents, (mode, row.dtype), &list.items)?,
            shelves: device.upload(Shelf::words(&list.shelves))?,
            blocks,
            width: list.width,
        })
    }
}

impl Product<RawSddmm> for SddmmStaged {
    fn row(&self) -> &'static Row {
        self.entries.kernel.row()
    }

    fn bytes(&self) -> usize {
        self.entries.items.bytes() + self.shelves.bytes()
    }

    fn describe(&self) -> String {
        format!(
            "{} thread blocks, at most {} rows of Y in shared memory, {} bytes of workspace",
            self.blocks,
            self.width,
            self.bytes()
        )
    }

    fn run(&self, raw: &RawSddmm, queue: Queue<'_>) -> Result<()> {
        if self.blocks == 0 {
            return Ok(());
        }
        let params =
            SddmmStagedParams { sddmm: self.entries.params(raw)?, shelves: self.shelves.address() };
        let grid = Grid::of([self.blocks, 1, 1]);
        queue.launch(&self.entries.kernel, grid, &params)
    }
}

impl Words for Shelf {}
