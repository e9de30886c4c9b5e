//! One SpMM on a GPU: work list uploaded, workspace allocated, parameters bound, kernel launched.
//! The only place that launches a kernel.

use std::sync::{Arc, Mutex, PoisonError};

use einsparse_kernels::abi::{
    FLAG_ACCUMULATE, FLAG_BIAS_COLUMNS, FLAG_BIAS_ROWS, FLAG_RELU, FLAG_VECTORS, SpmmParams,
    WalkKind,
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
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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
    /// Factor of the product.
    pub alpha: f64,
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
    /// End of the last run: partial sums of cut rows are one workspace, so the next run waits for it.
    done: Mutex<Event>,
}

/// Largest grid in y.
const MAX_GRID_Y: usize = 65_535;

/// A count as u32, or the error that names it.
pub(crate) fn small(what: &str, value: usize) -> Result<u32> {
    u32::try_from(value).map_err(|_| Error::Overflow {
        what: what.into(),
        value: value as u128,
        limit: u32::MAX.into(),
    })
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
        let limit = row_limit(row, runs.total, extents.n, device.machine());
        let list = WorkList::new(runs, limit);
        let tiles = extents.n.div_ceil(row.columns as usize);
        if tiles > MAX_GRID_Y {
            return Err(Error::Overflow {
                what: format!("column tiles of {}", row.name),
                value: tiles as u128,
                limit: MAX_GRID_Y as u128,
            });
        }
        let partial_columns = small("padded columns of B", tiles * row.columns as usize)?;
        let partial_rows = list.slots.len() * row.block as usize;
        let partial_bytes = partial_rows * partial_columns as usize * row.dtype.acc_bytes();
        let item_count = small("work items", list.items.len())?;
        small("rows of A", extents.m)?;
        small("rows of B", extents.k)?;
        Ok(SpmmLaunch {
            row,
            function,
            form,
            extents,
            runs: Arc::clone(runs),
            items: device.upload(bytemuck_items(&list.items))?,
            slots: device.upload(bytemuck_slots(&list.slots))?,
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
        let bias_axis = self.form.bias.as_ref().map(|(_, axis)| *axis);
        let mut flags = 0;
        if self.form.mode == Mode::Accumulate {
            flags |= FLAG_ACCUMULATE;
        }
        if self.form.relu {
            flags |= FLAG_RELU;
        }
        flags |= match bias_axis {
            None => 0,
            Some(BiasAxis::Rows) => FLAG_BIAS_ROWS,
            Some(BiasAxis::Cols) => FLAG_BIAS_COLUMNS,
        };
        for (name, address) in [("columns of A", raw.columns), ("values of A", raw.values)] {
            if address % 16 != 0 {
                let reason = format!("address {address:#x} is not a multiple of 16 bytes");
                return Err(Error::Operand {
                    name: name.into(),
                    reason,
                });
            }
        }
        let column_bias = if bias_axis == Some(BiasAxis::Cols) {
            raw.bias
        } else {
            0
        };
        if self.row.walk == WalkKind::Block {
            let whole = |elements: usize| (elements * element).is_multiple_of(16);
            let vectors = whole(n)
                && whole(raw.ldc)
                && raw.c.is_multiple_of(16)
                && column_bias.is_multiple_of(16);
            if vectors {
                flags |= FLAG_VECTORS;
            }
            self.aligned("B", raw.b, raw.ldb)?;
        } else {
            self.aligned("B", raw.b, raw.ldb)?;
            self.aligned("C", raw.c, raw.ldc)?;
            self.aligned("bias", column_bias, 0)?;
        }
        Ok(SpmmParams {
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
            flags,
        })
    }

    fn aligned(&self, name: &str, address: u64, leading: usize) -> Result<()> {
        let bytes = u64::from(self.row.vector) * self.row.dtype.bytes() as u64;
        if address.is_multiple_of(bytes) && leading.is_multiple_of(self.row.vector as usize) {
            return Ok(());
        }
        Err(Error::Operand {
            name: name.into(),
            reason: format!(
                "address {address:#x} and leading dimension {leading} must be multiples of {bytes} bytes and {} \
                 elements for {}; plan with `Options::alignment` = 1 for operands that are not",
                self.row.vector, self.row.name
            ),
        })
    }
}

fn bytemuck_items(items: &[einsparse_kernels::abi::Item]) -> &[[u32; 4]] {
    // SAFETY: `Item` is `repr(C)` of four u32: same size, same alignment, no padding.
    unsafe { std::slice::from_raw_parts(items.as_ptr().cast(), items.len()) }
}

fn bytemuck_slots(slots: &[einsparse_kernels::abi::Slot]) -> &[[u32; 4]] {
    // SAFETY: `Slot` is `repr(C)` of four u32: same size, same alignment, no padding.
    unsafe { std::slice::from_raw_parts(slots.as_ptr().cast(), slots.len()) }
}
