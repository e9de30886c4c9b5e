//! One SpMM on a GPU: work list uploaded, workspace allocated, parameters bound, kernel launched.
//! The only place that launches a kernel.

use std::sync::{Arc, Mutex, PoisonError};

use einsparse_kernels::abi::{
    FLAG_ACCUMULATE, FLAG_BIAS_COLUMNS, FLAG_BIAS_ROWS, FLAG_RELU, FLAG_VECTORS, Item, Slot,
    SpmmParams, WalkKind,
};
use einsparse_kernels::table::Row;

use crate::cost::row_limit;
use crate::device::Device;
use crate::driver::{DeviceMemory, Event, Function, LaunchConfig, RawStream};
use crate::einsum::Mode;
use crate::error::{Error, Result};
use crate::indirect::{BiasAxis, SpmmForm};
use crate::worklist::{Runs, WorkList};

/// Device addresses of one run. Leading dimensions in elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawSpmm {
    /// Index array of A: the column (block column) of each slot, u32; 16-byte aligned and readable 8 slots past its
    /// end.
    pub columns: u64,
    /// Values of A, one for each slot; 16-byte aligned and readable 8 slots past its end.
    pub values: u64,
    /// B, `[k, n]`, row-major.
    pub b: u64,
    /// Elements from one row of B to the next.
    pub ldb: usize,
    /// C, `[m, n]`, row-major.
    pub c: u64,
    /// Elements from one row of C to the next.
    pub ldc: usize,
    /// Bias, one element for each row or column; 0 without.
    pub bias: u64,
    /// Factor of the product: of all scalar factors of the expression, literals included.
    pub alpha: f64,
}

impl Default for RawSpmm {
    /// No addresses, factor 1.
    fn default() -> Self {
        RawSpmm {
            columns: 0,
            values: 0,
            b: 0,
            ldb: 0,
            c: 0,
            ldc: 0,
            bias: 0,
            alpha: 1.0,
        }
    }
}

/// Extents of an SpMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extents {
    pub m: usize,
    pub k: usize,
    pub n: usize,
}

/// A kernel chosen for one pattern, with what it needs beside the operands.
#[derive(Debug)]
pub(crate) struct SpmmLaunch {
    /// End of the last run: partial sums of cut rows are one workspace, so the next run waits for it. Fields drop in
    /// this order: the event goes before the context that its neighbours hold.
    done: Mutex<Event>,
    row: &'static Row,
    function: Function,
    form: SpmmForm,
    extents: Extents,
    runs: Arc<Runs>,
    items: DeviceMemory,
    slots: DeviceMemory,
    partial: DeviceMemory,
    counters: DeviceMemory,
    item_count: u32,
    cut_rows: u32,
    grid: [u32; 3],
    partial_columns: u32,
}

/// Largest grid in y.
pub(crate) const MAX_GRID_Y: usize = 65_535;

/// Largest grid in x, and the largest number of rows: tiles reach past the last one.
const MAX_GRID_X: usize = i32::MAX as usize;

/// A count as u32, or the error that names it.
fn small(what: &str, value: usize) -> Result<u32> {
    within(what, value, u32::MAX as usize)
}

fn within(what: &str, value: usize, limit: usize) -> Result<u32> {
    match u32::try_from(value) {
        Ok(small) if value <= limit => Ok(small),
        _ => Err(Error::Overflow {
            what: what.into(),
            value: value as u128,
            limit: limit as u128,
        }),
    }
}

impl SpmmLaunch {
    pub(crate) fn new(
        device: &Device,
        row: &'static Row,
        form: SpmmForm,
        extents: Extents,
        runs: &Arc<Runs>,
    ) -> Result<Self> {
        let function = device
            .modules()
            .function(row.family, row.name, row.shared_bytes)?;
        let limit = row_limit(
            row,
            runs.total,
            runs.rows.len(),
            extents.n,
            device.machine(),
        );
        let list = WorkList::new(runs, limit);
        let tiles = extents.n.div_ceil(row.columns as usize);
        within("column tiles", tiles, MAX_GRID_Y)?;
        let partial_columns = small("padded columns of B", tiles * row.columns as usize)?;
        let partial_rows = list.slots.len() * row.block as usize;
        let partial_bytes = partial_rows * partial_columns as usize * row.dtype.acc_bytes();
        let item_count = within("work items", list.items.len(), MAX_GRID_X)?;
        within("rows of A", extents.m, MAX_GRID_X)?;
        small("rows of B", extents.k)?;
        Ok(SpmmLaunch {
            row,
            function,
            form,
            extents,
            runs: Arc::clone(runs),
            items: device.upload(Item::words(&list.items))?,
            slots: device.upload(Slot::words(&list.slots))?,
            partial: DeviceMemory::alloc(device.context(), partial_bytes)?,
            counters: device.zeros(list.counters as usize * tiles * 4)?,
            item_count,
            cut_rows: list.counters,
            grid: [item_count.div_ceil(row.items), tiles as u32, 1],
            partial_columns,
            done: Mutex::new(Event::for_order()?),
        })
    }

