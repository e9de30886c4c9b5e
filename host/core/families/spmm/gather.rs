//! Launch of kernels for unstructured nonzeros or `mma.sync` blocks: a work item per segment of lanes or thread block.

use std::sync::Arc;

use einsparse_kernels::abi::{FLAG_VECTORS, Item, Slot, SpmmParams, WalkKind};
use einsparse_kernels::table::Row;

use super::cost::gather::{bundle_weight, bundled_limit};
use crate::cost::row_limit;
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::families::convert::lists::{DEVICE_ROWS, List, Lists};
use crate::indirect::SpmmForm;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{
    Extents, MAX_GRID_X, MAX_GRID_Y, Product, RawSpmm, SpmmConfig, Turns, footprint, row_bytes,
    small, within,
};
use crate::machine::Machine;
use crate::worklist::{Runs, WorkList};

/// Kernel and work list that are prepared for one pattern.
#[derive(Debug)]
pub(crate) struct Gather<P = SpmmParams> {
    /// End of the last run. Partial sums of cut rows share one workspace, so the next run waits for it. Fields are
    /// dropped in this order: the event precedes the context that the other fields hold.
    turns: Turns,
    kernel: Kernel<P>,
    form: SpmmForm,
    extents: Extents,
    items: DeviceMemory,
    slots: DeviceMemory,
    partial: DeviceMemory,
    /// Range of each row's nonzeros, and the bytes of these ranges that the plan owns.
    spans: Option<Arc<DeviceMemory>>,
    own_spans: usize,
    item_count: u32,
    bundles: u32,
    cut_rows: u32,
    grid: [u32; 3],
    partial_columns: u32,
}

impl<P: Copy + 'static> Gather<P> {
    pub(crate) fn new(
        of: SpmmConfig<'_>,
        (runs, spans): (&Runs, Option<&Arc<DeviceMemory>>),
    ) -> Result<Self> {
        let (device, row, extents) = (of.device, of.row, of.extents);
        let kernel = Kernel::load(device, row)?;
        let cutting = Cutting::new(row, runs, extents, device.machine());
        let weight = cutting.weight;
        let mut own_spans = None;
        if weight.is_some() && spans.is_none() {
            own_spans = Some(Arc::new(device.upload(&runs.spans())?));
        }
        let there = own_spans.as_ref().or(spans);
        let list = list_of(device, runs, there.map(|s| &**s), cutting)?;
        let spans = there.filter(|_| weight.is_some()).cloned();
        let tiles = extents.n.div_ceil(row.columns as usize);
        within("column tiles", tiles, MAX_GRID_Y)?;
        let partial_columns = small("padded columns of B", tiles * row.columns as usize)?;
        let partial_rows = list.slot_count * row.block.0 as usize;
        let partial_bytes = partial_rows * partial_columns as usize * row.dtype.acc_bytes();
        let of_all = |bytes: usize| bytes.saturating_mul(extents.items);
        let item_count = within("work items", list.item_count, MAX_GRID_X)?;
        within("rows of A", extents.m, MAX_GRID_X)?;
        small("rows of B", extents.k)?;
        Ok(Gather {
            kernel,
            form: of.form,
            extents,
            items: list.items,
            slots: list.slots,
            partial: DeviceMemory::alloc(device.context(), of_all(partial_bytes))?,
            own_spans: own_spans.map_or(0, |spans| spans.bytes()),
            spans,
            item_count,
            bundles: list.bundles,
            cut_rows: list.cut_rows,
            grid: [item_count.div_ceil(row.items), tiles as u32, 1],
            partial_columns,
            turns: Turns::with_counters(device, of_all(list.cut_rows as usize * tiles * 4))?,
        })
    }

    /// Row of the table of kernels.
    pub(crate) fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    /// Device bytes in addition to the operands.
    pub(crate) fn bytes(&self) -> usize {
        self.items.bytes()
            + self.slots.bytes()
            + self.partial.bytes()
            + self.turns.counters().bytes()
            + self.own_spans
    }

    /// Geometry for `explain`, with `more` bytes of other workspace.
    pub(crate) fn describe_with(&self, more: usize) -> String {
        format!(
            "{} items, {} of them bundles, {} rows cut, grid {} x {}, {}",
            self.item_count,
            self.bundles,
            self.cut_rows,
            self.grid[0],
            self.grid[1],
            footprint(self.row(), self.bytes() + more)
        )
    }

    /// Queues the kernel for `depth` products, along z of the grid. The params are made from those of
    /// [`Gather::params`].
    pub(crate) fn launch(&self, depth: u32, params: &P, queue: Queue<'_>) -> Result<()> {
        let grid = Grid::of([self.grid[0], self.grid[1], depth])
            .early_if(self.row().walk != WalkKind::Block);
        self.turns
            .queue(self.cut_rows > 0, queue.stream(), || queue.launch(&self.kernel, grid, params))
    }

    /// Bytes of partial sums and of counters of one product.
    pub(crate) fn strides(&self) -> [u64; 2] {
        let items = self.extents.items.max(1);
        [&self.partial, self.turns.counters()].map(|memory| (memory.bytes() / items) as u64)
    }

    pub(crate) fn params(&self, raw: &RawSpmm) -> Result<SpmmParams> {
        Listed {
            items: self.items.address(),
            slots: self.slots.address(),
            spans: self.spans.as_ref().map_or(0, |spans| spans.address()),
            partial: self.partial.address(),
            counters: self.turns.counters().address(),
            item_count: self.item_count,
            partial_columns: self.partial_columns,
        }
        .params(self.row(), (&self.form, self.extents), raw)
    }
}

