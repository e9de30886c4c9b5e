//! The kernels `slicing`: sliced ELLPACK from CSR, in three steps, and updates of its values.

use crate::abi::Tile;

/// Rows that are sorted together.
pub const SORTED: u32 = 4096;
/// Max K-tiles that a chunk's window spans: fewer than [`crate::families::spmm::abi::RING`], so that some copies are in
/// flight.
pub const REACH: u32 = 24;

/// Sorts rows by length within windows of [`SORTED`].
pub const SLICING_ORDER: u32 = 1;
/// Counts the chunks of each slice.
pub const SLICING_COUNT: u32 = 2;
/// Writes windows, local columns and values.
pub const SLICING_FILL: u32 = 3;

/// Updates the values of existing slices: one warp per run of [`RUN_CHUNKS`] chunks.
pub const SLICING_VALUES: u32 = 4;

/// Chunks of a slice whose values one warp updates.
pub const RUN_CHUNKS: usize = 4;

/// One step, `SLICING_*`: one thread per row, or one warp per slice.
#[derive(Clone, Copy, Debug)]
pub struct Slicing<const STEP: u32>;

impl<const STEP: u32> Tile for Slicing<STEP> {
    const THREADS: u32 = 128;
    const MIN_BLOCKS: u32 = 4;
    const COLUMNS: u32 = 1;
    const ITEMS: u32 = if STEP == SLICING_ORDER { 128 } else { 4 };
    const STEP: u32 = STEP;
    const SHARED_BYTES: u32 = if STEP == SLICING_ORDER { SORTED * 4 } else { 0 };
    const ACCESS: u32 = 1;
}

/// Parameters of the `slicing` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SlicingParams {
    /// CSR: first entry of each row, u32, `rows + 1` elements.
    pub offsets: u64,
    /// CSR: columns, u32.
    pub columns: u64,
    /// CSR: values.
    pub values: u64,
    /// Row of every lane of every slice, u32, `u32::MAX` past the last row. `SLICING_VALUES`: first entry of every lane
    /// of every run.
    pub order: u64,
    /// Chunks of each slice, u32.
    pub counts: u64,
    /// First chunk of each slice, u32. `SLICING_VALUES`: first chunk of each run, and the end of the last.
    pub starts: u64,
    /// First tile of each chunk's window and its end, u32 each.
    pub windows: u64,
    /// Local columns, u16, `[chunks, 32, 4]`.
    pub local_columns: u64,
    /// Values, `[chunks, 32, 4]`.
    pub slot_values: u64,
    /// Number of rows.
    pub rows: u32,
    /// Number of slices, or of runs.
    pub slices: u32,
}

const _: () = assert!(size_of::<SlicingParams>() == 80);
