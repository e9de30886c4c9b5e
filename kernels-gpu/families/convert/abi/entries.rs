//! The module `entries`: formats of single entries brought into another order or format on the GPU, and checked. One
//! params struct serves all steps; a step is a tile of its own.

use crate::abi::{Divisor, Dtype, SCAN_BYTES, SCAN_THREADS, Tile, tiles};

/// Entries (rows) that one thread block of a step looks at: eight a thread.
pub const ENTRY_TILE: u32 = 8 * SCAN_THREADS;
/// Keys that one thread block of a sort ranks: sixteen a thread.
pub const SORT_TILE: u32 = 16 * SCAN_THREADS;
/// Most bits of a key that one pass of a sort orders by.
pub const SORT_BITS: u32 = 9;
/// Vectors of a row that one lane of [`Compact`] holds.
pub const SEGMENT_VECTORS: u32 = 4;
/// Warps of a thread block of [`Compact`], each of which takes up to [`WARP_SEGMENTS`] segments.
pub const SEGMENTS: u32 = SCAN_THREADS / 32;
/// Segments that a warp of [`Compact`] takes of large matrices: what a thread block waits for is paid for more bytes.
pub const WARP_SEGMENTS: u32 = 4;
/// Bits of a magnitude that one round of [`TopEntries`] settles.
pub const TOP_BITS: u32 = 11;
/// Shared memory of a thread block that looks back: sum and found of each warp.
pub const TURNS_BYTES: u32 = SCAN_THREADS / 32 * 8;
/// Shared memory of a warp of [`Compact`]: a segment of 512 values of 4 bytes with their columns, 1024 of 2, 256 of 8.
pub const KEPT_BYTES: u32 = 4096;
/// Bytes in front of the words of [`EntriesParams::turns`]: arrivals and the number of the run.
pub const TURNS_HEAD: u64 = 16;

/// Values are the positions, counted from 0: the first pass of a sort.
pub const SORT_FIRST: u32 = 1;
/// The sort carries `second` beside the values.
pub const SORT_SECOND: u32 = 2;
/// Write the ordered keys.
pub const SORT_KEYS: u32 = 4;
/// Write `second` and the value side by side, as [`crate::abi::Permuted`] reads them.
pub const SORT_PAIRS: u32 = 8;
/// Keys are the length classes of rows, the longest first: class 0, then powers of two.
pub const SORT_CLASSES: u32 = 16;
/// Keys are the lengths of rows, the longest first.
pub const SORT_LENGTHS: u32 = 32;
/// [`Compact`] keeps what [`TopEntries`] chose.
pub const COMPACT_TOP: u32 = 64;
/// [`FillSlots`] writes ELL: every row has the same number of slots.
pub const FILL_ELL: u32 = 128;

/// What [`CheckEntries`] found: the first place of each kind, `u32::MAX` for none.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryReport {
    /// First offset that is below the one before it, not 0 at the start, or not the number of entries at the end.
    pub offset: u32,
    /// First entry whose column is outside, or not above the one before it in its row.
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
    /// Keys of a sort, or ordered rows.
    pub keys: u64,
    /// Values of a sort, or a permutation.
    pub first: u64,
    /// What is carried beside them.
    pub second: u64,
    /// Out: ordered keys.
    pub out_keys: u64,
    /// Out: values in the order of the keys, or pairs.
    pub out_first: u64,
    /// Out: what was carried, in the order of the keys.
    pub out_second: u64,
    /// Keys of each digit in each tile, digit by digit.
    pub counts: u64,
    /// Keys of each digit.
    pub totals: u64,
    /// Row of every entry or group.
    pub rows: u64,
    /// First entry or group of every row, and their number.
    pub starts: u64,
    /// Out: columns.
    pub out_columns: u64,
    /// Out: values.
    pub out_values: u64,
    /// Arrivals, number of the run, and running sums of the thread blocks of a step that adds up in one pass. Zero
    /// before the first run.
    pub turns: u64,
    /// What [`TopEntries`] chose: for each row the least magnitude, and the column where its entries end.
    pub pivots: u64,
    /// [`EntryReport`].
    pub report: u64,
    /// Magnitudes above this are kept.
    pub floor: u64,
    /// Rows of the matrix.
    pub m: u32,
    /// Columns of the matrix.
    pub k: u32,
    /// Entries, slots or keys; of [`Compact`], segments that a warp takes.
    pub count: u32,
    /// Entries or slots that the output has room for.
    pub capacity: u32,
    /// Thread blocks of the step.
    pub tiles: u32,
    /// Lowest bit of the digit of this pass.
    pub shift: u32,
    /// Bits of the digit of this pass.
    pub bits: u32,
    /// Entries to take of each row.
    pub top: u32,
    /// Slots of a group, or of a row of ELL.
    pub group: Divisor,
    /// Segments of a row of the dense matrix.
    pub segments: Divisor,
    /// Columns of a segment.
    pub segment_columns: u32,
    /// `SORT_*`, `COMPACT_*`, `FILL_*`.
    pub flags: u32,
}

