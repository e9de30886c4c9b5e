//! Activation functions on a GPU, and their gradients: one launch each.

use einsparse_kernels::families::{ActivationParams, STEP_ACTIVATION, STEP_ACTIVATION_GRADIENT};

use super::{blocks, load, pitch, vectors};
use crate::device::Device;
use crate::error::Result;
use crate::kernel::{Kernel, Queue};
use crate::launch::small;
use crate::registry::Dtype;
use crate::tensor::DenseMatrix;

/// Kernels for one shape.
#[derive(Debug)]
pub struct ActivationLaunch {
    kernels: [Kernel<ActivationParams>; 2],
    shape: [usize; 2],
    function: u32,
}

impl ActivationLaunch {
    /// Creates the launch. `function`: flags of the kernels.
    pub fn new(device: &Device, dtype: Dtype, shape: [usize; 2], function: u32) -> Result<Self> {
        let load = |step| load(device, dtype, step, "activations");
        Ok(ActivationLaunch {
            kernels: [load(STEP_ACTIVATION)?, load(STEP_ACTIVATION_GRADIENT)?],
            shape,
            function,
        })
    }

    pub fn variant(&self) -> &'static str {
        self.kernels[0].row().name
    }

    /// Queues the function of x. If the gradient of the result is given, queues the gradient of x instead.
    pub fn run(
        &self,
        x: DenseMatrix,
        dy: Option<DenseMatrix>,
        out: DenseMatrix,
        queue: Queue<'_>,
    ) -> Result<()> {
        let kernel = &self.kernels[usize::from(dy.is_some())];
        let (row, [rows, columns]) = (kernel.row(), self.shape);
        if rows == 0 || columns == 0 {
            return Ok(());
        }
        let all = [x, dy.unwrap_or(x), out];
        let whole = vectors(row, columns, &all);
        let of_thread = if whole == 0 { 1 } else { 16 / row.dtype.bytes() };
        let params = ActivationParams {
            x: x.address,
            dy: dy.map_or(0, |dy| dy.address),
            out: out.address,
            row_bytes: [pitch(row, &all[0])?, pitch(row, &all[1])?, pitch(row, &all[2])?],
            rows: small("rows", rows)?,
            columns: small("columns", columns)?,
            flags: self.function | whole,
        };
        queue.launch(kernel, blocks(rows * (columns / of_thread))?, &params)
    }
}
