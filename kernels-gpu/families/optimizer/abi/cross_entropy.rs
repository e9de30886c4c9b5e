//! The module `cross_entropy`: softmax cross-entropy of rows of logits, its gradient, and the mean over rows with a
//! label.

use crate::abi::tiles;

/// Threads of a thread block.
pub const CROSS_ENTROPY_THREADS: u32 = 256;
/// Rows of up to so many classes are the work of [`CROSS_ENTROPY_FEW`] lanes each, others of a warp.
pub const CROSS_ENTROPY_SHORT: u32 = 128;
/// Lanes of a short row.
pub const CROSS_ENTROPY_FEW: u32 = 8;
/// Rows of logits and of their gradient are whole vectors of 16 bytes.
pub const CROSS_ENTROPY_VECTORS: u32 = 1;

tiles! {
    {
        THREADS: CROSS_ENTROPY_THREADS, COLUMNS: 1, ACCESS: 1,
        // A word for each warp, and one that says who came last.
        SHARED_BYTES: 4 * (CROSS_ENTROPY_THREADS / 32 + 1)
    }
    /// Labels counted.
    CountLabels = STEP_COUNT_LABELS 1, MIN_BLOCKS: 8;
    /// Loss and gradient, a few lanes or a warp for each row.
    CrossEntropyRows = STEP_CROSS_ENTROPY 2, MIN_BLOCKS: 5;
}

/// Parameters of the `cross_entropy` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropyParams {
    /// A row for each item.
    pub logits: u64,
    /// Out: their gradient; may be the logits. 0 for the loss alone.
    pub gradient: u64,
    /// The class of each row, a word each; compared with columns, and never an address. Of no class: no label.
    pub labels: u64,
    /// The sum of each thread block, f32.
    pub partial: u64,
    /// Rows with a label, and thread blocks that have arrived, a word each; zeros before and after a run.
    pub words: u64,
    /// Out: the mean, f32.
    pub loss: u64,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub classes: u32,
    /// Bytes from one row of logits to the next.
    pub logit_bytes: u32,
    /// Bytes from one row of the gradient to the next.
    pub gradient_bytes: u32,
    /// `CROSS_ENTROPY_VECTORS`.
    pub flags: u32,
    /// Nothing.
    pub pad: u32,
}

const _: () = assert!(size_of::<CrossEntropyParams>() == 72);
