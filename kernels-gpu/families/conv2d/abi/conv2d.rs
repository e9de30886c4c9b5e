//! Module `conv2d`: convolutions over planes, channels first, `[channels, batch * height * width]`.

use crate::abi::{Divisor, Dtype, Tile, tiles};

/// Threads of a thread block.
pub const CONV2D_THREADS: u32 = 128;
/// Max number of rows and columns of a window, except for windows as large as the plane.
pub const CONV2D_WINDOW: u32 = 7;
/// Output channels that a thread of [`FewChannels`] computes.
pub const CONV2D_OUTPUTS: u32 = 8;
/// Rows of the window that are loaded at once.
pub const CONV2D_ROWS: u32 = 3;
/// Capacity of [`FewChannels`] in taps times input channels, with rows of the window padded to the tile's.
pub const CONV2D_TAPS: u32 = 512;

/// ReLU of the output.
pub const CONV2D_RELU: u32 = 1;

/// Step of depthwise convolutions, 3 x 3, stride 1.
pub const STEP_DEPTHWISE_UNIT: u32 = 1;
/// Step of depthwise convolutions, 3 x 3, stride 2.
pub const STEP_DEPTHWISE_STRIDED: u32 = 2;
/// Step of convolutions over all input channels.
pub const STEP_FEW_CHANNELS: u32 = 5;

/// Tile of depthwise convolutions with a window of 3 x 3: a thread has `VEC` adjacent outputs in each of 4 / `STRIDE`
/// rows. With vectors the padding is 1.
#[derive(Clone, Copy, Debug)]
pub struct Depthwise<const VEC: usize, const STRIDE: usize>;

impl<const VEC: usize, const STRIDE: usize> Tile for Depthwise<VEC, STRIDE> {
    const THREADS: u32 = CONV2D_THREADS;
    const MIN_BLOCKS: u32 = 5;
    const COLUMNS: u32 = VEC as u32;
    const ITEMS: u32 = 4 / STRIDE as u32;
    const STEP: u32 = STRIDE as u32;
    const ACCESS: u32 = 1;
    fn vector(_: Dtype) -> u32 {
        VEC as u32
    }
}

tiles! {
    { THREADS: CONV2D_THREADS, COLUMNS: 1, ACCESS: 1 }
    /// Tile of depthwise convolutions with any window and stride: one output for each thread.
    DepthwiseAny = STEP_DEPTHWISE_ANY 3, MIN_BLOCKS: 5;
    /// Tile of depthwise convolutions with a window as large as the plane: one output for each warp.
    DepthwisePlane = STEP_DEPTHWISE_PLANE 4, MIN_BLOCKS: 8;
}

/// Tile of convolutions over all of few input channels: a thread has one position of [`CONV2D_OUTPUTS`] output planes.
/// Windows have at most `WINDOW` rows and columns.
#[derive(Clone, Copy, Debug)]
pub struct FewChannels<const WINDOW: u32>;

impl<const WINDOW: u32> Tile for FewChannels<WINDOW> {
    const THREADS: u32 = CONV2D_THREADS;
    const MIN_BLOCKS: u32 = if WINDOW > 3 { 4 } else { 5 };
    const COLUMNS: u32 = 1;
    const ITEMS: u32 = CONV2D_OUTPUTS;
    const BLOCK: (u32, u32) = (WINDOW, WINDOW);
    const STEP: u32 = STEP_FEW_CHANNELS;
    // Weights as f32, and zeros that complete the last rows loaded at once.
    const SHARED_BYTES: u32 = (CONV2D_TAPS + CONV2D_ROWS * WINDOW) * CONV2D_OUTPUTS * 4;
    const ACCESS: u32 = 1;
}

/// Parameters of the `conv2d` kernels. A plane of the input is `[height, width]`, one for each image of a channel;
/// planes of the output have their own extents.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Conv2dParams {
    /// `[channels, batch, height, width]`, channels `input_pitch` apart.
    pub input: u64,
    /// `[outputs, 1 or channels, window rows, window columns]`.
    pub weights: u64,
    /// `[outputs]`, or 0.
    pub bias: u64,
    /// Output: `[outputs, batch, height, width]`, channels `out_pitch` apart.
    pub out: u64,
    /// Bytes from one channel of the input to the next.
    pub input_pitch: u64,
    /// Bytes from one channel of the output to the next.
    pub out_pitch: u64,
    /// Rows and columns of a plane.
    pub size: [u32; 2],
    /// Rows and columns of a plane of the output.
    pub out_size: [u32; 2],
    /// Images.
    pub batch: Divisor,
    /// Pieces along the height of an output plane. A piece is the work of a thread, or of a warp.
    pub down: Divisor,
    /// Pieces along the width of an output plane.
    pub across: Divisor,
    /// Number of pieces.
    pub work: u32,
    /// Input channels.
    pub channels: u32,
    /// Output channels.
    pub outputs: u32,
    /// Rows and columns of the window.
    pub window: [u32; 2],
    /// Zero padding above and below, and to the left and right.
    pub padding: [u32; 2],
    /// Distance between windows, in both directions.
    pub stride: u32,
    /// `CONV2D_*`.
    pub flags: u32,
    /// Padding.
    pub pad: u32,
}

const _: () = assert!(size_of::<Conv2dParams>() == 128);
