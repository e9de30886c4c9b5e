//! The kernels `lists`: the work list of module `spmm` from the spans of A's rows, in three steps.

use crate::abi::{Divisor, SCAN_BYTES, SCAN_THREADS, Tile};

/// Rows per thread block, eight per thread. A bundle does not cross tiles.
pub const LIST_TILE: u32 = 8 * SCAN_THREADS;
/// Cost of a row in a bundle in addition to its entries, in entries: its first burst is seldom full, and its result is
/// stored.
pub const ROW_ENTRIES: u32 = 6;
/// Kinds of work in list order: pieces of cut rows; whole rows by length class, the longest first; bundles. The last
/// kind counts the cut rows.
pub const LIST_KINDS: u32 = 35;
/// The kind of the pieces.
pub const LIST_PIECES: u32 = 0;
/// The kind of whole rows of class 0; each higher class is one less.
pub const LIST_ROWS: u32 = 32;
/// The kind of the bundles.
pub const LIST_BUNDLES: u32 = 33;
/// The number of cut rows, which is not in the list.
pub const LIST_CUT: u32 = 34;

/// Counts the work of each kind in each tile.
pub const LIST_SURVEY: u32 = 1;
/// Computes where the work of each tile begins in each kind.
pub const LIST_PLACE: u32 = 2;
/// Writes items and slots.
pub const LIST_FILL: u32 = 3;

/// Entries of a piece of a row that is longer than `limit`. Pieces are equal, and a multiple of eight keeps aligned
/// walks aligned. A row of at most `limit` entries stays whole.
#[inline(always)]
pub const fn piece_of(len: u32, limit: u32) -> u32 {
    let limit = if limit == 0 { 1 } else { limit };
    if len <= limit {
        return len;
    }
    let pieces = len.div_ceil(limit);
    let piece = len.div_ceil(if pieces == 0 { 1 } else { pieces });
    let rounded = piece.wrapping_add(7) & !7;
    if rounded < piece { u32::MAX } else { rounded }
}

/// Length class of a row: class 0 for length 0, then powers of two.
#[inline(always)]
pub const fn length_class(len: u32) -> u32 {
    let class = 32 - len.leading_zeros();
    if class < 31 { class } else { 31 }
}

/// One step, `LIST_*`.
#[derive(Clone, Copy, Debug)]
pub struct Lists<const STEP: u32>;

impl<const STEP: u32> Tile for Lists<STEP> {
    const THREADS: u32 = SCAN_THREADS;
    const MIN_BLOCKS: u32 = 4;
    const COLUMNS: u32 = 1;
    const ITEMS: u32 = LIST_TILE;
    const STEP: u32 = STEP;
    const SHARED_BYTES: u32 = match STEP {
        LIST_PLACE => SCAN_BYTES,
        _ => LIST_ROOM + if STEP == LIST_FILL { LIST_TILE * 16 } else { 0 },
    };
    const ACCESS: u32 = 1;
}

/// Shared memory before the data of [`LIST_FILL`]: sums of a scan, the last and first key of each thread, a word for
/// each kind, the set of classes.
pub const LIST_ROOM: u32 = SCAN_BYTES + 8 * SCAN_THREADS + 4 * (LIST_KINDS + 1);

/// Parameters of the `lists` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ListParams {
    /// First entry and number of entries of each row.
    pub spans: u64,
    /// Work of each kind in each tile, kind by kind; later the work before the tile.
    pub counts: u64,
    /// Total work of each kind.
    pub totals: u64,
    /// Out: [`crate::abi::Item`].
    pub items: u64,
    /// Out: [`crate::abi::Slot`].
    pub slots: u64,
    /// Number of rows.
    pub rows: u32,
    /// Number of tiles of [`LIST_TILE`] rows.
    pub tiles: u32,
    /// Longer rows are cut.
    pub limit: u32,
    /// Rows of at most this weight, [`ROW_ENTRIES`] included, are bundled; 0 disables bundles.
    pub weight: u32,
    /// Division by the weight.
    pub bundles: Divisor,
}

const _: () = assert!(size_of::<ListParams>() == 64);
