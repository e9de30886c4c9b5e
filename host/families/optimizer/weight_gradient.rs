//! Gradients of dense weights on a GPU: a launch over tiles and parts of the rows, and one that adds up the parts.

use einsparse_kernels::families::{
    BIAS_COLUMNS, BIAS_ROWS, STEP_BIAS_PARTS, STEP_WEIGHT_PARTS, STEP_WEIGHT_SUM, WEIGHT_ROWS,
    WEIGHT_TILE, WEIGHT_VECTORS, WeightParams,
};
use einsparse_kernels::table::rows_of;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::families::convert::DenseMatrix;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, MAX_GRID_Y, Turns, small, within};
use crate::registry::{Dtype, of_type};

/// Stages that a part has at the least: it leaves a whole tile.
const STAGES: u32 = 16;

/// The kernels, and the sums of the parts.
#[derive(Debug)]
pub(crate) struct WeightGradientLaunch {
    tiles: Kernel<WeightParams>,
    sum: Kernel<WeightParams>,
    partial: DeviceMemory,
    params: WeightParams,
    turns: Turns,
}

fn load(device: &Device, step: u32, dtype: Dtype) -> Result<Kernel<WeightParams>> {
    let own = rows_of::<WeightParams>().filter(|row| row.step == step);
    let row = of_type(own, dtype, format!("weights' gradient of {}", dtype.name()))?;
    Kernel::load(device, row)
}

fn pitch(leading: usize, bytes: usize) -> Result<u32> {
    small("bytes of a row", leading.saturating_mul(bytes))
}

/// Whether rows are whole vectors of four elements of so many bytes.
fn whole(matrix: &DenseMatrix, bytes: usize) -> bool {
    let columns = [matrix.columns, matrix.leading];
    matrix.address.is_multiple_of(4 * bytes as u64) && columns.iter().all(|n| n.is_multiple_of(4))
}

impl WeightGradientLaunch {
    pub(crate) fn new(
        device: &Device,
        dtype: Dtype,
        [rows, inputs, outputs]: [usize; 3],
    ) -> Result<Self> {
        let tiles = load(device, STEP_WEIGHT_PARTS, dtype)?;
        let rows = within("rows", rows, MAX_GRID_X)?;
        let inputs = within("inputs", inputs, MAX_GRID_Y - 1)?;
        let outputs = within("outputs", outputs, MAX_GRID_X)?;
        let of_part = {
            let resident = device.machine().multiprocessors * tiles.row().min_blocks;
            let tiles = inputs.div_ceil(WEIGHT_TILE[0]) * outputs.div_ceil(WEIGHT_TILE[1]);
            let most = rows.div_ceil(STAGES * WEIGHT_ROWS).max(1);
            let parts = (resident / tiles.max(1)).clamp(1, most);
            rows.div_ceil(parts).max(1).next_multiple_of(WEIGHT_ROWS)
        };
        let parts = rows.div_ceil(of_part).max(1);
        let sums = parts as usize * (inputs as usize + 1) * outputs as usize;
        Ok(WeightGradientLaunch {
            sum: load(device, STEP_WEIGHT_SUM, Dtype::F32)?,
            partial: DeviceMemory::alloc(device.context(), sums * 4)?,
            params: WeightParams {
                rows,
                inputs,
                outputs,
                of_part,
                parts,
                ..WeightParams::default()
            },
            turns: Turns::new(device)?,
            tiles,
        })
    }

    /// Name of the kernel of the products.
    pub(crate) fn variant(&self) -> &'static str {
        self.tiles.row().name
    }

    /// Device bytes beside the operands.
    pub(crate) fn bytes(&self) -> usize {
        self.partial.bytes()
    }

    /// Queues `dw` of `x` and `dy`, and at `db` the sums over rows of `dy`, unless it is 0. With a `gate` zeros are
    /// written into `dy` first, where it is not above zero.
    pub(crate) fn run(
        &self,
        [x, dy, dw]: [DenseMatrix; 3],
        db: u64,
        gate: Option<DenseMatrix>,
        queue: Queue<'_>,
    ) -> Result<()> {
        let bytes = self.tiles.row().dtype.bytes();
        let mut params = WeightParams {
            x: x.address,
            dy: dy.address,
            gate: gate.map_or(0, |gate| gate.address),
            partial: self.partial.address(),
            dw: dw.address,
            db,
            x_bytes: pitch(x.leading, bytes)?,
            dy_bytes: pitch(dy.leading, bytes)?,
            gate_bytes: gate.map_or(Ok(0), |gate| pitch(gate.leading, bytes))?,
            dw_bytes: pitch(dw.leading, 4)?,
            ..self.params
        };
        let all = [Some(&x), Some(&dy), gate.as_ref()];
        if all.into_iter().flatten().all(|matrix| whole(matrix, bytes)) {
            params.flags |= WEIGHT_VECTORS;
        }
        let WeightParams {
            inputs,
            outputs,
            parts,
            ..
        } = params;
        let columns = |of: u32| outputs.div_ceil(of);
        let tiles = [
            columns(WEIGHT_TILE[1]),
            inputs.div_ceil(WEIGHT_TILE[0]),
            parts,
        ];
        let sums = [columns(self.sum.row().threads), inputs + 1, 1];
        // Both wait for the one ahead before they read or write.
        self.turns.queue(true, queue.stream(), || {
            queue.launch(&self.tiles, Grid::of(tiles).early(), &params)?;
            queue.launch(&self.sum, Grid::of(sums).early(), &params)
        })
    }
}

