//! Launch of module `mttkrp`: uploads indices and the work list, and reorders values if the nonzeros are not sorted.

use std::sync::Arc;

use einsparse_kernels::abi::{FLAG_ACCUMULATE, SpmmParams};
use einsparse_kernels::families::{FLAG_STREAMED, MttkrpParams, REDUCE_MEAN, rows_step};
use einsparse_kernels::table::Row;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::families::convert::entries::Steps;
use crate::families::spmm::batched::{Ordered, Permutation};
use crate::families::spmm::gather::Words;
use crate::families::tensor::cost::rows::{rows_streamed, rows_weight};
use crate::families::tensor::fibres::Fibres;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, MAX_GRID_Y, Turns, aligned, in_vectors, row_bytes, small, within};
use crate::registry::Dtype;
use crate::tensor::VECTOR_ENTRIES;

/// Min nonzeros of a piece of a long row if the output is streamed.
const CUT_STREAMED: u32 = 64;

/// Max bytes of the partial sums of cut rows.
const PARTIAL_BYTES: usize = 64 << 20;

/// Number of columns, and whether the output is accumulated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowsExtents {
    pub n: usize,
    pub accumulate: bool,
}

/// Device addresses of one run. Row strides are in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawRows {
    /// Values, one per slot.
    pub values: u64,
    /// Address and row stride of each factor; 0 for absent factors.
    pub factors: [(u64, usize); 3],
    /// Address and row stride of the output.
    pub out: (u64, usize),
    /// Scalar factor of all products.
    pub alpha: f64,
}

/// Kernel prepared for one pattern.
#[derive(Debug)]
pub(crate) struct RowsLaunch {
    /// Serializes runs, because they share the partial sums. It is dropped before the fields that hold the context.
    turns: Turns,
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
        // Short items serve short rows; cuts have a cost.
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
            item_count,
            cut_rows: list.counters,
            grid: [item_count.div_ceil(row.items), tiles as u32, 1],
            partial_columns: small("padded columns", columns)?,
            flags,
            kernel,
            extents,
        })
    }

    pub(crate) fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    /// Workspace in device memory, bytes.
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

    /// Geometry of the launch, for `explain`.
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

    /// Queues the kernel. If the nonzeros are not sorted, first queues the reordering of the values.
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

    /// Queues the kernel for sorted values.
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

/// Returns the flags for mode and L2. An output larger than half of L2 is evicted first, so that L2 keeps factor rows.
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

/// Returns the reordering of the values, or `None` if they are sorted.
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
    let permutation = Permutation::Own(device.upload(permutation)?);
    // SAFETY: the permutation contains slots, and the result is stored with it.
    let queue = unsafe { Queue::new(device.after_all()?) };
    Ordered::new(device, steps, permutation, counts, dtype.bytes(), queue).map(Some)
}
