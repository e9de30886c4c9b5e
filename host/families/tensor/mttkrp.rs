//! A kernel of module `mttkrp`: places and work list uploaded, values brought in order where the entries do not lie so.

use std::sync::Arc;

use einsparse_kernels::abi::{FLAG_ACCUMULATE, SpmmParams};
use einsparse_kernels::families::{FLAG_STREAMED, MttkrpParams, REDUCE_MEAN, rows_step};
use einsparse_kernels::table::Row;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::families::convert::entries::Steps;
use crate::families::spmm::batched::Ordered;
use crate::families::spmm::gather::Words;
use crate::families::tensor::cost::rows::{rows_streamed, rows_weight};
use crate::families::tensor::fibres::Fibres;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, MAX_GRID_Y, Turns, aligned, in_vectors, row_bytes, small, within};
use crate::registry::Dtype;
use crate::tensor::VECTOR_ENTRIES;

/// Entries of a piece of a long row at the least where the output goes past L2.
const CUT_STREAMED: u32 = 64;

/// Partial sums of cut rows may take this much.
const PARTIAL_BYTES: usize = 64 << 20;

/// Columns, and what happens to the output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowsExtents {
    pub n: usize,
    pub accumulate: bool,
}

/// Device addresses of one run. Leading dimensions in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawRows {
    /// One for each slot.
    pub values: u64,
    /// Address and leading dimension of each factor; 0 past the last.
    pub factors: [(u64, usize); 3],
    /// The output and the distance of its rows.
    pub out: (u64, usize),
    /// Factor of all products.
    pub alpha: f64,
}

/// A kernel made for one pattern.
#[derive(Debug)]
pub(crate) struct RowsLaunch {
    /// End of the last run: partial sums are one workspace. Goes before the context that its neighbours hold.
    turns: Turns,
    device: Arc<Device>,
    kernel: Kernel<MttkrpParams>,
    extents: RowsExtents,
    places: Vec<DeviceMemory>,
    rows: Option<DeviceMemory>,
    ordered: Option<Ordered>,
    items: DeviceMemory,
    slots: DeviceMemory,
    partial: DeviceMemory,
    item_count: u32,
    cut_rows: u32,
    grid: [u32; 3],
    partial_columns: u32,
    flags: u32,
}

impl RowsLaunch {
    pub(crate) fn new(
        device: &Arc<Device>,
        row: &'static Row,
        fibres: &Fibres,
        extents: RowsExtents,
    ) -> Result<Self> {
        let kernel = Kernel::load(device, row)?;
        let tiles = extents.n.div_ceil(row.columns as usize);
        within("column tiles", tiles, MAX_GRID_Y)?;
        let columns = tiles * row.columns as usize;
        let flags = flags(device, row, fibres, extents);
        let streamed = flags & FLAG_STREAMED != 0;
        let machine = device.machine();
        let weight = rows_weight(row, (fibres.runs.total, streamed), extents.n, machine);
        let most = PARTIAL_BYTES / (columns * row.dtype.acc_bytes()).max(1);
        // Short items are for short rows: cutting has a price.
        let shortest = if streamed { 2 * CUT_STREAMED } else { 2 * weight };
        let limit = fibres.runs.limit_within(shortest, most);
        let weight = if streamed { weight } else { limit / 2 };
        let list = fibres.items(weight, limit, !extents.accumulate);
        let item_count = within("work items", list.items.len(), MAX_GRID_X)?;
        let upload = |words: &Vec<u32>| device.upload_padded(words, VECTOR_ENTRIES);
        let partial = list.slots.len() * columns * row.dtype.acc_bytes();
        Ok(RowsLaunch {
            turns: Turns::with_counters(device, list.counters as usize * tiles * 4)?,
            places: fibres.places.iter().map(upload).collect::<Result<_>>()?,
            rows: fibres.rows.as_ref().map(|rows| device.upload(rows)).transpose()?,
            ordered: ordered(device, row, fibres)?,
            items: device.upload(Words::words(&list.items))?,
            slots: device.upload(Words::words(&list.slots))?,
            partial: DeviceMemory::alloc(device.context(), partial)?,
            device: Arc::clone(device),
            item_count,
            cut_rows: list.counters,
            grid: [item_count.div_ceil(row.items), tiles as u32, 1],
            partial_columns: small("padded columns", columns)?,
            flags,
            kernel,
            extents,
        })
    }

