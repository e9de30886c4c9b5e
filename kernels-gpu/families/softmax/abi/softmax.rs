//! The module `softmax`: softmax of the entries of each row, and its gradient. Rows are dealt by length class; one
//! launch serves all of them, and the heads that share a pattern. Only rows cut into pieces have a launch ahead.

use crate::abi::{Dtype, Tile};

/// Length classes, and the class of stretches.
pub const SOFTMAX_CLASSES: usize = 11;
/// The class of stretches: neighbouring short rows that follow each other without gaps, through shared memory.
pub const SOFTMAX_STRETCHES: usize = SOFTMAX_CLASSES - 1;
/// Slots of a stretch at the most, from the aligned vector that holds its first entry on.
pub const STRETCH_SLOTS: u32 = 2048;
/// Rows of a stretch at the most: one for each thread.
pub const STRETCH_ROWS: u32 = SOFTMAX_THREADS;
/// Entries of a row of a stretch at the most: a thread holds 32 numbers in registers, by fours, and a row may begin at
/// the last place of one.
pub const STRETCH_LONGEST: u32 = 29;
/// Words of 16 bits that say where a stretch's rows begin, counted from its first entry, and where the last ends.
/// Unused rows are empty ones at the end.
pub const STRETCH_BOUNDS: u32 = STRETCH_ROWS + 8;
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
/// nowhere are cut into pieces, which are class 0. A stretch takes a thread block, which holds two words a slot at the
/// most.
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
    const BURST: u32 = WIDE as u32;
    const STEP: u32 = if GRADIENT { STEP_SOFTMAX_GRADIENT } else { STEP_SOFTMAX };
    // A stretch and what the last row's thread looks at beyond it, 36 words for 32 slots. The reductions of longer rows
    // need two words for each warp.
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
    /// First slot and number of entries of each row that has any, u32 each, by class: of each stretch in the last; of
    /// each piece in the first.
    pub items: u64,
    /// Entries of each of these rows that no mask hides, in front of those it does, u32; of a stretch's rows one after
    /// the other, `STRETCH_ROWS` each. 0 without masks.
    pub live: u64,
    /// `STRETCH_BOUNDS` words for each stretch.
    pub bounds: u64,
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

const _: () = assert!(size_of::<SoftmaxParams>() == 176);
