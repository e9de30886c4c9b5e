//! The module `expand`: a matrix of single entries made dense, zeros included, as often as its values change.

use crate::abi::{Divisor, StripDeal, Tile};

/// Bytes of a row of the dense matrix that a warp writes together: a *group* of elements.
pub const GROUP_BYTES: u32 = 512;
/// Groups that a warp has under way.
pub const GROUPS_AT_ONCE: usize = 4;

/// Finds the groups' entries, and the places of entries in their groups, once for a pattern.
pub const EXPAND_PLACES: u32 = 1;
/// Writes the matrix.
pub const EXPAND_VALUES: u32 = 2;
/// Lists the entries of strips of rows, once for a pattern: see [`strip_word`](crate::abi::strip_word).
pub const EXPAND_STRIPS: u32 = 3;

/// One step, `EXPAND_*`.
#[derive(Clone, Copy, Debug)]
pub struct Expand<const STEP: u32>;

impl<const STEP: u32> Tile for Expand<STEP> {
    const THREADS: u32 = 128;
    const MIN_BLOCKS: u32 = 8;
    const COLUMNS: u32 = 1;
    /// Groups of a thread block; first entries, or words of places; strips.
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
    /// First entry of each row and their number, u32 each.
    pub spans: u64,
    /// Values of the entries.
    pub values: u64,
    /// For each entry its place in its group, u8; padded to whole words.
    pub places: u64,
    /// First entry of each group and, behind those of a row, its end, u32.
    pub starts: u64,
    /// The dense matrix; 16-byte aligned. Of strips their lists.
    pub out: u64,
    /// Heads of the lists; without room for them, the steps of the longest, u32.
    pub heads: u64,
    /// Bytes from one row of the dense matrix to the next, a multiple of 16.
    pub row_bytes: u64,
    /// Groups of a row.
    pub row_groups: Divisor,
    /// Groups of all rows.
    pub groups: u32,
    /// Rows; for places and strips alone.
    pub rows: u32,
    /// Entries, unused ones included; for the places alone, as what follows.
    pub entries: u32,
    /// Elements of a group, a power of two.
    pub group: u32,
    /// Rows of a strip; for strips alone, as what follows.
    pub strip: u32,
    /// Steps that a list has room for; 0 asks how many it takes.
    pub room: u32,
    /// How the stages of strips are dealt.
    pub deal: StripDeal,
}

const _: () = assert!(size_of::<ExpandParams>() == 112);
