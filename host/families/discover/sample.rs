//! Shares of nonempty micro-tiles in a sample of a matrix. The host reads them without synchronization.

use einsparse_kernels::abi::Divisor;
use einsparse_kernels::families::{
    DETECT_VECTORS, SAMPLE_BOXES, SAMPLE_COLUMNS, SAMPLE_ROWS, STEP_SAMPLE, SampleParams,
};
use einsparse_kernels::table::kernels;

use crate::device::Device;
use crate::driver::{DeviceMemory, PinnedWord};
use crate::error::{Error, Result};
use crate::families::convert::DenseMatrix;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{small, within};
use crate::registry::{Dtype, Operation};

/// Heights of the counted micro-tiles.
pub(crate) const SAMPLED_HEIGHTS: [usize; 3] = [32, 64, 128];

/// Kernel for matrices of one shape, with its counters.
#[derive(Debug)]
pub(crate) struct SampleLaunch {
    kernel: Kernel<SampleParams>,
    params: SampleParams,
    blocks: u32,
    state: DeviceMemory,
    report: PinnedWord,
}

impl SampleLaunch {
    /// Validates the element type: only elements of 2 bytes are supported.
    pub(crate) fn takes(dtype: Dtype) -> Result<()> {
        if matches!(dtype, Dtype::F16 | Dtype::Bf16) {
            return Ok(());
        }
        Err(Error::NoKernel {
            indirect: format!("shares of micro-tiles of {}", dtype.name()),
            tried: Vec::new(),
        })
    }

    /// Creates the kernel for matrices of one shape. Added to a magnitude, `above` sets the top bit if the element is
    /// above the threshold.
    pub(crate) fn new(
        device: &Device,
        dtype: Dtype,
        [rows, columns]: [usize; 2],
        above: u32,
    ) -> Result<Self> {
        Self::takes(dtype)?;
        let row = kernels().iter().find(|row| {
            row.operation == Operation::Detection
                && row.step == STEP_SAMPLE
                && row.dtype == Dtype::F16
        });
        let Some(row) = row else {
            return Err(Error::NoKernel {
                indirect: "shares of micro-tiles".into(),
                tried: Vec::new(),
            });
        };
        let kernel = Kernel::load(device, row)?;
        let across = columns.div_ceil(SAMPLE_COLUMNS as usize);
        let all = rows.div_ceil(SAMPLE_ROWS as usize).saturating_mul(across);
        let all = within("boxes", all, i32::MAX as usize)?;
        let stride = all.div_ceil(SAMPLE_BOXES).max(1);
        Ok(SampleLaunch {
            kernel,
            params: SampleParams {
                across: Divisor::new(small("boxes of a row", across)?),
                rows: within("rows", rows, i32::MAX as usize)?,
                columns: within("columns", columns, i32::MAX as usize)?,
                stride,
                above,
                ..SampleParams::default()
            },
            // Whole strides. The remainder is less than one of at most 264.
            blocks: all / stride,
            state: device.zeros(24)?,
            report: PinnedWord::new(device.context())?,
        })
    }

    /// Returns the shares, from 0 to 1, of nonempty micro-tiles of 32, 64 and 128 rows, of the last launch that has
    /// ended. `None` before the first one, and for an empty matrix.
    pub(crate) fn latest(&self) -> Option<[f64; 3]> {
        let report = self.report.load();
        let share = |which: u32| (report >> (16 * which) & 0xffff) as f64 / 65_535.0;
        (report >> 48 != 0).then(|| [0, 1, 2].map(share))
    }

    /// Queues the kernel. The caller serializes launches.
    pub(crate) fn run(&self, source: DenseMatrix, queue: Queue<'_>) -> Result<()> {
        if self.blocks == 0 {
            return Ok(());
        }
        let bytes = source.leading * 2;
        let whole = bytes.is_multiple_of(16) && source.address.is_multiple_of(16);
        let params = SampleParams {
            source: source.address,
            row_bytes: bytes as u64,
            state: self.state.address(),
            report: self.report.address(),
            flags: if whole { DETECT_VECTORS } else { 0 },
            ..self.params
        };
        // The kernel waits for the previous launch before it reads.
        let grid = Grid::of([self.blocks, 1, 1]).early();
        queue.launch(&self.kernel, grid, &params)
    }
}
