//! The module `softmax`: softmax of the nonzeros of each row, and its gradient. Rows are distributed by length class.
//! One launch serves all classes, and the heads that share a pattern. Only rows cut into pieces need a preceding
//! launch.

use crate::abi::{Dtype, Tile};

/// Number of classes: the length classes, and the class of stretches.
pub const SOFTMAX_CLASSES: usize = 11;
/// Class of stretches: neighbouring short rows without gaps between them, processed in shared memory.
pub const SOFTMAX_STRETCHES: usize = SOFTMAX_CLASSES - 1;
/// Max slots (elements) of a stretch, from the aligned vector that holds its first entry on.
pub const STRETCH_SLOTS: u32 = 2048;
/// Max rows of a stretch: one for each thread.
pub const STRETCH_ROWS: u32 = SOFTMAX_THREADS;
/// Max entries of a row of a stretch: a thread holds 32 numbers in registers, in groups of four, and a row may begin at
/// the last slot of a group.
pub const STRETCH_LONGEST: u32 = 29;
/// 16-bit words with the begin of each row of a stretch, counted from its first entry, and with the end of the last
/// row. Unused rows are empty ones at the end.
pub const STRETCH_BOUNDS: u32 = STRETCH_ROWS + 8;
/// Threads of a thread block, and lanes of a row of the two longest classes.
pub const SOFTMAX_THREADS: u32 = 128;
/// Outputs `log(softmax)` instead of softmax; the gradient is then that of the logarithm.
pub const SOFTMAX_LOG: u32 = 1;
/// Stores only each piece's maximum and sum: flag of the launch before the one that writes.
pub const SOFTMAX_SUMS: u32 = 2;

/// [`Tile::STEP`] of a softmax.
pub const STEP_SOFTMAX: u32 = 8;
/// [`Tile::STEP`] of its gradient.
pub const STEP_SOFTMAX_GRADIENT: u32 = 9;

/// Lanes that share a row of a class, and vectors that each of them holds; `wide` is the max of a lane. Longer rows are
/// cut into pieces, which are class 0. A stretch takes a thread block, which holds at most two words a slot.
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
        9 => (4, 1),
        _ => (SOFTMAX_THREADS, wide / 2),
    }
}

/// Tile of unstructured rows: a vector is `VEC` elements, 16 bytes; a lane holds up to `WIDE` of them.
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxRows<const VEC: usize, const WIDE: usize, const GRADIENT: bool>;

impl<const VEC: usize, const WIDE: usize, const GRADIENT: bool> Tile
    for SoftmaxRows<VEC, WIDE, GRADIENT>
{
    const THREADS: u32 = SOFTMAX_THREADS;
    // The gradient holds two operands, with an equal number of bytes in flight.
    const MIN_BLOCKS: u32 = if GRADIENT { 5 } else { 7 };
    const COLUMNS: u32 = VEC as u32;
    const BURST: u32 = WIDE as u32;
    const STEP: u32 = if GRADIENT { STEP_SOFTMAX_GRADIENT } else { STEP_SOFTMAX };
    // A stretch, and the slots past it that the last row's thread reads: 36 words for 32 slots. The reductions of
    // longer rows need two words for each warp.
    const SHARED_BYTES: u32 = 4 * (STRETCH_SLOTS + 32) / 32 * 36;
    const ACCESS: u32 = 1;
    fn vector(_: Dtype) -> u32 {
        VEC as u32
    }
}

/// Parameters of the `softmax` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxParams {
    /// First slot and number of entries of each nonempty row, u32 each, by class. The last class has those of each
    /// stretch, the first those of each piece.
    pub items: u64,
    /// Unmasked entries of each of these rows, which precede the masked ones, u32. Rows of a stretch are stored one
    /// after the other, `STRETCH_ROWS` each. 0 without masks.
    pub live: u64,
    /// `STRETCH_BOUNDS` 16-bit words for each stretch.
    pub bounds: u64,
    /// First piece of the row and number of its pieces, u32 each, for each piece.
    pub pieces: u64,
    /// Maximum and sum of each piece, f32 each, head after head; for the gradient only the sum.
    pub sums: u64,
    /// Scores; for the gradient the output of the softmax.
    pub input: u64,
    /// Gradient of the output, or 0.
    pub upstream: u64,
    /// Softmax, or the gradient of the scores; may be any of the inputs.
    pub output: u64,
    /// Slots from one head to the next.
    pub stride: u64,
    /// Factor of the scores.
    pub scale: f32,
    /// `SOFTMAX_*`.
    pub flags: u32,
    /// First thread block of each class, and the number of thread blocks.
    pub blocks: [u32; SOFTMAX_CLASSES + 1],
    /// First item of each class, and the number of items. Class 0 holds the pieces: `firsts[1]` is their number.
    pub firsts: [u32; SOFTMAX_CLASSES + 1],
}

const _: () = assert!(size_of::<SoftmaxParams>() == 176);
