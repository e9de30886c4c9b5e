//! Gated units on a GPU: one launch.

use einsparse_kernels::families::GatedParams;

use super::{Layout, blocks, load, pitch, vectors};
use crate::device::Device;
use crate::error::Result;
use crate::kernel::{Kernel, Queue};
use crate::launch::small;
use crate::registry::Dtype;
use crate::tensor::DenseMatrix;

/// Kernel for an output of one shape.
#[derive(Debug)]
pub struct GatedLaunch {
    kernel: Kernel<GatedParams>,
    layout: Layout,
    gate: u32,
}

impl GatedLaunch {
    /// Creates the launch. `gate`: flags of the kernels.
    pub fn new(device: &Device, dtype: Dtype, layout: Layout, gate: u32) -> Result<Self> {
        Ok(GatedLaunch { kernel: load(device, dtype, 1, "gated units")?, layout, gate })
    }

    pub fn variant(&self) -> &'static str {
        self.kernel.row().name
    }

    /// Queues `out = gate(first half of the features of x) * (second half)`.
    pub fn run(&self, [x, out]: [DenseMatrix; 2], queue: Queue<'_>) -> Result<()> {
        let row = self.kernel.row();
        let [rows, columns] = self.layout.shape();
        if rows == 0 || columns == 0 {
            return Ok(());
        }
        let mut flags = self.gate | vectors(row, columns, &[x, out]);
        let x_row = pitch(row, &x)?;
        let apart = match self.layout.columns {
            true => rows as u64 * u64::from(x_row),
            false => (columns * row.dtype.bytes()) as u64,
        };
        if !apart.is_multiple_of(16) {
            flags = self.gate;
        }
        let of_thread = match flags == self.gate {
            true => 1,
            false => 16 / row.dtype.bytes(),
        };
        let params = GatedParams {
            x: x.address,
            out: out.address,
            apart,
            x_row,
            out_row: pitch(row, &out)?,
            rows: small("rows", rows)?,
            columns: small("columns", columns)?,
            flags,
            pad: 0,
        };
        queue.launch(&self.kernel, blocks(rows * (columns / of_thread))?, &params)
    }
}
