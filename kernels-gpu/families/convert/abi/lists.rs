//! The module `lists`: the work list of module `spmm` out of the spans of A's rows, in three steps.

use crate::abi::{Divisor, SCAN_BYTES, SCAN_THREADS, Tile};

/// Rows that one thread block looks at: eight a thread. A bundle does not reach over them.
pub const LIST_TILE: u32 = 8 * SCAN_THREADS;
/// What a row in a bundle costs beside its entries, in entries: its first burst is seldom full, and it has a result to
/// store.
pub const ROW_ENTRIES: u32 = 6;
/// Kinds of work, in the order of the list: pieces of cut rows; whole rows by length class, the longest first; bundles.
/// Behind them the number of cut rows.
pub const LIST_KINDS: u32 = 35;
/// The kind of the pieces.
pub const LIST_PIECES: u32 = 0;
/// The kind of whole rows of class 0; each class above comes one earlier.
pub const LIST_ROWS: u32 = 32;
/// The kind of the bundles.
pub const LIST_BUNDLES: u32 = 33;
/// Not in the list: cut rows.
pub const LIST_CUT: u32 = 34;

/// How much of each kind a tile has.
pub const LIST_SURVEY: u32 = 1;
/// Where each tile's share of a kind begins.
pub const LIST_PLACE: u32 = 2;
/// Items and slots.
pub const LIST_FILL: u32 = 3;

/// Entries of a piece of a row that is longer than `limit`: equal pieces, and a multiple of eight keeps those of
/// aligned walks aligned. A row no longer than this stays whole.
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

/// Length class of a row: 0, then powers of two.
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

/// Shared memory in front of what [`LIST_FILL`] collects: sums of a scan, the last key of each thread and the first, a
/// word for each kind, the classes there are.
pub const LIST_ROOM: u32 = SCAN_BYTES + 8 * SCAN_THREADS + 4 * (LIST_KINDS + 1);

/// Parameters of the `lists` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ListParams {
    /// First entry and number of entries of each row.
    pub spans: u64,
    /// How much of each kind each tile has, kind by kind; then what is in front of it.
    pub counts: u64,
    /// How much there is of each kind.
    pub totals: u64,
    /// Out: [`crate::abi::Item`].
    pub items: u64,
    /// Out: [`crate::abi::Slot`].
    pub slots: u64,
    /// Rows.
    pub rows: u32,
    /// Tiles of [`LIST_TILE`] rows.
    pub tiles: u32,
    /// Rows that are longer are cut.
    pub limit: u32,
    /// Rows that weigh no more, [`ROW_ENTRIES`] included, are bundled; 0: none.
    pub weight: u32,
    /// Division by the weight.
    pub bundles: Divisor,
}

const _: () = assert!(size_of::<ListParams>() == 64);
