//! Gradients of dense weights on a GPU: a launch over tiles and parts of the rows, and one that adds up the parts.

use einsparse_kernels::families::{
    BIAS_COLUMNS, BIAS_ROWS, STEP_BIAS_PARTS, STEP_WEIGHT_PARTS, STEP_WEIGHT_SUM, WEIGHT_ROWS,
    WEIGHT_TILE, WEIGHT_VECTORS, WeightParams,
};
use einsparse_kernels::table::rows_of;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, MAX_GRID_Y, Turns, row_bytes, within};
use crate::registry::{Dtype, of_type};
use crate::tensor::DenseMatrix;

/// Min stages of a part, because each part stores a whole tile of sums.
const STAGES: u32 = 16;

fn load(device: &Device, step: u32, dtype: Dtype) -> Result<Kernel<WeightParams>> {
    let own = rows_of::<WeightParams>().filter(|row| row.step == step);
    let row = of_type(own, dtype, format!("weights' gradient of {}", dtype.name()))?;
    Kernel::load(device, row)
}

/// Kernel that stores the sums of a part of the rows, kernel that adds them up, and the partial sums.
#[derive(Debug)]
struct Parts {
    tiles: Kernel<WeightParams>,
    sum: Kernel<WeightParams>,
    partial: DeviceMemory,
    params: WeightParams,
    turns: Turns,
}

impl Parts {
    /// Splits the rows into as many parts as fill the GPU, given `across` tiles per part. A part has at least `least`
    /// rows, a multiple of `stage`. `sums`: number of sums per part.
    fn new(
        device: &Device,
        tiles: Kernel<WeightParams>,
        params: WeightParams,
        (across, least, stage): (u32, u32, u32),
        sums: usize,
    ) -> Result<Self> {
        let resident = device.machine().multiprocessors * tiles.row().min_blocks;
        let most = params.rows.div_ceil(least).max(1);
        let parts = (resident / across.max(1)).clamp(1, most);
        let of_part = params.rows.div_ceil(parts).max(1);
        let of_part = of_part.next_multiple_of(stage);
        let parts = params.rows.div_ceil(of_part).max(1);
        Ok(Parts {
            sum: load(device, STEP_WEIGHT_SUM, Dtype::F32)?,
            partial: DeviceMemory::alloc(device.context(), parts as usize * sums * 4)?,
            params: WeightParams { of_part, parts, ..params },
            turns: Turns::new(device)?,
            tiles,
        })
    }

    /// Returns the params of the plan with the operands of a run.
    fn params(&self, dy: DenseMatrix, [x, gate]: [Option<DenseMatrix>; 2]) -> Result<WeightParams> {
        let bytes = self.tiles.row().dtype.bytes();
        let address = |matrix: Option<DenseMatrix>| matrix.map_or(0, |matrix| matrix.address);
        let pitch = |matrix: Option<DenseMatrix>| {
            matrix.map_or(Ok(0), |matrix| row_bytes("a matrix", matrix.leading, bytes))
        };
        let mut all = [Some(dy), x, gate].into_iter().flatten();
        let vectors = all.all(|matrix| whole(&matrix, bytes));
        Ok(WeightParams {
            x: address(x),
            dy: dy.address,
            gate: address(gate),
            partial: self.partial.address(),
            x_bytes: pitch(x)?,
            dy_bytes: pitch(Some(dy))?,
            gate_bytes: pitch(gate)?,
            flags: self.params.flags | if vectors { WEIGHT_VECTORS } else { 0 },
            ..self.params
        })
    }

    /// Queues both launches. `tile`: columns per tile. `down`: rows of tiles per part. `sums`: rows of sums.
    fn run(
        &self,
        params: &WeightParams,
        tile: u32,
        [down, sums]: [u32; 2],
        queue: Queue<'_>,
    ) -> Result<()> {
        let columns = |of: u32| params.outputs.div_ceil(of);
        let tiles = [columns(tile), down, params.parts];
        let sums = [columns(self.sum.row().threads), sums, 1];
        // Both kernels wait for the previous launch before they read or write.
        self.turns.queue(true, queue.stream(), || {
            queue.launch(&self.tiles, Grid::of(tiles).early(), params)?;
            queue.launch(&self.sum, Grid::of(sums).early(), params)
        })
    }
}

