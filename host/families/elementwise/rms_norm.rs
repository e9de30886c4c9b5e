//! Root-mean-square normalisation on a GPU: one launch.

use einsparse_kernels::families::{ELEMENTWISE_THREADS, RMS_KEPT, RMS_SHORT, RmsNormParams};

use super::{Layout, load, pitch, vectors};
use crate::device::Device;
use crate::error::Result;
use crate::families::convert::DenseMatrix;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, within};
use crate::registry::Dtype;

/// The kernel for matrices of one shape.
#[derive(Debug)]
pub(crate) struct RmsNormLaunch {
    kernel: Kernel<RmsNormParams>,
    layout: Layout,
    params: RmsNormParams,
}

impl RmsNormLaunch {
    pub(crate) fn new(device: &Device, dtype: Dtype, layout: Layout, epsilon: f64) -> Result<Self> {
        let kernel = load::<RmsNormParams>(device, dtype, 1, "normalisation of tokens")?;
        // Without vectors a thread keeps as many elements as it would keep vectors.
        let most = (RMS_KEPT * ELEMENTWISE_THREADS) as usize;
        Ok(RmsNormLaunch {
            kernel,
            layout,
            params: RmsNormParams {
                tokens: within("tokens", layout.tokens, MAX_GRID_X)?,
                width: within("features of a token", layout.width, most)?,
                epsilon: epsilon as f32,
                ..RmsNormParams::default()
            },
        })
    }

    pub(crate) fn variant(&self) -> &'static str {
        self.kernel.row().name
    }

    /// Queues the norm of `x`, or of `x += y`. `factor`: an address.
    pub(crate) fn run(
        &self,
        [x, out]: [DenseMatrix; 2],
        y: Option<DenseMatrix>,
        factor: u64,
        queue: Queue<'_>,
    ) -> Result<()> {
        let row = self.kernel.row();
        if self.layout.tokens == 0 || self.layout.width == 0 {
            return Ok(());
        }
        let second = y.unwrap_or(x);
        let mut flags =
            self.layout.flags() | vectors(row, self.layout.shape()[1], &[x, out, second]);
        // Factors lie along the features.
        if !self.layout.columns && !factor.is_multiple_of(16) {
            flags = self.layout.flags();
        }
        let params = RmsNormParams {
            x: x.address,
            y: y.map_or(0, |y| y.address),
            factor,
            out: out.address,
            x_row: pitch(row, &x)?,
            y_row: pitch(row, &second)?,
            out_row: pitch(row, &out)?,
            flags,
            ..self.params
        };
        let vector = match flags == self.layout.flags() {
            true => 1,
            false => 16 / row.dtype.bytes() as u32,
        };
        let of_block = match (self.layout.columns, params.width <= RMS_SHORT * vector) {
            (true, _) => vector,
            (false, true) => ELEMENTWISE_THREADS / 32,
            (false, false) => 1,
        };
        let grid = Grid::of([params.tokens.div_ceil(of_block), 1, 1]).early();
        queue.launch(&self.kernel, grid, &params)
    }
}
