//! The module `entries`: conversions, sorts and checks of unstructured sparse formats on the GPU. All steps share one
//! parameter struct; each step is a tile.

use super::DIGIT_BITS;
use crate::abi::{Divisor, Dtype, SCAN_BYTES, SCAN_THREADS, Tile, tiles};

/// Entries (rows) per thread block of a step: eight per thread.
pub const ENTRY_TILE: u32 = 8 * SCAN_THREADS;
/// Keys per thread block of a sort: sixteen per thread.
pub const SORT_TILE: u32 = 16 * SCAN_THREADS;
/// Max bits of a key that one pass of a sort orders by.
pub const SORT_BITS: u32 = 9;
/// Vectors of a row per lane of [`Compact`].
pub const SEGMENT_VECTORS: u32 = 4;
/// Warps of a thread block of [`Compact`], each with up to [`WARP_SEGMENTS`] segments.
pub const SEGMENTS: u32 = SCAN_THREADS / 32;
/// Segments per warp of [`Compact`] for large matrices: more bytes per wait of a thread block.
pub const WARP_SEGMENTS: u32 = 4;
/// Shared memory of a look-back: sum and found state of each warp.
pub const TURNS_BYTES: u32 = SCAN_THREADS / 32 * 8;
/// Shared memory of a warp of [`Compact`]: a segment of 512 values of 4 bytes with their columns, 1024 of 2, 256 of 8.
pub const KEPT_BYTES: u32 = 4096;
/// Bytes before the words of [`EntriesParams::turns`]: arrivals and the run number.
pub const TURNS_HEAD: u64 = 16;

/// The first payload is the positions, counted from 0: used in the first pass of a sort.
pub const SORT_FIRST: u32 = 1;
/// The sort also moves `second`.
pub const SORT_SECOND: u32 = 2;
/// Writes the sorted keys.
pub const SORT_KEYS: u32 = 4;
/// Writes `second` and the value as a pair, the layout of [`crate::abi::Permuted`].
pub const SORT_PAIRS: u32 = 8;
/// Keys are the length classes of rows, longest first: class 0, then powers of two.
pub const SORT_CLASSES: u32 = 16;
/// Keys are the lengths of rows, longest first.
pub const SORT_LENGTHS: u32 = 32;
/// [`Compact`] keeps the elements that [`TopEntries`] selected.
pub const COMPACT_TOP: u32 = 64;
/// [`FillSlots`] writes ELL: every row has the same number of slots.
pub const FILL_ELL: u32 = 128;

/// Result of [`CheckEntries`]: the first position of each kind of fault, `u32::MAX` without one.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryReport {
    /// First offset that is below the previous one, not 0 at the start, or not the number of entries at the end.
    pub offset: u32,
    /// First entry whose column is out of range, or not above the previous column of its row.
    pub entry: u32,
}

/// Parameters of every `entries` kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EntriesParams {
    /// The dense matrix, row-major, or the values of CSR.
    pub source: u64,
    /// Bytes from one row of the dense matrix to the next.
    pub row_bytes: u64,
    /// Row offsets of CSR, m + 1.
    pub offsets: u64,
    /// Columns of CSR.
    pub columns: u64,
    /// Keys of a sort, or sorted rows.
    pub keys: u64,
    /// First payload of a sort, one word for each key, or a permutation.
    pub first: u64,
    /// Second payload of a sort, one word for each key.
    pub second: u64,
    /// Out: sorted keys.
    pub out_keys: u64,
    /// Out: first payload in key order, or pairs.
    pub out_first: u64,
    /// Out: second payload in key order.
    pub out_second: u64,
    /// Number of keys of each digit in each tile, digit by digit.
    pub counts: u64,
    /// Number of keys of each digit.
    pub totals: u64,
    /// Row of each entry or group.
    pub rows: u64,
    /// First entry or group of each row, and the number of all.
    pub starts: u64,
    /// Out: columns.
    pub out_columns: u64,
    /// Out: values.
    pub out_values: u64,
    /// Arrivals, run number, and running sums of the thread blocks of a one-pass step. Zero before the first run.
    pub turns: u64,
    /// Output of [`TopEntries`] for each row: the min selected magnitude, and the end column of elements equal to it.
    pub pivots: u64,
    /// [`EntryReport`].
    pub report: u64,
    /// Elements with a larger magnitude are kept.
    pub floor: u64,
    /// Rows of the matrix.
    pub m: u32,
    /// Columns of the matrix.
    pub k: u32,
    /// Number of entries, slots or keys; for [`Compact`] the segments per warp.
    pub count: u32,
    /// Capacity of the output in entries or slots.
    pub capacity: u32,
    /// Number of thread blocks of the step.
    pub tiles: u32,
    /// Lowest bit of the digit of this pass.
    pub shift: u32,
    /// Bits of the digit of this pass.
    pub bits: u32,
    /// Entries to select in each row.
    pub top: u32,
    /// Slots per group, or per row of ELL.
    pub group: Divisor,
    /// Segments per row of the dense matrix.
    pub segments: Divisor,
    /// Columns per segment.
    pub segment_columns: u32,
    /// `SORT_*`, `COMPACT_*`, `FILL_*`.
    pub flags: u32,
}