/// Returns whether rows are whole vectors of four elements of this many bytes.
fn whole(matrix: &DenseMatrix, bytes: usize) -> bool {
    let columns = [matrix.columns, matrix.leading];
    matrix.address.is_multiple_of(4 * bytes as u64) && columns.iter().all(|n| n.is_multiple_of(4))
}

/// Gradient of weights and of a bias.
#[derive(Debug)]
pub struct WeightGradientLaunch(Parts);

impl WeightGradientLaunch {
    pub fn new(device: &Device, dtype: Dtype, [rows, inputs, outputs]: [usize; 3]) -> Result<Self> {
        let tiles = load(device, STEP_WEIGHT_PARTS, dtype)?;
        let params = WeightParams {
            rows: within("rows", rows, MAX_GRID_X)?,
            inputs: within("inputs", inputs, MAX_GRID_Y - 1)?,
            outputs: within("outputs", outputs, MAX_GRID_X)?,
            ..WeightParams::default()
        };
        let across =
            params.inputs.div_ceil(WEIGHT_TILE[0]) * params.outputs.div_ceil(WEIGHT_TILE[1]);
        let deal = (across, STAGES * WEIGHT_ROWS, WEIGHT_ROWS);
        let sums = (inputs + 1) * outputs;
        Parts::new(device, tiles, params, deal, sums).map(WeightGradientLaunch)
    }

    /// Returns the name of the kernel of the products.
    pub fn variant(&self) -> &'static str {
        self.0.tiles.row().name
    }

    pub fn bytes(&self) -> usize {
        self.0.partial.bytes()
    }

    /// Queues `dw` from `x` and `dy`. Unless `db` is 0, the sums of the rows of `dy` are stored there. With a `gate`,
    /// elements of `dy` are first overwritten with zeros if their `gate` is not above zero.
    pub fn run(
        &self,
        [x, dy, dw]: [DenseMatrix; 3],
        db: u64,
        gate: Option<DenseMatrix>,
        queue: Queue<'_>,
    ) -> Result<()> {
        let params = WeightParams {
            dw: dw.address,
            db,
            dw_bytes: row_bytes("dw", dw.leading, 4)?,
            ..self.0.params(dy, [Some(x), gate])?
        };
        let down = [params.inputs.div_ceil(WEIGHT_TILE[0]), params.inputs + 1];
        self.0.run(&params, WEIGHT_TILE[1], down, queue)
    }
}

/// Gradient of a bias alone.
#[derive(Debug)]
pub struct BiasGradientLaunch(Parts);

impl BiasGradientLaunch {
    pub fn new(device: &Device, dtype: Dtype, [rows, outputs]: [usize; 2]) -> Result<Self> {
        let tiles = load(device, STEP_BIAS_PARTS, dtype)?;
        let params = WeightParams {
            rows: within("rows", rows, MAX_GRID_X)?,
            outputs: within("outputs", outputs, MAX_GRID_X)?,
            ..WeightParams::default()
        };
        let deal = (params.outputs.div_ceil(BIAS_COLUMNS), BIAS_ROWS, BIAS_ROWS);
        Parts::new(device, tiles, params, deal, outputs).map(BiasGradientLaunch)
    }

    /// Returns the name of the kernel that reads the gradient.
    pub fn variant(&self) -> &'static str {
        self.0.tiles.row().name
    }

    pub fn bytes(&self) -> usize {
        self.0.partial.bytes()
    }

    /// Queues the sums of the rows of `dy` into `db`. `beside` is an optional summand and an optional gate. `dy` is
    /// first overwritten with `dy + summand`, or with zero if its gate element is not above zero.
    pub fn run(
        &self,
        dy: DenseMatrix,
        beside: [Option<DenseMatrix>; 2],
        db: u64,
        queue: Queue<'_>,
    ) -> Result<()> {
        let params = WeightParams { db, ..self.0.params(dy, beside)? };
        self.0.run(&params, BIAS_COLUMNS, [1, 1], queue)
    }
}
