//! The kernels `message`: gradient of the max over a vertex' messages. The winning message is found again by equality
//! with the result; among equal messages the first wins.

use crate::abi::tiles;

/// Entries per warp: one load reads their indices.
pub const MESSAGE_ENTRIES: u32 = 4;
/// Features of a unit of work, one per lane of a warp.
pub const MESSAGE_FEATURES: u32 = 32;
/// The slot of an item that is the whole sum of its source.
pub const MESSAGE_WHOLE: u32 = u32::MAX;

/// Parameters of every `message` kernel: `Y[m,f]` is the max of `A[m,k] * X[k,f]`. Entries are sorted by k. An item of
/// [`PickLargest`] is `[k, start, len, slot]`: entries `start .. start + len`, all of one k.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MessageParams {
    /// m of each entry, u32.
    pub targets: u64,
    /// k of each entry, u32.
    pub sources: u64,
    /// Slot of each entry among the values, u32.
    pub slots: u64,
    /// Values of A.
    pub values: u64,
    /// X.
    pub x: u64,
    /// Y.
    pub y: u64,
    /// Gradient of Y.
    pub dy: u64,
    /// Out: gradient of X, or gradient of the values with one element per slot.
    pub out: u64,
    /// Slot of the first winning entry for each m and f: u32, `u32::MAX` without one.
    pub first: u64,
    /// Items, four u32 each.
    pub items: u64,
    /// Partial sums of cut items, accumulators, for each slot and f.
    pub partial: u64,
    /// Bytes from one row of X to the next.
    pub x_bytes: u32,
    /// Bytes from one row of Y to the next.
    pub y_bytes: u32,
    /// Bytes from one row of the gradient of Y to the next.
    pub dy_bytes: u32,
    /// Bytes from one row of the gradient of X to the next.
    pub out_bytes: u32,
    /// Number of entries, or of items.
    pub count: u32,
    /// Number of features.
    pub features: u32,
    /// 1 if items are cut sums, whose parts are added up.
    pub join: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<MessageParams>() == 120);

tiles! {
    { THREADS: 256, MIN_BLOCKS: 4, COLUMNS: MESSAGE_FEATURES, BURST: MESSAGE_ENTRIES, ACCESS: 1 }
    /// Finds the winning entries; four entries per warp.
    FirstLargest = STEP_MESSAGE_FIRST 131, ITEMS: 8 * MESSAGE_ENTRIES;
    /// Gradient of X: for each source the sum over its winning messages.
    PickLargest = STEP_MESSAGE_PICK 132, ITEMS: 8;
    /// Gradient of the values, a sum over features; four entries per warp.
    LargestWeights = STEP_MESSAGE_WEIGHTS 133, ITEMS: 8 * MESSAGE_ENTRIES;
}
