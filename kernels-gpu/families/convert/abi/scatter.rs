//! The kernels `scatter`: copies values to their positions in another form of their matrix.

use crate::abi::tiles;

tiles! {
    { THREADS: 256, MIN_BLOCKS: 4, COLUMNS: 1, ITEMS: 1024, BURST: 4, ACCESS: 1 }
    /// Four values per thread.
    Four;
}

/// Parameters of the `scatter` kernels: `out[places[i]] = values[i]` for all `i < count`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScatterParams {
    /// Values, in the order of the original matrix.
    pub values: u64,
    /// Index in `out` of each value, u32. Indices are distinct, except that [`u32::MAX`] drops a value.
    pub places: u64,
    /// The values of the other form.
    pub out: u64,
    /// Number of values.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<ScatterParams>() == 32);
