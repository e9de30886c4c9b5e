//! Quantization of rows to e4m3 with scales on a GPU: one launch, or the epilogue of a product.

use einsparse_kernels::abi::{Divisor, QUANTIZED_BLOCK};
use einsparse_kernels::families::{GROUPED_DEPTH, QUANTIZE_LANES, QuantizeParams};

use super::{blocks, load, pitch};
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::kernel::{Kernel, Queue};
use crate::launch::{aligned, small};
use crate::registry::Dtype;
use crate::tensor::DenseMatrix;

/// Buffers for quantized rows and scales, and the kernel that fills them.
#[derive(Debug)]
pub(crate) struct QuantizeLaunch {
    kernel: Kernel<QuantizeParams>,
    rows: usize,
    columns: usize,
    codes: DeviceMemory,
    /// Scales: two per row and stage of the product.
    scales: DeviceMemory,
    across: usize,
}

/// Number of blocks of a row that have scales. The kernel numbers the blocks of all rows in 32 bits.
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
        // The buffers are zero, because a product may run before values are stored.
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

    /// Returns the codes and the address of the scales.
    pub(crate) fn quantized(&self) -> (DenseMatrix, u64) {
        let codes = DenseMatrix {
            address: self.codes.address(),
            rows: self.rows,
            columns: self.columns,
            leading: self.columns,
        };
        (codes, self.scales.address())
    }

    /// Returns an error for rows that the kernel cannot read.
    pub(crate) fn check(&self, name: &str, x: DenseMatrix) -> Result<()> {
        aligned(self.kernel.row(), name, x.address, x.leading)
    }

    /// Queues the quantization of `x`.
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
        // The number of threads of these rows exceeds 2^32, but the number of blocks does not.
        let rows = (1 << 32) / of_stage - 1;
        assert_eq!(across([rows, stage]).unwrap(), of_stage);
        for rows in [rows + 1, usize::MAX] {
            let error = across([rows, stage]).unwrap_err().to_string();
            assert!(error.contains("over the limit of 4294967295"), "{error}");
        }
    }
}
