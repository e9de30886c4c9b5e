//! The values of single entries into a dense copy of their matrix, zeros included.

use einsparse_kernels::abi::Divisor;
use einsparse_kernels::families::{EXPAND_PLACES, ExpandParams, GROUP_BYTES};
use einsparse_kernels::table::{Row, rows_of};

use crate::cost::Machine;
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::within;
use crate::registry::Dtype;

/// Where entries go in the dense form of their matrix, and the kernel that writes it.
#[derive(Debug)]
pub(crate) struct Expand {
    kernel: Kernel<ExpandParams>,
    places: DeviceMemory,
    starts: DeviceMemory,
    row_bytes: u64,
    row_groups: Divisor,
    groups: u32,
    /// Thread blocks that the GPU holds.
    at_once: u32,
}

/// The kernel that writes elements as wide as these, if there is one.
fn writer(dtype: Dtype) -> Option<&'static Row> {
    rows_of::<ExpandParams>()
        .find(|row| row.step != EXPAND_PLACES && row.dtype.bytes() == dtype.bytes())
}

/// A pattern of single entries on the device; the columns of a row ascend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// Address of the columns.
    pub columns: u64,
    /// Their number, padding included.
    pub slots: usize,
    /// Address of first entry and count of each row.
    pub spans: u64,
    /// Rows.
    pub rows: usize,
}

impl Expand {
    /// Whether elements of this type can be expanded.
    pub(crate) fn takes(dtype: Dtype) -> bool {
        writer(dtype).is_some()
    }

    /// For a pattern whose dense form has rows `leading` elements apart, a multiple of 16 bytes. Queues what finds the
    /// places.
    pub(crate) fn new(
        device: &Device,
        dtype: Dtype,
        pattern: Placed,
        leading: usize,
        queue: Queue<'_>,
    ) -> Result<Self> {
        let named = |row: Option<&'static Row>| {
            row.ok_or_else(|| {
                let reason = format!("are {}, which no kernel expands", dtype.name());
                Error::operand("values", reason)
            })
        };
        let row = named(writer(dtype))?;
        let first = named(rows_of::<ExpandParams>().find(|row| row.step == EXPAND_PLACES))?;
        let (rows, row_bytes) = (pattern.rows, leading * dtype.bytes());
        let row_groups = row_bytes.div_ceil(GROUP_BYTES as usize);
        // Kernels count a warp's entries past the last.
        let most = (u32::MAX - 4 * GROUP_BYTES) as usize;
        let entries = within("slots of a matrix made dense", pattern.slots, most)?;
        let starts = within(
            "groups of elements",
            rows.saturating_mul(row_groups + 1),
            most,
        )?;
        let groups = starts - rows as u32;
        let memory = |words: usize| DeviceMemory::alloc(device.context(), words.max(1) * 4);
        let expand = Expand {
            kernel: Kernel::load(device, row)?,
            places: memory(pattern.slots.div_ceil(4))?,
            starts: memory(starts as usize)?,
            row_bytes: row_bytes as u64,
            row_groups: Divisor::new(row_groups as u32),
            groups,
            at_once: device.machine().multiprocessors * row.min_blocks,
        };
        let params = ExpandParams {
            columns: pattern.columns,
            spans: pattern.spans,
            rows: rows as u32,
            entries,
            group: GROUP_BYTES / dtype.bytes() as u32,
            ..expand.params()
        };
        let blocks = starts.max(entries.div_ceil(4)).div_ceil(first.items);
        queue.launch(
            &Kernel::load(device, first)?,
            Grid::of([blocks, 1, 1]),
            &params,
        )?;
        Ok(expand)
    }

    fn params(&self) -> ExpandParams {
        ExpandParams {
            columns: 0,
            spans: 0,
            values: 0,
            places: self.places.address(),
            starts: self.starts.address(),
            out: 0,
            row_bytes: self.row_bytes,
            row_groups: self.row_groups,
            groups: self.groups,
            rows: 0,
            entries: 0,
            group: 0,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.places.bytes() + self.starts.bytes()
    }

    /// Queues the writing of the dense matrix at `out`, all of it, from the values of the planned pattern.
    pub(crate) fn run(&self, values: u64, out: u64, queue: Queue<'_>) -> Result<()> {
        let params = ExpandParams {
            values,
            out,
            ..self.params()
        };
        let blocks = self.groups.div_ceil(self.kernel.row().items);
        let blocks = blocks.min(self.at_once);
        queue.launch(&self.kernel, Grid::of([blocks, 1, 1]), &params)
    }
}

/// Start of the kernel, and the wait of the one behind it for its end.
const START_US: f64 = 2.9;
/// What writing reaches of L2's rate.
const WRITES: f64 = 0.46;
/// What of reading is not hidden behind the writing.
const READS: f64 = 0.6;

/// Predicted microseconds to write `out` bytes from so many bytes of values: fitted to DLMC and to 4096 x 4096.
pub(crate) fn expand_us(out: f64, values: f64, machine: &Machine) -> f64 {
    // A byte for each place beside a value of 2 or 4.
    let read_us = values * 1.5 / machine.hbm * 1e6;
    START_US + out / (machine.l2 * WRITES) * 1e6 + READS * read_us
}
