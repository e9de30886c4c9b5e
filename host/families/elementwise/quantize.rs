//! Rows as e4m3 with scales on a GPU: one launch, or a product that stores them so.

use einsparse_kernels::abi::{Divisor, QUANTIZED_BLOCK};
use einsparse_kernels::families::{GROUPED_DEPTH, QUANTIZE_LANES, QuantizeParams};

use super::{blocks, load, pitch};
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::families::convert::DenseMatrix;
use crate::kernel::{Kernel, Queue};
use crate::launch::{aligned, small};
use crate::registry::Dtype;

/// Room for rows as e4m3 with scales, and the kernel that fills it.
#[derive(Debug)]
pub(crate) struct QuantizeLaunch {
    kernel: Kernel<QuantizeParams>,
    rows: usize,
    columns: usize,
    codes: DeviceMemory,
    /// Of each row as many as its product has stages, twice.
    scales: DeviceMemory,
    across: usize,
}

/// Blocks of a row that have scales. The kernel numbers those of all rows in 32 bits.
fn across([rows, columns]: [usize; 2]) -> Result<usize> {
    let stage = 2 * GROUPED_DEPTH;
    let across = columns.div_ceil(stage) * (stage / QUANTIZED_BLOCK);
    small(
        &format!("blocks of {QUANTIZED_BLOCK} elements in all rows"),
        rows.saturating_mul(across),
    )?;
    Ok(across)
}

impl QuantizeLaunch {
    pub(crate) fn new(device: &Device, dtype: Dtype, shape: [usize; 2]) -> Result<Self> {
        let [rows, columns] = shape;
        let across = across(shape)?;
        // Zeros: a product may be asked for before anything was stored for it.
        let room = |width: usize| device.zeros((rows * width).max(16));
        Ok(QuantizeLaunch {
            kernel: load(device, dtype, 1, "rows as e4m3")?,
            rows,
            columns,
            codes: room(columns)?,
            scales: room(4 * across)?,
            across,
        })
    }

    /// The codes, and the address of the scales.
    pub(crate) fn quantized(&self) -> (DenseMatrix, u64) {
        let codes = DenseMatrix {
            address: self.codes.address(),
            rows: self.rows,
            columns: self.columns,
            leading: self.columns,
        };
        (codes, self.scales.address())
    }

    /// Refuses rows that the kernel cannot read.
    pub(crate) fn check(&self, name: &str, x: DenseMatrix) -> Result<()> {
        aligned(self.kernel.row(), name, x.address, x.leading)
    }

    /// Queues the quantizing of `x`.
    pub(crate) fn run(&self, x: DenseMatrix, queue: Queue<'_>) -> Result<()> {
        if self.rows == 0 || self.across == 0 {
            return Ok(());
        }
        let params = QuantizeParams {
            x: x.address,
            codes: self.codes.address(),
            scales: self.scales.address(),
            across: Divisor::new(small("blocks of a row", self.across)?),
            x_row: pitch(self.kernel.row(), &x)?,
            rows: small("rows", self.rows)?,
            columns: small("columns", self.columns)?,
            pad: 0,
        };
        let threads = self.rows * self.across * QUANTIZE_LANES as usize;
        queue.launch(&self.kernel, blocks(threads)?, &params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_all_rows_are_numbered_in_32_bits() {
        let stage = 2 * GROUPED_DEPTH;
        let of_stage = stage / QUANTIZED_BLOCK;
        // Threads of so many rows are more than 2^32, blocks are not.
        let rows = (1 << 32) / of_stage - 1;
        assert_eq!(across([rows, stage]).unwrap(), of_stage);
        for rows in [rows + 1, usize::MAX] {
            let error = across([rows, stage]).unwrap_err().to_string();
            assert!(error.contains("over the limit of 4294967295"), "{error}");
        }
    }
}