/// Addresses of a work list and of its partial sums.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed {
    pub(super) items: u64,
    pub(super) slots: u64,
    pub(super) spans: u64,
    pub(super) partial: u64,
    pub(super) counters: u64,
    pub(super) item_count: u32,
    pub(super) partial_columns: u32,
}

impl Listed {
    /// Parameters of a product whose rows are those of the list.
    pub(super) fn params(
        self,
        row: &Row,
        (form, extents): (&SpmmForm, Extents),
        raw: &RawSpmm,
    ) -> Result<SpmmParams> {
        let Extents { m, k, n, .. } = extents;
        let element = row.dtype.bytes();
        Ok(SpmmParams {
            flags: flags(row, (form, extents), raw)?,
            items: self.items,
            slots: self.slots,
            columns: raw.columns,
            values: raw.values,
            b: raw.b,
            c: raw.c,
            bias: raw.bias,
            partial: self.partial,
            counters: self.counters,
            spans: self.spans,
            alpha: raw.alpha,
            item_count: self.item_count,
            n: small("columns of B", n)?,
            m: small("rows of A", m)?,
            k: small("rows of B", k)?,
            ldb_bytes: row_bytes("B", raw.ldb, element)?,
            ldc_bytes: row_bytes("C", raw.ldc, element)?,
            partial_columns: self.partial_columns,
        })
    }
}

/// Flags for mode, epilogue and access width. Validates the alignment of the addresses.
fn flags(row: &Row, (form, extents): (&SpmmForm, Extents), raw: &RawSpmm) -> Result<u32> {
    let n = extents.n;
    let (mut flags, column_bias) = crate::launch::flags(form, extents, raw)?;
    for (name, address) in [("columns of A", raw.columns), ("values of A", raw.values)] {
        crate::launch::in_vectors(name, address)?;
    }
    crate::launch::aligned(row, "B", raw.b, raw.ldb)?;
    if row.walk == WalkKind::Block {
        let whole = |elements: usize| elements.is_multiple_of(16 / row.dtype.bytes());
        let places = raw.c.is_multiple_of(16) && column_bias.is_multiple_of(16);
        if whole(n) && whole(raw.ldc) && places {
            flags |= FLAG_VECTORS;
        }
    } else {
        crate::launch::aligned(row, "C", raw.c, raw.ldc)?;
        crate::launch::aligned(row, "bias", column_bias, 0)?;
    }
    Ok(flags)
}

/// Distribution of a matrix's rows over items. It determines the order in which a row is summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cutting {
    /// Max length of a piece of a row.
    pub(super) limit: u32,
    /// Weight of a bundle; `None` if each row is an item.
    pub(super) weight: Option<u32>,
}

impl Cutting {
    pub(super) fn new(row: &Row, runs: &Runs, extents: Extents, machine: &Machine) -> Self {
        let weight = bundle_weight(row, runs, extents.n, machine);
        let columns = extents.n.next_multiple_of(row.columns as usize) * extents.items;
        let limit = match weight {
            Some(weight) => runs.limit_within(bundled_limit(weight), partial_slots(columns, row)),
            None => row_limit(row, runs.total, runs.rows.len(), extents.n, machine),
        };
        Cutting { limit, weight }
    }

    /// Work list of these rows.
    pub(super) fn list(self, runs: &Runs) -> WorkList {
        match self.weight {
            Some(weight) => WorkList::bundled(runs, self.limit, weight),
            None => WorkList::new(runs, self.limit),
        }
    }
}

impl Product for Gather {
    fn row(&self) -> &'static Row {
        self.row()
    }

    fn bytes(&self) -> usize {
        self.bytes()
    }

    fn describe(&self) -> String {
        self.describe_with(0)
    }

    fn run(&self, raw: &RawSpmm, queue: Queue<'_>) -> Result<()> {
        self.launch(1, &self.params(raw)?, queue)
    }
}

/// Creates the work list: on the GPU if the rows are many and their spans are in device memory, otherwise on the CPU. A
/// build without the family `convert` creates it on the CPU.
fn list_of(
    device: &Device,
    runs: &Runs,
    spans: Option<&DeviceMemory>,
    cutting: Cutting,
) -> Result<List> {
    let rows = runs.rows.len();
    let here = rows >= DEVICE_ROWS && Lists::is_there(device);
    if let Some(spans) = spans.filter(|_| here) {
        let Cutting { limit, weight } = cutting;
        return Lists::new(device)?.make(spans, rows, limit, weight.unwrap_or(0));
    }
    let list = cutting.list(runs);
    Ok(List {
        items: device.upload(Item::words(&list.items))?,
        slots: device.upload(Slot::words(&list.slots))?,
        item_count: list.items.len(),
        slot_count: list.slots.len(),
        bundles: list.bundles() as u32,
        cut_rows: list.counters,
    })
}

/// Max bytes of partial sums of cut rows.
const PARTIAL_BYTES: usize = 12 << 20;

/// Max number of partial sums of `columns` columns.
fn partial_slots(columns: usize, row: &Row) -> usize {
    PARTIAL_BYTES / (columns * row.dtype.acc_bytes()).max(1)
}

/// Items and slots as the driver module copies them.
pub(crate) trait Words {
    /// Returns the same memory as rows of four words.
    fn words(list: &[Self]) -> &[[u32; 4]]
    where
        Self: Sized,
    {
        const { assert!(size_of::<Self>() == 16 && align_of::<Self>() == 4) };
        // SAFETY: implemented only for `repr(C)` structs of four u32, without padding (asserted above).
        unsafe { std::slice::from_raw_parts(list.as_ptr().cast(), list.len()) }
    }
}

impl Words for Item {}
impl Words for Slot {}
