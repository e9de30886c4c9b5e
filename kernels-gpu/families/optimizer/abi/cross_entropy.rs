//! The kernels `cross_entropy`: softmax cross-entropy of rows of logits, its gradient, and the mean over rows with a
//! label.

use crate::abi::tiles;

/// Threads of a thread block.
pub const CROSS_ENTROPY_THREADS: u32 = 256;
/// Max classes of a short row, which [`CROSS_ENTROPY_FEW`] lanes process. A warp processes a longer row.
pub const CROSS_ENTROPY_SHORT: u32 = 128;
/// Lanes of a short row.
pub const CROSS_ENTROPY_FEW: u32 = 8;
/// Rows of logits and of their gradient are whole vectors of 16 bytes.
pub const CROSS_ENTROPY_VECTORS: u32 = 1;

tiles! {
    {
        THREADS: CROSS_ENTROPY_THREADS, COLUMNS: 1, ACCESS: 1,
        // One word for each warp, and one for the arrival count of the thread block.
        SHARED_BYTES: 4 * (CROSS_ENTROPY_THREADS / 32 + 1)
    }
    /// Tile of the kernel that counts labels.
    CountLabels = STEP_COUNT_LABELS 1, MIN_BLOCKS: 8;
    /// Tile of the kernel for loss and gradient, a few lanes or a warp for each row.
    CrossEntropyRows = STEP_CROSS_ENTROPY 2, MIN_BLOCKS: 5;
}

/// Parameters of the `cross_entropy` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropyParams {
    /// Logits, one row for each item.
    pub logits: u64,
    /// Out: gradient of the logits, possibly in place; 0 for the loss alone.
    pub gradient: u64,
    /// Class of each row, one word each. It is compared with columns, and never used as an address. A row whose word is
    /// not a class has no label.
    pub labels: u64,
    /// Sum of each thread block, f32.
    pub partial: u64,
    /// Rows with a label, and thread blocks that have arrived, one word each; zero before and after a run.
    pub words: u64,
    /// Out: mean of the losses, f32.
    pub loss: u64,
    /// Number of rows.
    pub rows: u32,
    /// Number of columns.
    pub classes: u32,
    /// Bytes from one row of logits to the next.
    pub logit_bytes: u32,
    /// Bytes from one row of the gradient to the next.
    pub gradient_bytes: u32,
    /// `CROSS_ENTROPY_VECTORS`.
    pub flags: u32,
    /// Padding.
    pub pad: u32,
}

const _: () = assert!(size_of::<CrossEntropyParams>() == 72);
