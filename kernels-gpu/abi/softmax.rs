//! The `softmax` family: softmax of the entries of each row, and its gradient. Rows are dealt by length class; one
//! launch serves all of them.

use super::{Dtype, Tile};

/// Length classes.
pub const SOFTMAX_CLASSES: usize = 10;
/// Threads of a thread block, and lanes of a row of the two longest classes.
pub const SOFTMAX_THREADS: u32 = 128;
/// Output `log(softmax)` instead of softmax; the gradient is then that of the logarithm.
pub const SOFTMAX_LOG: u32 = 1;

/// Step of a softmax.
pub const STEP_SOFTMAX: u32 = 8;
/// Step of its gradient.
pub const STEP_SOFTMAX_GRADIENT: u32 = 9;

/// Lanes that share a row of a class, and vectors that each of them holds; `wide` is the most a lane can. Rows of class
/// 0 fit nowhere and are gone through twice.
pub const fn softmax_class(class: usize, wide: u32) -> (u32, u32) {
    match class {
        0 | 1 => (SOFTMAX_THREADS, wide),
        2 => (SOFTMAX_THREADS, wide / 2),
        3 => (32, wide),
        4 => (32, 4),
        5 => (32, 2),
        6 => (32, 1),
        7 => (8, 2),
        8 => (4, 2),
        _ => (4, 1),
    }
}

/// Rows of single entries: a vector is `VEC` elements, 16 bytes; a lane holds up to `WIDE` of them, and
/// `HALF` is half of that.
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxRows<const VEC: usize, const WIDE: usize, const HALF: usize, const GRADIENT: bool>;

impl<const VEC: usize, const WIDE: usize, const HALF: usize, const GRADIENT: bool> Tile
    for SoftmaxRows<VEC, WIDE, HALF, GRADIENT>
{
    const THREADS: u32 = SOFTMAX_THREADS;
    // The gradient holds two operands; as many bytes are in flight.
    const MIN_BLOCKS: u32 = if GRADIENT { 5 } else { 7 };
    const COLUMNS: u32 = VEC as u32;
    const ITEMS: u32 = 1;
    const PARTS: u32 = 1;
    const BURST: u32 = WIDE as u32;
    const BLOCK: (u32, u32) = (1, 1);
    const STEP: u32 = if GRADIENT {
        STEP_SOFTMAX_GRADIENT
    } else {
        STEP_SOFTMAX
    };
    fn shared_bytes(_: Dtype) -> u32 {
        // Two reductions, a word for each warp.
        2 * 4 * (SOFTMAX_THREADS / 32)
    }
    fn vector(_: Dtype) -> u32 {
        VEC as u32
    }
}

/// Parameters of the `softmax` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxParams {
    /// First slot and number of entries of each row that has any, u32 each, by class.
    pub items: u64,
    /// Entries of each of these rows that no mask hides, in front of those it does; 0 without masks.
    pub live: u64,
    /// Scores; for the gradient what the softmax gave.
    pub input: u64,
    /// Gradient of the output; 0 without.
    pub upstream: u64,
    /// Softmax, or the gradient of the scores; may be any of the inputs.
    pub output: u64,
    /// Factor of the scores.
    pub scale: f32,
    /// `SOFTMAX_*`.
    pub flags: u32,
    /// First thread block of each class, and their number.
    pub blocks: [u32; SOFTMAX_CLASSES + 1],
    /// First item of each class, and their number.
    pub firsts: [u32; SOFTMAX_CLASSES + 1],
}

const _: () = assert!(size_of::<SoftmaxParams>() == 136);
