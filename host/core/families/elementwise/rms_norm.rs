//! RMS normalization on a GPU: one launch for tokens in rows, two for tokens in columns.

use einsparse_kernels::families::{
    ELEMENTWISE_THREADS, ELEMENTWISE_VECTORS, RMS_ACROSS, RMS_PARTS, RMS_SHARE, RMS_SHORT,
    RmsNormParams, STEP_RMS_ROWS, STEP_RMS_SCALE, STEP_RMS_SUMS,
};

use super::{Layout, load, pitch, vectors};
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, MAX_GRID_Y, Turns, within};
use crate::registry::Dtype;
use crate::tensor::DenseMatrix;

/// Kernels for matrices of one shape.
#[derive(Debug)]
pub struct RmsNormLaunch {
    rows: Kernel<RmsNormParams>,
    /// Kernels of the sums and of the scaling, for tokens in columns.
    columns: Option<Columns>,
    layout: Layout,
    params: RmsNormParams,
}

#[derive(Debug)]
struct Columns {
    kernels: [Kernel<RmsNormParams>; 2],
    partial: DeviceMemory,
    /// Serializes runs, because they share the partial sums.
    turns: Turns,
}

impl RmsNormLaunch {
    pub fn new(device: &Device, dtype: Dtype, layout: Layout, epsilon: f64) -> Result<Self> {
        let step = |step| load::<RmsNormParams>(device, dtype, step, "normalisation of tokens");
        let tokens = within("tokens", layout.tokens, MAX_GRID_X)?;
        let width = within("features of a token", layout.width, MAX_GRID_X)?;
        let share = width.div_ceil(RMS_PARTS).max(RMS_SHARE);
        let parts = width.div_ceil(share);
        let columns = match layout.columns {
            false => None,
            true => {
                let across = layout.tokens.div_ceil(RMS_ACROSS as usize);
                within("thread blocks of tokens", across, MAX_GRID_Y)?;
                let partial = parts as usize * layout.tokens * 4;
                Some(Columns {
                    kernels: [step(STEP_RMS_SUMS)?, step(STEP_RMS_SCALE)?],
                    partial: DeviceMemory::alloc(device.context(), partial)?,
                    turns: Turns::new(device)?,
                })
            }
        };
        Ok(RmsNormLaunch {
            rows: step(STEP_RMS_ROWS)?,
            params: RmsNormParams {
                partial: columns.as_ref().map_or(0, |own| own.partial.address()),
                tokens,
                width,
                epsilon: epsilon as f32,
                share,
                parts,
                ..RmsNormParams::default()
            },
            columns,
            layout,
        })
    }

    pub fn variant(&self) -> &'static str {
        match &self.columns {
            Some(own) => own.kernels[0].row().name,
            None => self.rows.row().name,
        }
    }

    /// Queues the norm of `x`, or of `x += y`. `factor` is an address.
    pub fn run(
        &self,
        [x, out]: [DenseMatrix; 2],
        y: Option<DenseMatrix>,
        factor: u64,
        queue: Queue<'_>,
    ) -> Result<()> {
        if self.layout.tokens == 0 || self.layout.width == 0 {
            return Ok(());
        }
        let row = self.rows.row();
        let second = y.unwrap_or(x);
        let all = [x, out, second];
        let params = RmsNormParams {
            x: x.address,
            y: y.map_or(0, |y| y.address),
            factor,
            out: out.address,
            x_row: pitch(row, &x)?,
            y_row: pitch(row, &second)?,
            out_row: pitch(row, &out)?,
            ..self.params
        };
        let of_vector = 16 / row.dtype.bytes() as u32;
        let vector = |flags: u32| if flags == 0 { 1 } else { of_vector };
        // A single column without gaps has the layout of a row.
        let one = self.layout.tokens == 1 && all.iter().all(|matrix| matrix.leading == 1);
        if let (Some(own), false) = (&self.columns, one) {
            let flags = vectors(row, self.layout.tokens, &all);
            let across = params.tokens.div_ceil(RMS_ACROSS * vector(flags));
            let grid = || Grid::of([params.parts, across, 1]).early();
            let params = RmsNormParams { flags, ..params };
            let [sums, scale] = &own.kernels;
            return own.turns.queue(true, queue.stream(), || {
                queue.launch(sums, grid(), &params)?;
                queue.launch(scale, grid(), &params)
            });
        }
        let flags = match one {
            true if !self.layout.width.is_multiple_of(of_vector as usize) => 0,
            true if all.iter().any(|m| !m.address.is_multiple_of(16)) => 0,
            true => ELEMENTWISE_VECTORS,
            false => vectors(row, self.layout.width, &all),
        };
        // The factors are read along the features, so they must be aligned too.
        let flags = if factor.is_multiple_of(16) { flags } else { 0 };
        let short = flags != 0 && params.width <= RMS_SHORT * of_vector;
        let of_block = if short { ELEMENTWISE_THREADS / 32 } else { 1 };
        let grid = Grid::of([params.tokens.div_ceil(of_block), 1, 1]).early();
        queue.launch(&self.rows, grid, &RmsNormParams { flags, ..params })
    }
}
