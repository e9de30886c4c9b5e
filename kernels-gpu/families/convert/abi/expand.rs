//! The kernels `expand`: a sparse matrix as a dense one, zeros included, again after each change of its values.

use crate::abi::{Divisor, StripDeal, Tile};

/// Bytes of a row of the dense matrix that a warp stores together: a *group* of elements.
pub const GROUP_BYTES: u32 = 512;
/// Groups in flight per warp.
pub const GROUPS_AT_ONCE: usize = 4;

/// Computes the first entry of each group, and the positions of entries in their groups, once for a pattern.
pub const EXPAND_PLACES: u32 = 1;
/// Writes the dense matrix.
pub const EXPAND_VALUES: u32 = 2;
/// Lists the entries of row blocks, once for a pattern: see [`strip_word`](crate::abi::strip_word).
pub const EXPAND_STRIPS: u32 = 3;

/// One step, `EXPAND_*`.
#[derive(Clone, Copy, Debug)]
pub struct Expand<const STEP: u32>;

impl<const STEP: u32> Tile for Expand<STEP> {
    const THREADS: u32 = 128;
    const MIN_BLOCKS: u32 = 8;
    const COLUMNS: u32 = 1;
    /// Groups of a thread block; first entries or words of positions; row blocks.
    const ITEMS: u32 = match STEP {
        EXPAND_VALUES => 16,
        EXPAND_STRIPS => 4,
        _ => 128,
    };
    const STEP: u32 = STEP;
    const SHARED_BYTES: u32 = if STEP == EXPAND_VALUES { Self::ITEMS * GROUP_BYTES } else { 0 };
    const ACCESS: u32 = 1;
}

/// Parameters of the `expand` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExpandParams {
    /// Columns of the entries, u32, ascending within a row.
    pub columns: u64,
    /// First entry of each row and number of its entries, u32 each.
    pub spans: u64,
    /// Values of the entries.
    pub values: u64,
    /// Position of each entry in its group, u8; padded to whole words.
    pub places: u64,
    /// First entry of each group; after the groups of a row, the end of the row; u32.
    pub starts: u64,
    /// The dense matrix, 16-byte aligned. `EXPAND_STRIPS`: the lists.
    pub out: u64,
    /// Heads of the lists. If `room` is 0: the steps of the longest list, u32.
    pub heads: u64,
    /// Bytes from one row of the dense matrix to the next, a multiple of 16.
    pub row_bytes: u64,
    /// Groups per row.
    pub row_groups: Divisor,
    /// Groups in all rows.
    pub groups: u32,
    /// Number of rows; only for `EXPAND_PLACES` and `EXPAND_STRIPS`.
    pub rows: u32,
    /// Number of entries, unused ones included; this and `group` only for `EXPAND_PLACES`.
    pub entries: u32,
    /// Elements of a group, a power of two.
    pub group: u32,
    /// Rows of a row block; this and the next two only for `EXPAND_STRIPS`.
    pub strip: u32,
    /// Capacity of a list in steps; 0 queries the steps of the longest list.
    pub room: u32,
    /// Distribution of the stages of a row block over lists.
    pub deal: StripDeal,
}

const _: () = assert!(size_of::<ExpandParams>() == 112);