    /// The row of the table.
    pub(crate) fn row(&self) -> &'static Row {
        self.row
    }

    /// Is this the pattern that the work list was made for?
    pub(crate) fn fits(&self, runs: &Arc<Runs>) -> bool {
        Arc::ptr_eq(&self.runs, runs) || *self.runs == **runs
    }

    /// Device bytes beside the operands.
    pub(crate) fn bytes(&self) -> usize {
        self.items.bytes() + self.slots.bytes() + self.partial.bytes() + self.counters.bytes()
    }

    /// What `explain` says of the geometry.
    pub(crate) fn describe(&self) -> String {
        format!(
            "{} items, {} rows cut, grid {} x {}, {} threads, {} bytes of shared memory, {} bytes of workspace",
            self.item_count,
            self.cut_rows,
            self.grid[0],
            self.grid[1],
            self.row.threads,
            self.row.shared_bytes,
            self.bytes()
        )
    }

    /// Queues the kernel.
    ///
    /// # Safety
    /// The addresses hold operands of the planned shapes, element type and pattern until the work is done.
    pub(crate) unsafe fn run(&self, raw: &RawSpmm, stream: RawStream<'_>) -> Result<()> {
        let params = self.params(raw)?;
        self.function.context().set_current()?;
        // A graph keeps its own order: what a captured run shares with others is the caller's to order.
        let shared = self.cut_rows > 0 && !stream.is_capturing()?;
        // Held over the launch, so that no other run comes between it and its event.
        let done = shared.then(|| self.done.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(done) = &done {
            stream.wait(done)?;
        }
        let config = LaunchConfig {
            grid: self.grid,
            block: [self.row.threads, 1, 1],
            smem_bytes: self.row.shared_bytes,
            cluster: None,
            overlap_previous: false,
        };
        // SAFETY: the params are those of the family; the addresses are the caller's promise, the rest is
        // owned by self, whose memory the driver frees only after the work.
        unsafe { self.function.launch(&config, stream, &params)? };
        done.map_or(Ok(()), |done| done.record(stream))
    }

    fn params(&self, raw: &RawSpmm) -> Result<SpmmParams> {
        let Extents { m, k, n } = self.extents;
        let element = self.row.dtype.bytes();
        Ok(SpmmParams {
            flags: self.flags(raw)?,
            items: self.items.address(),
            slots: self.slots.address(),
            columns: raw.columns,
            values: raw.values,
            b: raw.b,
            c: raw.c,
            bias: raw.bias,
            partial: self.partial.address(),
            counters: self.counters.address(),
            alpha: raw.alpha,
            item_count: self.item_count,
            n: small("columns of B", n)?,
            m: small("rows of A", m)?,
            k: small("rows of B", k)?,
            ldb_bytes: small("bytes of a row of B", raw.ldb.saturating_mul(element))?,
            ldc_bytes: small("bytes of a row of C", raw.ldc.saturating_mul(element))?,
            partial_columns: self.partial_columns,
        })
    }

    /// Mode, epilogue and access width, after a look at what the addresses allow.
    fn flags(&self, raw: &RawSpmm) -> Result<u32> {
        let n = self.extents.n;
        let mut flags = 0;
        if self.form.mode == Mode::Accumulate {
            flags |= FLAG_ACCUMULATE;
        }
        if self.form.relu {
            flags |= FLAG_RELU;
        }
        let mut column_bias = 0;
        if let Some((name, axis)) = &self.form.bias {
            let extent = match axis {
                BiasAxis::Rows => {
                    flags |= FLAG_BIAS_ROWS;
                    self.extents.m
                }
                BiasAxis::Cols => {
                    flags |= FLAG_BIAS_COLUMNS;
                    column_bias = raw.bias;
                    n
                }
            };
            if raw.bias == 0 && extent > 0 {
                return Err(refused(
                    name,
                    "the plan adds it, and its address is 0".into(),
                ));
            }
        }
        for (name, leading) in [("B", raw.ldb), ("C", raw.ldc)] {
            if leading < n {
                let reason = format!("leading dimension {leading} is below its {n} columns");
                return Err(refused(name, reason));
            }
        }
        for (name, address) in [("columns of A", raw.columns), ("values of A", raw.values)] {
            if address % 16 != 0 {
                let reason = format!("address {address:#x} is not a multiple of 16 bytes");
                return Err(refused(name, reason));
            }
        }
        self.aligned("B", raw.b, raw.ldb)?;
        if self.row.walk == WalkKind::Block {
            let whole = |elements: usize| (elements * self.row.dtype.bytes()).is_multiple_of(16);
            let places = raw.c.is_multiple_of(16) && column_bias.is_multiple_of(16);
            if whole(n) && whole(raw.ldc) && places {
                flags |= FLAG_VECTORS;
            }
        } else {
            self.aligned("C", raw.c, raw.ldc)?;
            self.aligned("bias", column_bias, 0)?;
        }
        Ok(flags)
    }

    fn aligned(&self, name: &str, address: u64, leading: usize) -> Result<()> {
        let bytes = u64::from(self.row.vector) * self.row.dtype.bytes() as u64;
        if address.is_multiple_of(bytes) && leading.is_multiple_of(self.row.vector as usize) {
            return Ok(());
        }
        let reason = format!(
            "address {address:#x} and leading dimension {leading} must be multiples of {bytes} bytes and {} elements \
             for {}; plan with `Options::alignment` = 1 for operands that are not",
            self.row.vector, self.row.name
        );
        Err(refused(name, reason))
    }
}

fn refused(name: &str, reason: String) -> Error {
    Error::Operand {
        name: name.into(),
        reason,
    }
}

/// Items and slots as the driver module copies them.
trait Words {
    /// The same memory as rows of four words.
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
