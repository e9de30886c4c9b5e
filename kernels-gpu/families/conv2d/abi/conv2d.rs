//! The module `conv2d`: convolutions over planes, channels first, `[channels, batch * height * width]`.

use crate::abi::{Divisor, Dtype, Tile, tiles};

/// Threads of a thread block.
pub const CONV2D_THREADS: u32 = 128;
/// Windows have at most so many rows and columns, but for those that are as large as the plane.
pub const CONV2D_WINDOW: u32 = 7;
/// Output channels that a thread of [`FewChannels`] computes.
pub const CONV2D_OUTPUTS: u32 = 8;
/// Rows of the window that are loaded at once.
pub const CONV2D_ROWS: u32 = 3;
/// Taps, times input channels, that [`FewChannels`] has room for: rows of the window as long as the tile's.
pub const CONV2D_TAPS: u32 = 512;

/// The output is clamped at zero from below.
pub const CONV2D_RELU: u32 = 1;

/// Depthwise, 3 x 3, stride 1.
pub const STEP_DEPTHWISE_UNIT: u32 = 1;
/// Depthwise, 3 x 3, stride 2.
pub const STEP_DEPTHWISE_STRIDED: u32 = 2;
/// Of all input channels.
pub const STEP_FEW_CHANNELS: u32 = 5;

/// Depthwise with a window of 3 x 3: a thread has `VEC` outputs of a row side by side, and of 4 / `STRIDE` rows. With
/// vectors the padding is 1.
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
    /// Depthwise with any window and stride: a thread has one output.
    DepthwiseAny = STEP_DEPTHWISE_ANY 3, MIN_BLOCKS: 5;
    /// Depthwise with a window as large as the plane: a warp has one output.
    DepthwisePlane = STEP_DEPTHWISE_PLANE 4, MIN_BLOCKS: 8;
}

/// Each output channel of all input channels, which are few: a thread has a place of [`CONV2D_OUTPUTS`] output planes.
/// Windows of at most `WINDOW` rows and columns.
#[derive(Clone, Copy, Debug)]
pub struct FewChannels<const WINDOW: u32>;

impl<const WINDOW: u32> Tile for FewChannels<WINDOW> {
    const THREADS: u32 = CONV2D_THREADS;
    const MIN_BLOCKS: u32 = if WINDOW > 3 { 4 } else { 5 };
    const COLUMNS: u32 = 1;
    const ITEMS: u32 = CONV2D_OUTPUTS;
    const BLOCK: (u32, u32) = (WINDOW, WINDOW);
    const STEP: u32 = STEP_FEW_CHANNELS;
    // Weights as f32, and of the last rows that are loaded at once those that are none.
    const SHARED_BYTES: u32 = (CONV2D_TAPS + CONV2D_ROWS * WINDOW) * CONV2D_OUTPUTS * 4;
    const ACCESS: u32 = 1;
}

/// Parameters of the `conv2d` kernels. Planes are those of the input, `[height, width]`, one for each image of a channel;
/// those of the output have extents of their own.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Conv2dParams {
    /// `[channels, batch, height, width]`, channels `input_pitch` apart.
    pub input: u64,
    /// `[outputs, 1 or channels, window rows, window columns]`.
    pub weights: u64,
    /// `[outputs]`, or 0.
    pub bias: u64,
    /// Out: `[outputs, batch, height, width]`, channels `out_pitch` apart.
    pub out: u64,
    /// Bytes from one channel to the next.
    pub input_pitch: u64,
    /// Bytes from one channel to the next.
    pub out_pitch: u64,
    /// Rows and columns of a plane.
    pub size: [u32; 2],
    /// Rows and columns of a plane of the output.
    pub out_size: [u32; 2],
    /// Images.
    pub batch: Divisor,
    /// Pieces of a plane of the output that threads have, down.
    pub down: Divisor,
    /// The same across.
    pub across: Divisor,
    /// Pieces: threads, or warps, with work.
    pub work: u32,
    /// Input channels.
    pub channels: u32,
    /// Output channels.
    pub outputs: u32,
    /// Rows and columns of the window.
    pub window: [u32; 2],
    /// Zeros above and below, to the left and to the right.
    pub padding: [u32; 2],
    /// Places from one window to the next, both ways.
    pub stride: u32,
    /// `CONV2D_*`.
    pub flags: u32,
    /// Nothing.
    pub pad: u32,
}

const _: () = assert!(size_of::<Conv2dParams>() == 128);
