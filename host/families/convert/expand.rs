//! The values of single entries into a dense copy of their matrix, zeros included.

use einsparse_kernels::abi::Divisor;
use einsparse_kernels::families::{EXPAND_MARKS, ExpandParams, GROUP_PIECES, PIECE_BYTES};
use einsparse_kernels::table::{Row, rows_of};

use crate::cost::Machine;
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, within};
use crate::registry::Dtype;

/// Which elements of a dense matrix are stored, and the kernel that writes it.
#[derive(Debug)]
pub(crate) struct Expand {
    kernel: Kernel<ExpandParams>,
    marks: DeviceMemory,
    starts: DeviceMemory,
    row_bytes: u64,
    row_groups: Divisor,
    groups: u32,
}

/// The kernel that writes elements as wide as these, if there is one.
fn writer(dtype: Dtype) -> Option<&'static Row> {
    rows_of::<ExpandParams>()
        .find(|row| row.step != EXPAND_MARKS && row.dtype.bytes() == dtype.bytes())
}

impl Expand {
    /// Whether elements of this type can be expanded.
    pub(crate) fn takes(dtype: Dtype) -> bool {
        writer(dtype).is_some()
    }

    /// For a matrix of single entries, by the addresses of its columns and of first entry and count of each row; the
    /// columns of a row ascend. Its dense form has `rows` rows, `leading` elements apart: a multiple of 16 bytes.
    pub(crate) fn new(
        device: &Device,
        dtype: Dtype,
        [rows, leading]: [usize; 2],
        [columns, spans]: [u64; 2],
        queue: Queue<'_>,
    ) -> Result<Self> {
        let row = writer(dtype).ok_or_else(|| {
            let reason = format!("are {}, which no kernel expands", dtype.name());
            Error::operand("values", reason)
        })?;
        let marks_row = rows_of::<ExpandParams>().find(|row| row.step == EXPAND_MARKS);
        let marks_row = marks_row.ok_or_else(|| Error::operand("values", "have no marks"))?;
        let row_bytes = leading * dtype.bytes();
        let row_groups = row_bytes.div_ceil((GROUP_PIECES * PIECE_BYTES) as usize);
        // The marks' kernel takes the fewest groups a thread block.
        let most = (MAX_GRID_X * marks_row.items as usize).min(u32::MAX as usize);
        let groups = within("groups of elements", rows.saturating_mul(row_groups), most)?;
        let memory = |bytes: usize| DeviceMemory::alloc(device.context(), bytes.max(4));
        let expand = Expand {
            kernel: Kernel::load(device, row)?,
            marks: memory(groups as usize * GROUP_PIECES as usize)?,
            starts: memory(groups as usize * 4)?,
            row_bytes: row_bytes as u64,
            row_groups: Divisor::new(row_groups as u32),
            groups,
        };
        let params = ExpandParams {
            columns,
            spans,
            piece: PIECE_BYTES / dtype.bytes() as u32,
            ..expand.params()
        };
        let marker = Kernel::load(device, marks_row)?;
        expand.launch(&marker, &params, queue)?;
        Ok(expand)
    }

    fn params(&self) -> ExpandParams {
        ExpandParams {
            columns: 0,
            spans: 0,
            values: 0,
            marks: self.marks.address(),
            starts: self.starts.address(),
            out: 0,
            row_bytes: self.row_bytes,
            row_groups: self.row_groups,
            groups: self.groups,
            piece: 0,
        }
    }

    fn launch(
        &self,
        kernel: &Kernel<ExpandParams>,
        params: &ExpandParams,
        queue: Queue<'_>,
    ) -> Result<()> {
        if self.groups == 0 {
            return Ok(());
        }
        let grid = Grid::of([self.groups.div_ceil(kernel.row().items), 1, 1]);
        queue.launch(kernel, grid, params)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.marks.bytes() + self.starts.bytes()
    }

    /// Queues the writing of the dense matrix at `out`, all of it, from the values of the planned pattern.
    pub(crate) fn run(&self, values: u64, out: u64, queue: Queue<'_>) -> Result<()> {
        let params = ExpandParams {
            values,
            out,
            ..self.params()
        };
        self.launch(&self.kernel, &params, queue)
    }
}

/// Start of the kernel, and the wait of the one behind it for its end.
const START_US: f64 = 2.0;
/// What writing reaches of L2's rate for gathers.
const WRITES: f64 = 0.6;

/// Predicted microseconds to write `out` bytes from so many bytes of values.
pub(crate) fn expand_us(out: f64, values: f64, machine: &Machine) -> f64 {
    let marks = out / f64::from(PIECE_BYTES);
    let read_us = (values + marks) / machine.hbm * 1e6;
    START_US + read_us.max(out / (machine.l2 * WRITES) * 1e6)
}
