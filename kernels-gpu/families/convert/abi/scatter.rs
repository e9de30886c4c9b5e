//! The module `scatter`: values to the places they have in another form of their matrix.

use crate::abi::tiles;

tiles! {
    { THREADS: 256, MIN_BLOCKS: 4, COLUMNS: 1, ITEMS: 1024, BURST: 4, ACCESS: 1 }
    /// A thread takes four values.
    Four;
}

/// Parameters of the `scatter` kernels: `out[places[i]] = values[i]` for all `i < count`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScatterParams {
    /// Values, in the order of the matrix they come from.
    pub values: u64,
    /// For each the element of `out` it becomes, u32; no two alike, but [`u32::MAX`] for those that become none.
    pub places: u64,
    /// The values of the other form.
    pub out: u64,
    /// Number of values.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<ScatterParams>() == 32);