    /// The GPU that it runs on.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    /// Device bytes beside the operands.
    pub(crate) fn bytes(&self) -> usize {
        let lists = [&self.items, &self.slots, &self.partial, self.turns.counters()];
        lists
            .into_iter()
            .chain(&self.places)
            .chain(&self.rows)
            .map(DeviceMemory::bytes)
            .sum::<usize>()
            + self.ordered.as_ref().map_or(0, Ordered::bytes)
    }

    /// What `explain` says of the geometry.
    pub(crate) fn describe(&self) -> String {
        let ordered = match &self.ordered {
            Some(_) => "values brought in order, ",
            None => "",
        };
        format!(
            "{ordered}{} items, {} rows cut, grid {} x {}, {} threads, {} bytes of workspace",
            self.item_count,
            self.cut_rows,
            self.grid[0],
            self.grid[1],
            self.row().threads,
            self.bytes()
        )
    }

    /// Queues the kernel, behind the ordering of values where they do not lie so.
    pub(crate) fn run(&self, raw: &RawRows, queue: Queue<'_>) -> Result<()> {
        if self.item_count == 0 || self.grid[1] == 0 {
            return Ok(());
        }
        in_vectors("values", raw.values)?;
        let Some(ordered) = &self.ordered else {
            return self.launch(raw, queue);
        };
        ordered.turns.queue(true, queue.stream(), || {
            ordered.fill(raw.values, queue)?;
            let own = RawRows { values: ordered.values.address(), ..*raw };
            self.launch(&own, queue)
        })
    }

    /// Queues the kernel for values in order.
    fn launch(&self, raw: &RawRows, queue: Queue<'_>) -> Result<()> {
        let params = self.params(raw)?;
        let grid = Grid::of(self.grid).early();
        self.turns
            .queue(self.cut_rows > 0, queue.stream(), || queue.launch(&self.kernel, grid, &params))
    }

    fn params(&self, raw: &RawRows) -> Result<MttkrpParams> {
        let element = self.row().dtype.bytes();
        let mut leading = [0; 3];
        for (f, &(address, own)) in raw.factors.iter().enumerate().take(self.places.len()) {
            aligned(self.row(), &format!("factor {f}"), address, own)?;
            leading[f] = row_bytes("a factor", own, element)?;
        }
        let (c, ldc) = raw.out;
        aligned(self.row(), "the output", c, ldc)?;
        let place = |f: usize| self.places.get(f).map_or(0, DeviceMemory::address);
        Ok(MttkrpParams {
            product: SpmmParams {
                items: self.items.address(),
                slots: self.slots.address(),
                columns: place(0),
                values: raw.values,
                b: raw.factors[0].0,
                c,
                bias: 0,
                partial: self.partial.address(),
                counters: self.turns.counters().address(),
                spans: 0,
                alpha: raw.alpha,
                item_count: self.item_count,
                n: small("columns", self.extents.n)?,
                m: 0,
                k: 0,
                ldb_bytes: leading[0],
                ldc_bytes: row_bytes("the output", ldc, element)?,
                partial_columns: self.partial_columns,
                flags: self.flags,
            },
            places: [place(1), place(2)],
            factors: [raw.factors[1].0, raw.factors[2].0],
            rows: self.rows.as_ref().map_or(0, DeviceMemory::address),
            leading: [leading[1], leading[2]],
        })
    }
}

/// Mode, and how L2 is shared: an output that is larger than half of it goes past the rows of the factors.
fn flags(device: &Device, row: &Row, fibres: &Fibres, extents: RowsExtents) -> u32 {
    let mut flags = 0;
    if extents.accumulate {
        flags |= FLAG_ACCUMULATE;
    }
    let bytes = fibres.count as u64 * (extents.n * row.dtype.bytes()) as u64;
    if rows_streamed(bytes, device.machine()) {
        flags |= FLAG_STREAMED;
    }
    flags
}

/// What brings values in order, unless they lie so.
fn ordered(device: &Arc<Device>, row: &Row, fibres: &Fibres) -> Result<Option<Ordered>> {
    let Some(permutation) = fibres.permutation.as_ref().filter(|p| !p.is_empty()) else {
        return Ok(None);
    };
    let dtype = match row.step == rows_step(1, REDUCE_MEAN) {
        true => Dtype::F32,
        false => row.dtype,
    };
    let steps = Steps::new(device, dtype)?;
    let counts = (fibres.slots, fibres.entries());
    let permutation = device.upload(permutation)?;
    // SAFETY: the permutation names slots, and goes where what is made of it goes.
    let queue = unsafe { Queue::new(device.after_all()?) };
    Ordered::new(device, steps, permutation, counts, dtype.bytes(), queue).map(Some)
}
