//! The module `convert`: block formats from a dense matrix or from CSR, on the GPU. All steps share one parameter
//! struct; each step is a tile.

use crate::abi::{Divisor, SCAN_BYTES, SCAN_THREADS, tiles};

/// Rows and columns of a *piece*, the part of a block whose norm is one sum. Blocks are cut into pieces, row by row.
pub const PIECE: (u32, u32) = (16, 32);
/// Bits of a rank that one round of [`Select`] determines, and of a magnitude in [`TopEntries`](super::TopEntries).
pub const DIGIT_BITS: u32 = 11;
/// Words of a selection's counters: one per digit, and the arrivals.
pub const SELECT_WORDS: u32 = (1 << DIGIT_BITS) + 1;
/// Blocks per thread block of [`Select`].
pub const SELECT_PART: u32 = 4096;
/// Words of present bits that [`Mark`] collects in shared memory; wider grids use global memory directly.
pub const MARK_WORDS: u32 = 2048;
/// Block column of an empty slot.
pub const NO_BLOCK: u32 = u32::MAX;

/// Scores are 1 for a block with a nonzero and 0 otherwise, instead of the sum of squares.
pub const CONVERT_NON_ZERO: u32 = 1;
/// Blocks with a rank at or above the pivot of [`Select`] are kept.
pub const CONVERT_TOP: u32 = 2;
/// The present blocks are given; only the starts of block rows are computed.
pub const CONVERT_MARKED: u32 = 4;

/// The first round of [`Select`]: all bits of the pivot are undetermined.
pub const CONVERT_FIRST: u32 = 8;
/// Rows of blocks are whole 16-byte vectors ([`FillCsr`]).
pub const CONVERT_VECTORS: u32 = 16;

/// State of one selection: the determined bits of the pivot's rank, and the number of blocks still to select.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Determined bits of the pivot.
    pub pivot: u64,
    /// Blocks to select among those whose rank agrees with the determined bits.
    pub left: u32,
    /// Zero.
    pub reserved: u32,
}

/// Parameters of every `convert` kernel. Blocks form a *grid* of `block_rows` x `block_columns`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ConvertParams {
    /// The dense matrix, row-major, or the values of CSR.
    pub source: u64,
    /// Bytes from one row of the dense matrix to the next.
    pub row_bytes: u64,
    /// Row offsets of CSR, m + 1.
    pub offsets: u64,
    /// Columns of CSR; 4 elements past the end are readable.
    pub columns: u64,
    /// Score of each piece, accumulators, `[rows of pieces, pieces of a row]`.
    pub scores: u64,
    /// [`Selection`]s: one in total, or one per block row.
    pub selections: u64,
    /// Counters of each selection, [`SELECT_WORDS`], all zero between launches.
    pub digits: u64,
    /// Bits of the blocks that [`Mark`] has found, laid out like `present`; all zero between launches.
    pub marks: u64,
    /// Bit c % 32 of word c / 32 of each block row: the block of column c is kept.
    pub present: u64,
    /// Number of kept blocks before each word of `present`, within its block row.
    pub ranks: u64,
    /// Number of kept blocks of each block row.
    pub counts: u64,
    /// First group of each block row, and the number of groups.
    pub starts: u64,
    /// Number of tallied block rows, zero between launches.
    pub arrivals: u64,
    /// Number of finished thread blocks of each block row, zero between launches.
    pub row_arrivals: u64,
    /// Out: block column of every slot.
    pub slot_columns: u64,
    /// Out: block row of every group.
    pub group_rows: u64,
    /// Out: values of every slot.
    pub values: u64,
    /// Blocks whose ordered score is above this are kept.
    pub floor: u64,
    /// Rows of the matrix.
    pub m: u32,
    /// Columns of the matrix.
    pub k: u32,
    /// Rows of a block.
    pub block_m: Divisor,
    /// Columns of a block.
    pub block_k: Divisor,
    /// Slots of a group.
    pub group: Divisor,
    /// Rows of the grid.
    pub block_rows: u32,
    /// Columns of the grid.
    pub block_columns: Divisor,
    /// Words of `present` for each block row.
    pub words: u32,
    /// Rows of pieces in a block.
    pub piece_rows: Divisor,
    /// Columns of pieces in a block.
    pub piece_columns: Divisor,
    /// Thread blocks of [`Score`] for each row of pieces.
    pub chunks: Divisor,
    /// log2 of the lanes that share a piece in [`Score`].
    pub lane_bits: u32,
    /// Copies (vectors or elements) per row of a block.
    pub row_copies: Divisor,
    /// Copies (vectors or elements) per block.
    pub block_copies: Divisor,
    /// Capacity of the output in slots.
    pub capacity: u32,
    /// Blocks to select in each selection.
    pub top: u32,
    /// Candidate blocks of each selection.
    pub candidates: Divisor,
    /// Thread blocks of [`Select`] for each selection.
    pub parts: Divisor,
    /// Low bits of a rank that hold the position.
    pub position_bits: u32,
    /// Low bits of an ordered score that its rank omits.
    pub dropped_bits: u32,
    /// Lowest bit of the digit that this round of [`Select`] determines.
    pub digit_shift: u32,
    /// Slots that a warp of [`FillCsr`] processes at once.
    pub chunk_slots: u32,
    /// `CONVERT_*`.
    pub flags: u32,
}

const _: () = assert!(size_of::<Divisor>() == 8);
const _: () = assert!(size_of::<Selection>() == 16);
const _: () = assert!(size_of::<ConvertParams>() == 280);

/// Copies in flight per thread.
pub const COPIES: u32 = 4;

tiles! {
    { THREADS: SCAN_THREADS, MIN_BLOCKS: 4, COLUMNS: SCAN_THREADS, BURST: COPIES }
    /// Dense: the score of each piece. `ALIGNED`: 16-byte loads, else element by element.
    Score<ALIGNED> = STEP_SCORE 1, ACCESS: if ALIGNED { 16 } else { 1 };
    /// One digit of the rank of the last selected block, highest digit first (radix selection).
    Select = STEP_SELECT 2, ACCESS: 1, SHARED_BYTES: SELECT_WORDS * 4 + 4;
    /// Present blocks from scores, their number in each block row, and the starts of block rows.
    Tally = STEP_TALLY 3, ACCESS: 1, SHARED_BYTES: SCAN_BYTES;
    /// Dense: block columns and block rows of the output.
    Index = STEP_INDEX 4, ACCESS: 1;
    /// Dense: the values of the kept blocks. `ALIGNED`: 16-byte copies, else element by element.
    FillDense<ALIGNED> = STEP_FILL_DENSE 5, ACCESS: if ALIGNED { 16 } else { 1 };
    /// CSR: marks the blocks with an entry, then does the work of [`Tally`].
    Mark = STEP_MARK 6, ACCESS: 1, SHARED_BYTES: MARK_WORDS * 4;
    /// CSR: block columns, block rows and values of the output.
    FillCsr = STEP_FILL_CSR 7, ACCESS: 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_divide() {
        let edges = |n: u32| [n.wrapping_sub(1), n, n.wrapping_add(1)];
        for d in (1..2000).chain([1 << 16, 65_537, 1 << 31, u32::MAX - 1, u32::MAX]) {
            let divisor = Divisor::new(d);
            let multiples = [1, 2, 3, 1000, 65_535].map(|m: u32| d.wrapping_mul(m));
            let numbers = [0, u32::MAX, u32::MAX / 2].into_iter().chain(multiples);
            for n in numbers.flat_map(edges) {
                assert_eq!(divisor.of(n), (n / d, n % d), "{n} / {d}");
            }
        }
    }
}