// Positions are u32, also past the end of the last tile: they would wrap if 2^32 were not a multiple of the tile.
const _: () = assert!(
    (1u64 << 32).is_multiple_of(ENTRY_TILE as u64) && (1u64 << 32).is_multiple_of(SORT_TILE as u64)
);
const _: () = assert!(size_of::<EntryReport>() == 8);
const _: () = assert!(size_of::<EntriesParams>() == 216);

tiles! {
    { THREADS: SCAN_THREADS, COLUMNS: SCAN_THREADS }
    /// Row of every entry (group) from the offsets.
    EntryRows = STEP_ENTRY_ROWS 101, MIN_BLOCKS: 6, ACCESS: 1, SHARED_BYTES: SCAN_BYTES + 4 * ENTRY_TILE;
    /// Offsets from the sorted rows of entries.
    EntryOffsets = STEP_ENTRY_OFFSETS 102, MIN_BLOCKS: 6, ACCESS: 1;
    /// Checks columns and offsets against the rules of CSR.
    CheckEntries = STEP_CHECK_ENTRIES 103, MIN_BLOCKS: 6, ACCESS: 1, SHARED_BYTES: SCAN_BYTES + 4 * ENTRY_TILE;
    /// Counts the keys of a tile with each digit.
    SortCount = STEP_SORT_COUNT 104, MIN_BLOCKS: 6, ACCESS: 1, SHARED_BYTES: 4 << SORT_BITS;
    /// Running sums of each digit over the tiles.
    SortPlace = STEP_SORT_PLACE 105, MIN_BLOCKS: 6, ACCESS: 1, SHARED_BYTES: SCAN_BYTES;
    /// Moves keys and their values to their positions; equal keys keep their order.
    SortMove = STEP_SORT_MOVE 106, MIN_BLOCKS: 3, ACCESS: 1,
        SHARED_BYTES: SCAN_BYTES + ((SCAN_THREADS / 32 + 1) << (SORT_BITS + 2)) + 12 * SORT_TILE;
    /// First group of every row.
    GroupStarts = STEP_GROUP_STARTS 107, MIN_BLOCKS: 6, ACCESS: 1, SHARED_BYTES: TURNS_BYTES;
    /// CSR to the slots of GroupCOO or ELL.
    FillSlots = STEP_FILL_SLOTS 108, MIN_BLOCKS: 6, ACCESS: 1;
    /// Values through a permutation.
    PermuteValues = STEP_PERMUTE_VALUES 109, MIN_BLOCKS: 6, ACCESS: 1;
    /// Min magnitude among the selected elements of each row.
    TopEntries = STEP_TOP_ENTRIES 110, MIN_BLOCKS: 4, ACCESS: 1, SHARED_BYTES: SCAN_BYTES + (4 << DIGIT_BITS) + 16;
    /// Dense to CSR. `ALIGNED`: 16-byte loads, else element by element.
    Compact<ALIGNED> = STEP_COMPACT 111, MIN_BLOCKS: 3, ACCESS: if ALIGNED { 16 } else { 1 },
        SHARED_BYTES: TURNS_BYTES + SEGMENTS * KEPT_BYTES;
}

/// Threads of a thread block that reorders values by tiles.
pub const REORDER_THREADS: u32 = 512;
/// Runs that a warp of [`Join`] processes together.
pub const JOIN_RUNS: u32 = 32;

/// Step of [`ReorderPlaces`].
pub const STEP_REORDER_PLACES: u32 = 112;
/// Step of [`Split`].
pub const STEP_SPLIT: u32 = 113;
/// Step of [`Join`].
pub const STEP_JOIN: u32 = 114;

macro_rules! reorders {
    ($($(#[$doc:meta])* $name:ident = $step:ident, shared $dtype:ident => $shared:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<const TILE: u32>;

        impl<const TILE: u32> Tile for $name<TILE> {
            const THREADS: u32 = REORDER_THREADS;
            const MIN_BLOCKS: u32 = 2;
            const COLUMNS: u32 = TILE;
            const STEP: u32 = $step;
            const ACCESS: u32 = 1;
            fn shared_bytes($dtype: Dtype) -> u32 {
                $shared
            }
        }
    )+};
}

reorders! {
    /// Positions that [`Split`] and [`Join`] read, computed from a permutation, for tiles of `TILE` values.
    ReorderPlaces = STEP_REORDER_PLACES, shared _dtype => 0;
    /// Sorts each source tile of values by target position.
    Split = STEP_SPLIT, shared dtype => TILE * dtype.bytes() as u32;
    /// Assembles a target tile from its runs in all tiles of [`Split`].
    Join = STEP_JOIN, shared dtype => TILE * dtype.bytes() as u32 + REORDER_THREADS / 32 * JOIN_RUNS * 4;
}
