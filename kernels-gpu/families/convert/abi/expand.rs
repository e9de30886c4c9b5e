//! The module `expand`: a matrix of single entries made dense, zeros included, as often as its values change.

use crate::abi::{Divisor, Tile};

/// Bytes of the dense matrix that a lane stores at once; for each of them a byte says which of its elements are stored.
pub const PIECE_BYTES: u32 = 16;
/// Pieces that a warp takes together: a *group*, which lies within a row.
pub const GROUP_PIECES: u32 = 32;
/// Groups that a warp has under way.
pub const GROUPS_AT_ONCE: usize = 4;

/// Finds the stored elements of each piece, once for a pattern.
pub const EXPAND_MARKS: u32 = 1;
/// Writes the matrix.
pub const EXPAND_VALUES: u32 = 2;

/// One step, `EXPAND_*`.
#[derive(Clone, Copy, Debug)]
pub struct Expand<const STEP: u32>;

impl<const STEP: u32> Tile for Expand<STEP> {
    const THREADS: u32 = 128;
    const MIN_BLOCKS: u32 = 8;
    const COLUMNS: u32 = 1;
    /// Groups of a thread block.
    const ITEMS: u32 = if STEP == EXPAND_VALUES { 16 } else { 4 };
    const STEP: u32 = STEP;
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
    /// Bit i of each byte: element i of the piece is stored. `[rows, groups of a row, 32]`.
    pub marks: u64,
    /// First entry of each group, u32.
    pub starts: u64,
    /// The dense matrix; 16-byte aligned.
    pub out: u64,
    /// Bytes from one row of it to the next, a multiple of [`PIECE_BYTES`].
    pub row_bytes: u64,
    /// Groups of a row.
    pub row_groups: Divisor,
    /// Groups of all rows.
    pub groups: u32,
    /// Elements of a piece, for the marks.
    pub piece: u32,
}

const _: () = assert!(size_of::<ExpandParams>() == 72);
