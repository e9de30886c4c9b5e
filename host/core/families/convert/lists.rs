//! Work lists made on a GPU from row spans in device memory. Only the lengths of the lists are copied to the host.

use einsparse_kernels::abi::Divisor;
use einsparse_kernels::families::{
    LIST_BUNDLES, LIST_CUT, LIST_FILL, LIST_KINDS, LIST_PIECES, LIST_PLACE, LIST_SURVEY, LIST_TILE,
    ListParams,
};
use einsparse_kernels::table::rows_of;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, within};

/// Min number of rows for which a list is made on the GPU.
pub(crate) const DEVICE_ROWS: usize = 1 << 14;

/// Items and slots in device memory.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) items: DeviceMemory,
    pub(crate) slots: DeviceMemory,
    pub(crate) item_count: usize,
    pub(crate) slot_count: usize,
    pub(crate) bundles: u32,
    pub(crate) cut_rows: u32,
}

/// Kernels that make a list.
pub(crate) struct Lists<'d> {
    device: &'d Device,
    steps: Vec<Kernel<ListParams>>,
}

impl<'d> Lists<'d> {
    /// Whether this build contains the kernels that make a list.
    pub(crate) fn is_there(device: &Device) -> bool {
        rows_of::<ListParams>().all(|row| device.modules().holds(row))
    }

    pub(crate) fn new(device: &'d Device) -> Result<Self> {
        let steps = rows_of::<ListParams>().map(|row| Kernel::load(device, row));
        Ok(Lists { steps: steps.collect::<Result<_>>()?, device })
    }

    /// Makes the list of `rows` rows and waits for it. Rows longer than `limit` are cut. Rows of a weight up to
    /// `weight` are bundled; 0 disables bundles.
    pub(crate) fn make(
        &self,
        spans: &DeviceMemory,
        rows: usize,
        limit: u32,
        weight: u32,
    ) -> Result<List> {
        let rows = within("rows of A", rows, MAX_GRID_X)?;
        let tiles = rows.div_ceil(LIST_TILE);
        let (device, kinds) = (self.device, LIST_KINDS as usize);
        // The totals precede the counts.
        let counts = DeviceMemory::alloc(device.context(), (tiles as usize + 1) * kinds * 4)?;
        let params = ListParams {
            spans: spans.address(),
            counts: counts.address() + kinds as u64 * 4,
            totals: counts.address(),
            items: 0,
            slots: 0,
            rows,
            tiles,
            limit: limit.max(1),
            weight,
            bundles: Divisor::new(weight),
        };
        self.launch(LIST_SURVEY, tiles, &params)?;
        self.launch(LIST_PLACE, LIST_KINDS, &params)?;
        let mut totals = vec![0u32; kinds];
        counts.read(&mut totals, device.copies())?;
        let total = |kind: u32| totals[kind as usize];
        let items: usize = totals[..LIST_CUT as usize].iter().map(|&n| n as usize).sum();
        let slots = total(LIST_PIECES) as usize;
        let list = List {
            items: DeviceMemory::alloc(device.context(), items * 16)?,
            slots: DeviceMemory::alloc(device.context(), slots * 16)?,
            item_count: items,
            slot_count: slots,
            bundles: total(LIST_BUNDLES),
            cut_rows: total(LIST_CUT),
        };
        let params =
            ListParams { items: list.items.address(), slots: list.slots.address(), ..params };
        self.launch(LIST_FILL, tiles, &params)?;
        device.copies().synchronize()?;
        Ok(list)
    }

    fn launch(&self, step: u32, blocks: u32, params: &ListParams) -> Result<()> {
        let own = |kernel: &&Kernel<_>| kernel.row().step == step;
        let Some(kernel) = self.steps.iter().find(own) else {
            return Err(Error::no_kernel(format!("step {step} of lists"), []));
        };
        // SAFETY: `make` allocated the memory that the params describe, and it waits for the end of the steps.
        let queue = unsafe { Queue::new(self.device.copies()) };
        queue.launch(kernel, Grid::of([blocks, 1, 1]), params)
    }
}
