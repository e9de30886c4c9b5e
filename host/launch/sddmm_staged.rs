//! A kernel of the `sddmm_staged` family: which rows of Y each thread block keeps, and the runs of entries in these columns.

use std::sync::Arc;

use einsparse_kernels::abi::{STAGED_BYTES, SddmmStagedParams, Shelf};
use einsparse_kernels::table::Row;

use super::gather::Words;
use super::sddmm::Sddmm;
use super::{RawSampled, SampledExtents, config, within};
use crate::device::Device;
use crate::driver::{DeviceMemory, Function, RawStream};
use crate::einsum::Mode;
use crate::error::Result;
use crate::shelves::Shelves;
use crate::worklist::Runs;

#[derive(Debug)]
pub(crate) struct SddmmStaged {
    /// The entries as items, and what the family `sddmm` knows of them.
    entries: Sddmm,
    function: Function,
    shelves: DeviceMemory,
    blocks: u32,
    width: usize,
}

impl SddmmStaged {
    pub(super) fn new(
        device: &Device,
        row: &'static Row,
        extents: SampledExtents,
        mode: Mode,
        (runs, columns): (&Arc<Runs>, &[u32]),
    ) -> Result<Self> {
        let function = device
            .modules()
            .function(row.family, row.name, row.shared_bytes)?;
        let most = STAGED_BYTES / (extents.k * row.dtype.bytes()).max(1);
        let multiprocessors = device.machine().multiprocessors as usize;
        let list = Shelves::new((runs, columns), extents.n, most, multiprocessors);
        let blocks = within("thread blocks", list.shelves.len(), super::MAX_GRID_X)?;
        Ok(SddmmStaged {
            entries: Sddmm::of_items(
                device,
                row,
                extents,
                (mode, row.dtype),
                (runs, columns),
                &list.items,
            )?,
            function,
            shelves: device.upload(Shelf::words(&list.shelves))?,
            blocks,
            width: list.width,
        })
    }

    pub(super) fn row(&self) -> &'static Row {
        self.entries.row()
    }

    /// Whether a pattern is the planned one.
    pub(super) fn fits(&self, runs: &Arc<Runs>, columns: &[u32]) -> bool {
        self.entries.fits(runs, columns)
    }

    pub(super) fn bytes(&self) -> usize {
        self.entries.bytes() + self.shelves.bytes()
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "{} thread blocks, at most {} rows of Y in shared memory, {} bytes of workspace",
            self.blocks,
            self.width,
            self.bytes()
        )
    }

    /// Queues the kernel.
    ///
    /// # Safety
    /// The addresses hold operands of the planned shapes, element type and pattern until the work is done.
    pub(super) unsafe fn run(&self, raw: &RawSampled, stream: RawStream<'_>) -> Result<()> {
        if self.blocks == 0 {
            return Ok(());
        }
        let params = SddmmStagedParams {
            sddmm: self.entries.params(raw)?,
            shelves: self.shelves.address(),
        };
        self.function.context().set_current()?;
        let config = config(self.row(), [self.blocks, 1, 1]);
        // SAFETY: the params are those of the family; the addresses are the caller's promise, the lists are owned by
        // self, whose memory the driver frees only after the work.
        unsafe { self.function.launch(&config, stream, &params) }
    }
}

impl Words for Shelf {}
