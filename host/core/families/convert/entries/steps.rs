//! Kernels of module `entries`, loaded once, and the check of CSR arrays.

use std::sync::Arc;

use einsparse_kernels::abi::SCAN_THREADS;
use einsparse_kernels::families::{
    COPIES, ENTRY_TILE, EntriesParams, STEP_CHECK_ENTRIES, STEP_COMPACT, STEP_FILL_SLOTS,
    STEP_JOIN, STEP_PERMUTE_VALUES, STEP_SPLIT, STEP_TOP_ENTRIES,
};
use einsparse_kernels::table::{Row, rows_of};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, small, within};
use crate::registry::Dtype;

/// Kernels of the family for one element type.
#[derive(Debug)]
pub(crate) struct Steps {
    pub(crate) device: Arc<Device>,
    kernels: Vec<Kernel<EntriesParams>>,
}

/// Whether a row of the table is a step for this element type. Copies depend only on the element size.
fn needs(row: &Row, dtype: Dtype) -> bool {
    match row.step {
        STEP_TOP_ENTRIES | STEP_COMPACT => row.dtype == dtype,
        STEP_FILL_SLOTS | STEP_PERMUTE_VALUES | STEP_SPLIT | STEP_JOIN => {
            row.dtype.bytes() == dtype.bytes()
        }
        _ => true,
    }
}

impl Steps {
    pub(crate) fn new(device: &Arc<Device>, dtype: Dtype) -> Result<Self> {
        let rows = rows_of::<EntriesParams>().filter(|row| needs(row, dtype));
        let kernels = rows.map(|row| Kernel::load(device, row));
        Ok(Steps { kernels: kernels.collect::<Result<_>>()?, device: Arc::clone(device) })
    }

    /// Allocates device memory, all zero.
    pub(crate) fn zeros(&self, bytes: usize) -> Result<DeviceMemory> {
        self.device.zeros(bytes)
    }

    /// Queues a step of `blocks` thread blocks. `first`: it reads no output of a preceding step.
    pub(crate) fn launch(
        &self,
        step: u32,
        (aligned, first): (bool, bool),
        blocks: usize,
        queue: Queue<'_>,
        params: &EntriesParams,
    ) -> Result<()> {
        let fits = |row: &Row| row.step == step && (row.vector > 1) == aligned;
        self.queue(step, fits, (first, blocks), queue, params)
    }

    /// Queues a step with this tile size.
    pub(crate) fn launch_tiles(
        &self,
        (step, tile): (u32, u32),
        first: bool,
        blocks: usize,
        queue: Queue<'_>,
        params: &EntriesParams,
    ) -> Result<()> {
        let fits = |row: &Row| row.step == step && row.columns == tile;
        self.queue(step, fits, (first, blocks), queue, params)
    }

    fn queue(
        &self,
        step: u32,
        fits: impl Fn(&Row) -> bool,
        (first, blocks): (bool, usize),
        queue: Queue<'_>,
        params: &EntriesParams,
    ) -> Result<()> {
        let Some(kernel) = self.kernels.iter().find(|kernel| fits(kernel.row())) else {
            return Err(Error::no_kernel(format!("step {step} of entries"), []));
        };
        let grid = Grid::of([within("thread blocks", blocks, MAX_GRID_X)?, 1, 1]).early_if(!first);
        queue.launch(kernel, grid, params)
    }
}

/// Thread blocks of a step that reads `count` nonzeros or rows.
pub(crate) fn tiles(count: usize) -> usize {
    count.div_ceil(ENTRY_TILE as usize)
}

/// Thread blocks of a copy of `count` elements.
pub(crate) fn copies(count: usize) -> usize {
    count.div_ceil((SCAN_THREADS * COPIES) as usize)
}

/// Queues the check of CSR arrays. The report must be all ones before. `offsets` holds m + 1 words, `columns` `entries`
/// words, and `report` two words.
pub(crate) fn check(
    steps: &Steps,
    (m, k, entries): (usize, usize, usize),
    [offsets, columns, report]: [u64; 3],
    queue: Queue<'_>,
) -> Result<()> {
    steps.device.context().set_current()?;
    let params = EntriesParams {
        offsets,
        columns,
        report,
        m: within("rows", m, MAX_GRID_X - 1)?,
        k: small("columns", k)?,
        count: small("entries", entries)?,
        ..EntriesParams::default()
    };
    queue.fill_words(report, u32::MAX, 2)?;
    let blocks = tiles(entries.max(m + 1));
    steps.launch(STEP_CHECK_ENTRIES, (false, true), blocks, queue, &params)
}
