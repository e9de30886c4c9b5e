//! The `softmax` family: softmax of the entries of each row, and its gradient. Rows are dealt by length class; one
//! launch serves all of them, and the heads that share a pattern. Only rows cut into pieces have a launch ahead.

use super::{Dtype, Tile};

/// Length classes, and the class of stretches.
pub const SOFTMAX_CLASSES: usize = 11;
/// The class of stretches: neighbouring short rows that follow each other without gaps, a warp for some of them.
pub const SOFTMAX_STRETCHES: usize = SOFTMAX_CLASSES - 1;
/// Slots of a stretch of vectors of `vector` elements, from the aligned vector that holds its first entry on: a vector a lane.
pub const fn stretch_slots(vector: u32) -> u32 {
    32 * vector
}
/// Entries of a row of a stretch at the most: longer ones would leave too many slots empty.
pub const fn stretch_longest(vector: u32) -> u32 {
    stretch_slots(vector) / 4
}
/// Threads of a thread block, and lanes of a row of the two longest classes.
pub const SOFTMAX_THREADS: u32 = 128;
/// Output `log(softmax)` instead of softmax; the gradient is then that of the logarithm.
pub const SOFTMAX_LOG: u32 = 1;
/// Leave each piece's maximum and sum only: the launch ahead of the one that writes.
pub const SOFTMAX_SUMS: u32 = 2;

/// Step of a softmax.
pub const STEP_SOFTMAX: u32 = 8;
/// Step of its gradient.
pub const STEP_SOFTMAX_GRADIENT: u32 = 9;

/// Lanes that share a row of a class, and vectors that each of them holds; `wide` is the most a lane can. Rows that fit
/// nowhere are cut into pieces, which are class 0. A stretch takes a warp.
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
        _ => (32, 1),
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
        // The reductions of longer rows: two words for each warp.
        8 * SOFTMAX_THREADS / 32
    }
    fn vector(_: Dtype) -> u32 {
        VEC as u32
    }
}

/// Parameters of the `softmax` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxParams {
    /// First slot and number of entries of each row that has any, u32 each, by class: of each stretch in the last; of each
    /// piece in the first.
    pub items: u64,
    /// Entries of each of these rows, or pieces, that no mask hides, in front of those it does, u32. 0 without masks.
    pub live: u64,
    /// For each stretch a byte a lane: bit i is set where a row starts in slot i of the lane. What follows the last row is one as well.
    pub starts: u64,
    /// As many bytes: bit i is set where no mask hides slot i. Not looked at without masks.
    pub lives: u64,
    /// First piece of the row and number of its pieces, u32 each, for each piece.
    pub pieces: u64,
    /// Maximum and sum of each piece, f32 each, heads one after the other; of the gradient the sum only.
    pub sums: u64,
    /// Scores; for the gradient what the softmax gave.
    pub input: u64,
    /// Gradient of the output; 0 without.
    pub upstream: u64,
    /// Softmax, or the gradient of the scores; may be any of the inputs.
    pub output: u64,
    /// Slots from one head to the next.
    pub stride: u64,
    /// Factor of the scores.
    pub scale: f32,
    /// `SOFTMAX_*`.
    pub flags: u32,
    /// First thread block of each class, and their number.
    pub blocks: [u32; SOFTMAX_CLASSES + 1],
    /// First item of each class, and their number.
    pub firsts: [u32; SOFTMAX_CLASSES + 1],
}

const _: () = assert!(size_of::<SoftmaxParams>() == 184);
