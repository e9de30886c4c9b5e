//! The module `message`: the gradient of the largest of a vertex' messages. Which message that was is found again by
//! equality with the result; of equal ones it is the first.

use crate::abi::tiles;

/// Entries that a warp takes: their places are one load each.
pub const MESSAGE_ENTRIES: u32 = 4;
/// Features of a unit of work, one for each lane of a warp.
pub const MESSAGE_FEATURES: u32 = 32;
/// The slot of an item that is the whole sum of its source.
pub const MESSAGE_WHOLE: u32 = u32::MAX;

/// Parameters of every `message` kernel: `Y[m,f]` is the largest `A[m,k] * X[k,f]`. Entries are sorted by k. An item of
/// the step that picks is `[k, start, len, slot]`: entries `start .. start + len`, all of one k.
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
    /// Out: gradient of X, or that of the values, one for each slot.
    pub out: u64,
    /// Slot of the first entry that has won, for each m and f: u32, `u32::MAX` for none.
    pub first: u64,
    /// Four u32 each.
    pub items: u64,
    /// Sums of cut items, accumulators, for each slot and f.
    pub partial: u64,
    /// Bytes from one row of X to the next.
    pub x_bytes: u32,
    /// The same of Y.
    pub y_bytes: u32,
    /// The same of its gradient.
    pub dy_bytes: u32,
    /// The same of the gradient of X.
    pub out_bytes: u32,
    /// Entries, or items.
    pub count: u32,
    /// Features.
    pub features: u32,
    /// 1 where items are cut sums, whose parts are added up.
    pub join: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<MessageParams>() == 120);

tiles! {
    { THREADS: 256, MIN_BLOCKS: 4, COLUMNS: MESSAGE_FEATURES, BURST: MESSAGE_ENTRIES, ACCESS: 1 }
    /// Which entry has won; four of them a warp.
    FirstLargest = STEP_MESSAGE_FIRST 131, ITEMS: 8 * MESSAGE_ENTRIES;
    /// The gradient of X: of each source the sum over the messages that have won.
    PickLargest = STEP_MESSAGE_PICK 132, ITEMS: 8;
    /// The gradient of the values, a sum over features; four entries a warp.
    LargestWeights = STEP_MESSAGE_WEIGHTS 133, ITEMS: 8 * MESSAGE_ENTRIES;
}