/// The kernels of a bias alone, and the sums of the parts.
#[derive(Debug)]
pub(crate) struct BiasGradientLaunch {
    tiles: Kernel<WeightParams>,
    sum: Kernel<WeightParams>,
    partial: DeviceMemory,
    params: WeightParams,
    turns: Turns,
}

impl BiasGradientLaunch {
    pub(crate) fn new(device: &Device, dtype: Dtype, [rows, outputs]: [usize; 2]) -> Result<Self> {
        let tiles = load(device, STEP_BIAS_PARTS, dtype)?;
        let rows = within("rows", rows, MAX_GRID_X)?;
        let outputs = within("outputs", outputs, MAX_GRID_X)?;
        let resident = device.machine().multiprocessors * tiles.row().min_blocks;
        let across = outputs.div_ceil(BIAS_COLUMNS).max(1);
        let most = rows.div_ceil(BIAS_ROWS).max(1);
        let parts = (resident / across).clamp(1, most);
        let of_part = rows.div_ceil(parts).max(1).next_multiple_of(BIAS_ROWS);
        let parts = rows.div_ceil(of_part).max(1);
        let sums = parts as usize * outputs as usize;
        Ok(BiasGradientLaunch {
            sum: load(device, STEP_WEIGHT_SUM, Dtype::F32)?,
            partial: DeviceMemory::alloc(device.context(), sums * 4)?,
            params: WeightParams {
                rows,
                outputs,
                of_part,
                parts,
                ..WeightParams::default()
            },
            turns: Turns::new(device)?,
            tiles,
        })
    }

    /// Name of the kernel that reads the gradient.
    pub(crate) fn variant(&self) -> &'static str {
        self.tiles.row().name
    }

    /// Device bytes beside the operands.
    pub(crate) fn bytes(&self) -> usize {
        self.partial.bytes()
    }

    /// Queues at `db` the sums over rows of `dy`, which becomes `dy + more` where `gate` is above zero first.
    pub(crate) fn run(
        &self,
        dy: DenseMatrix,
        [more, gate]: [Option<DenseMatrix>; 2],
        db: u64,
        queue: Queue<'_>,
    ) -> Result<()> {
        let bytes = self.tiles.row().dtype.bytes();
        let place = |matrix: Option<DenseMatrix>| -> Result<(u64, u32)> {
            let leading = matrix.map_or(0, |matrix| matrix.leading);
            Ok((
                matrix.map_or(0, |matrix| matrix.address),
                pitch(leading, bytes)?,
            ))
        };
        let ((x, x_bytes), (gate_at, gate_bytes)) = (place(more)?, place(gate)?);
        let mut params = WeightParams {
            x,
            dy: dy.address,
            gate: gate_at,
            partial: self.partial.address(),
            db,
            x_bytes,
            dy_bytes: pitch(dy.leading, bytes)?,
            gate_bytes,
            ..self.params
        };
        let all = [Some(&dy), more.as_ref(), gate.as_ref()];
        if all.into_iter().flatten().all(|matrix| whole(matrix, bytes)) {
            params.flags |= WEIGHT_VECTORS;
        }
        let columns = |of: u32| params.outputs.div_ceil(of);
        let tiles = [columns(BIAS_COLUMNS), 1, params.parts];
        let sums = [columns(self.sum.row().threads), 1, 1];
        // Both wait for the one ahead before they read or write.
        self.turns.queue(true, queue.stream(), || {
            queue.launch(&self.tiles, Grid::of(tiles).early(), &params)?;
            queue.launch(&self.sum, Grid::of(sums).early(), &params)
        })
    }
}
