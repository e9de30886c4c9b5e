//! Transposes of dense matrices of 2-byte elements, computed in each run. Products that read the summed axis first use
//! them.

use einsparse_kernels::abi::Divisor;
use einsparse_kernels::families::{
    TRANSPOSE_COLUMNS, TRANSPOSE_ROWS, TRANSPOSE_VECTORS, TransposeParams,
};
use einsparse_kernels::table::rows_of;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, MAX_GRID_Y, small, within};
use crate::registry::Dtype;
use crate::tensor::DenseMatrix;

/// Kernel for matrices of one shape, and the memory of their transposes.
#[derive(Debug)]
pub(crate) struct TransposeLaunch {
    kernel: Kernel<TransposeParams>,
    params: TransposeParams,
    grid: [u32; 2],
    /// Row stride of a transpose in elements.
    leading: usize,
    out: DeviceMemory,
}

impl TransposeLaunch {
    /// Creates the kernel for `items` contiguous matrices of `rows` x `columns` elements of 2 bytes.
    pub(crate) fn new(
        device: &Device,
        dtype: Dtype,
        items: usize,
        [rows, columns]: [usize; 2],
    ) -> Result<Self> {
        let row = rows_of::<TransposeParams>().find(|row| row.dtype.bytes() == dtype.bytes());
        let Some(row) = row else {
            return Err(Error::NoKernel {
                indirect: format!("the transpose of a matrix of {}", dtype.name()),
                tried: Vec::new(),
            });
        };
        let kernel = Kernel::load(device, row)?;
        let across = columns.div_ceil(TRANSPOSE_COLUMNS as usize);
        let down = rows.div_ceil(TRANSPOSE_ROWS as usize);
        let leading = rows.next_multiple_of(8);
        let elements = items.saturating_mul(columns).saturating_mul(leading);
        let limit = isize::MAX as usize / dtype.bytes();
        if elements > limit {
            return Err(Error::Overflow {
                what: "elements of the transposes".into(),
                value: elements as u128,
                limit: limit as u128,
            });
        }
        let blocks = within("thread blocks", across.saturating_mul(down), MAX_GRID_X)?;
        Ok(TransposeLaunch {
            kernel,
            params: TransposeParams {
                out_row_bytes: (leading * dtype.bytes()) as u64,
                across: Divisor::new(small("thread blocks across", across)?),
                rows: within("rows", rows, i32::MAX as usize)?,
                columns: within("columns", columns, i32::MAX as usize)?,
                ..TransposeParams::default()
            },
            grid: [blocks, within("items", items, MAX_GRID_Y)?],
            leading,
            out: device.zeros((elements * dtype.bytes()).max(16))?,
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kernel.row().name
    }

    pub(crate) fn bytes(&self) -> usize {
        self.out.bytes()
    }

    /// Returns the transposes. Rows are padded with zeros to a multiple of 8.
    pub(crate) fn out(&self) -> DenseMatrix {
        DenseMatrix {
            address: self.out.address(),
            rows: self.params.columns as usize,
            columns: self.params.rows as usize,
            leading: self.leading,
        }
    }

    /// Queues the kernel. The caller serializes runs and readers of [`TransposeLaunch::out`].
    pub(crate) fn run(&self, source: DenseMatrix, queue: Queue<'_>) -> Result<()> {
        if self.grid.contains(&0) {
            return Ok(());
        }
        let row_bytes = source.leading * self.kernel.row().dtype.bytes();
        let whole = row_bytes.is_multiple_of(16) && source.address.is_multiple_of(16);
        let params = TransposeParams {
            source: source.address,
            out: self.out.address(),
            row_bytes: row_bytes as u64,
            flags: if whole { TRANSPOSE_VECTORS } else { 0 },
            ..self.params
        };
        // The kernel waits for the previous launch before it reads.
        let grid = Grid::of([self.grid[0], self.grid[1], 1]).early();
        queue.launch(&self.kernel, grid, &params)
    }
}
