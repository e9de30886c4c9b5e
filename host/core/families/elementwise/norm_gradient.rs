//! Gradient of layer normalization on a GPU: gradient of the summands, partial sums over parts of the rows, total sums.

use einsparse_kernels::families::{
    ELEMENTWISE_THREADS, NORM_ACROSS, NormGradientParams, STEP_NORM_INPUT, STEP_NORM_PARTS,
    STEP_NORM_SUM,
};

use super::{load, pitch, vectors};
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, Turns, within};
use crate::registry::Dtype;
use crate::tensor::DenseMatrix;

/// Min rows of a part.
const LEAST: u32 = 64;

/// Kernels for matrices of one shape.
#[derive(Debug)]
pub struct NormGradientLaunch {
    input: Kernel<NormGradientParams>,
    parts: Kernel<NormGradientParams>,
    sum: Kernel<NormGradientParams>,
    stats: DeviceMemory,
    partial: DeviceMemory,
    params: NormGradientParams,
    /// Serializes runs, because they share the workspace between the launches.
    turns: Turns,
}

impl NormGradientLaunch {
    pub fn new(
        device: &Device,
        dtype: Dtype,
        [rows, width]: [usize; 2],
        epsilon: f64,
    ) -> Result<Self> {
        let step = |dtype, step| load(device, dtype, step, "the gradient of a norm");
        let (rows, width) =
            (within("rows", rows, MAX_GRID_X)?, within("columns", width, MAX_GRID_X)?);
        // Number of thread blocks across if rows are vectors. Without vectors, a part has fewer rows than possible.
        let across = width.div_ceil(NORM_ACROSS * 16 / dtype.bytes() as u32);
        let resident = 2 * device.machine().multiprocessors;
        let most = rows.div_ceil(LEAST).max(1);
        let parts = (resident / across.max(1)).clamp(1, most);
        let of_part = rows.div_ceil(parts).max(1);
        let parts = rows.div_ceil(of_part).max(1);
        let memory = |bytes: usize| DeviceMemory::alloc(device.context(), bytes);
        let stats = memory(rows as usize * 8)?;
        let partial = memory(parts as usize * 2 * width as usize * 4)?;
        Ok(NormGradientLaunch {
            input: step(dtype, STEP_NORM_INPUT)?,
            parts: step(dtype, STEP_NORM_PARTS)?,
            sum: step(Dtype::F32, STEP_NORM_SUM)?,
            params: NormGradientParams {
                stats: stats.address(),
                partial: partial.address(),
                rows,
                width,
                epsilon: epsilon as f32,
                of_part,
                parts,
                ..NormGradientParams::default()
            },
            stats,
            partial,
            turns: Turns::new(device)?,
        })
    }

    /// Name of the kernel that computes the gradient of the summands.
    pub fn variant(&self) -> &'static str {
        self.input.row().name
    }

    /// Workspace in device memory, bytes.
    pub fn bytes(&self) -> usize {
        self.stats.bytes() + self.partial.bytes()
    }

    /// Queues the gradients: of x and y at `dx`, of factors and biases at `affine`. `factor` is an address.
    pub fn run(
        &self,
        [x, y, dy, dx]: [DenseMatrix; 4],
        factor: u64,
        affine: u64,
        queue: Queue<'_>,
    ) -> Result<()> {
        let row = self.input.row();
        if self.params.width == 0 {
            return Ok(());
        }
        let all = [x, y, dy, dx];
        let flags = vectors(row, self.params.width as usize, &all);
        let mut row_bytes = [0; 4];
        for (bytes, matrix) in row_bytes.iter_mut().zip(&all) {
            *bytes = pitch(row, matrix)?;
        }
        let params = NormGradientParams {
            x: [x.address, y.address],
            factor,
            dy: dy.address,
            dx: dx.address,
            affine,
            row_bytes,
            // The factors are read along the columns, so they must be aligned too.
            flags: if factor.is_multiple_of(16) { flags } else { 0 },
            ..self.params
        };
        let of_vector = match params.flags {
            0 => 1,
            _ => 16 / row.dtype.bytes() as u32,
        };
        let grid = |x: u32, y: u32| Grid::of([x, y, 1]).early();
        let warps = ELEMENTWISE_THREADS / 32;
        let across = params.width.div_ceil(NORM_ACROSS * of_vector);
        self.turns.queue(true, queue.stream(), || {
            if params.rows > 0 {
                let rows = params.rows.div_ceil(warps);
                queue.launch(&self.input, grid(rows, 1), &params)?;
            }
            queue.launch(&self.parts, grid(across, params.parts), &params)?;
            let sums = params.width.div_ceil(ELEMENTWISE_THREADS);
            queue.launch(&self.sum, grid(sums, 2), &params)
        })
    }
}