// Positions are u32, and so are those past the end of the last tile: they would wrap if 2^32 were no multiple of it.
const _: () = assert!(
    (1u64 << 32).is_multiple_of(ENTRY_TILE as u64) && (1u64 << 32).is_multiple_of(SORT_TILE as u64)
);
const _: () = assert!(size_of::<EntryReport>() == 8);
const _: () = assert!(size_of::<EntriesParams>() == 216);

tiles! {
    { THREADS: SCAN_THREADS, COLUMNS: SCAN_THREADS }
    /// Offsets to the row of every entry (group).
    EntryRows = STEP_ENTRY_ROWS 101, MIN_BLOCKS: 6, ACCESS: 1, SHARED_BYTES: SCAN_BYTES + 4 * ENTRY_TILE;
    /// Ordered rows of entries to offsets.
    EntryOffsets = STEP_ENTRY_OFFSETS 102, MIN_BLOCKS: 6, ACCESS: 1;
    /// Columns and offsets against the rules of CSR.
    CheckEntries = STEP_CHECK_ENTRIES 103, MIN_BLOCKS: 6, ACCESS: 1, SHARED_BYTES: SCAN_BYTES + 4 * ENTRY_TILE;
    /// How many keys of a tile have each digit.
    SortCount = STEP_SORT_COUNT 104, MIN_BLOCKS: 6, ACCESS: 1, SHARED_BYTES: 4 << SORT_BITS;
    /// Running sums of each digit over the tiles.
    SortPlace = STEP_SORT_PLACE 105, MIN_BLOCKS: 6, ACCESS: 1, SHARED_BYTES: SCAN_BYTES;
    /// Keys and what they carry to their places, equal ones in the order they had.
    SortMove = STEP_SORT_MOVE 106, MIN_BLOCKS: 3, ACCESS: 1,
        SHARED_BYTES: SCAN_BYTES + ((SCAN_THREADS / 32 + 1) << (SORT_BITS + 2)) + 12 * SORT_TILE;
    /// First group of every row.
    GroupStarts = STEP_GROUP_STARTS 107, MIN_BLOCKS: 6, ACCESS: 1, SHARED_BYTES: TURNS_BYTES;
    /// CSR to the slots of GroupCOO or ELL.
    FillSlots = STEP_FILL_SLOTS 108, MIN_BLOCKS: 6, ACCESS: 1;
    /// Values through a permutation.
    PermuteValues = STEP_PERMUTE_VALUES 109, MIN_BLOCKS: 6, ACCESS: 1;
    /// The least magnitude that is among the largest of its row, for each row.
    TopEntries = STEP_TOP_ENTRIES 110, MIN_BLOCKS: 4, ACCESS: 1, SHARED_BYTES: SCAN_BYTES + (4 << TOP_BITS) + 16;
    /// Dense to CSR. `ALIGNED`: 16-byte loads, else element by element.
    Compact<ALIGNED> = STEP_COMPACT 111, MIN_BLOCKS: 3, ACCESS: if ALIGNED { 16 } else { 1 },
        SHARED_BYTES: TURNS_BYTES + SEGMENTS * KEPT_BYTES;
}

/// Threads of a thread block that brings values in order by tiles.
pub const REORDER_THREADS: u32 = 512;
/// Runs that a warp of [`Join`] looks at together.
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
    /// What [`Split`] and [`Join`] read, from an order of `TILE` by `TILE` values.
    ReorderPlaces = STEP_REORDER_PLACES, shared _dtype => 0;
    /// Each tile of values by itself in the order in which they are wanted.
    Split = STEP_SPLIT, shared dtype => TILE * dtype.bytes() as u32;
    /// A tile of the wanted order, from the runs that every tile of [`Split`] has for it.
    Join = STEP_JOIN, shared dtype => TILE * dtype.bytes() as u32 + REORDER_THREADS / 32 * JOIN_RUNS * 4;
}
