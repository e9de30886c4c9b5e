//! The kernels `weight_gradient`: the gradient of a dense layer's weights from its inputs and the gradient of its
//! outputs. Both are tall: they have few columns, and so many rows that rows are distributed over thread blocks.

use crate::abi::tiles;

/// Threads of a thread block.
pub const WEIGHT_THREADS: u32 = 128;
/// Inputs and outputs of a tile.
pub const WEIGHT_TILE: [u32; 2] = [128, 64];
/// Rows of a stage.
pub const WEIGHT_ROWS: u32 = 8;
/// Rows of the matrices are whole vectors of four elements.
pub const WEIGHT_VECTORS: u32 = 1;

/// Threads of a thread block that computes the gradient of a bias alone.
pub const BIAS_THREADS: u32 = 256;
/// Columns of its tile: eight threads, four elements each.
pub const BIAS_COLUMNS: u32 = 32;
/// Rows that its threads have in flight.
pub const BIAS_ROWS: u32 = 4 * BIAS_THREADS / 8;

tiles! {
    { ACCESS: 1 }
    /// A tile of the gradient over a part of the rows: on CUDA cores in f32, otherwise on Tensor Cores.
    WeightTile = STEP_WEIGHT_PARTS 1, THREADS: WEIGHT_THREADS, MIN_BLOCKS: 4, COLUMNS: WEIGHT_TILE[1],
        // Two stages of both matrices, as f32.
        SHARED_BYTES: 2 * WEIGHT_ROWS * (WEIGHT_TILE[0] + WEIGHT_TILE[1]) * 4;
    /// Sums of columns over a part of the rows.
    BiasTile = STEP_BIAS_PARTS 3, THREADS: BIAS_THREADS, MIN_BLOCKS: 3, COLUMNS: BIAS_COLUMNS,
        // Four sums of each thread.
        SHARED_BYTES: BIAS_THREADS * 16;
    /// Sum over the parts, one element of the gradient for each thread.
    WeightSum = STEP_WEIGHT_SUM 2, THREADS: WEIGHT_THREADS, MIN_BLOCKS: 8, COLUMNS: WEIGHT_THREADS;
}

/// Parameters of the `weight_gradient` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct WeightParams {
    /// Inputs of the layer, one row for each item. For a bias alone: values that are added to `dy`, or 0.
    pub x: u64,
    /// Gradient of the layer's outputs, one row for each item. With `gate`, masked elements are overwritten with zeros;
    /// for a bias alone, the result with `x` added is written back.
    pub dy: u64,
    /// Outputs of the layer: if one is not above zero, its gradient becomes zero. 0 without a ReLU.
    pub gate: u64,
    /// For each part `inputs + 1` rows of `outputs` sums, f32. The last row is the sums of the bias.
    pub partial: u64,
    /// Out: gradient of the weights, f32.
    pub dw: u64,
    /// Out: gradient of the bias, f32; 0 if not needed.
    pub db: u64,
    /// Number of items.
    pub rows: u32,
    /// Columns of `x`, rows of `dw`.
    pub inputs: u32,
    /// Columns of `dy` and of `dw`.
    pub outputs: u32,
    /// Rows of a part.
    pub of_part: u32,
    /// Number of parts.
    pub parts: u32,
    /// Bytes from one row of `x` to the next.
    pub x_bytes: u32,
    /// Bytes from one row of `dy` to the next.
    pub dy_bytes: u32,
    /// Bytes from one row of `gate` to the next.
    pub gate_bytes: u32,
    /// Bytes from one row of `dw` to the next.
    pub dw_bytes: u32,
    /// `WEIGHT_VECTORS`.
    pub flags: u32,
}

const _: () = assert!(size_of::<WeightParams>() == 88);
