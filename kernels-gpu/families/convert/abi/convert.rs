//! The module `convert`: block formats made on the GPU from a dense matrix or from CSR. One params struct serves all
//! steps; a step is a tile of its own.

use crate::abi::{Divisor, SCAN_BYTES, SCAN_THREADS, tiles};

/// Rows and columns of a *piece*, the part of a block whose norm is one sum: blocks are cut into pieces, row by row.
pub const PIECE: (u32, u32) = (16, 32);
/// Bits of a rank that one round of [`Select`] settles.
pub const DIGIT_BITS: u32 = 11;
/// Words of a selection's counters: one for each digit, and the arrivals.
pub const SELECT_WORDS: u32 = (1 << DIGIT_BITS) + 1;
/// Blocks that one thread block of [`Select`] looks at.
pub const SELECT_PART: u32 = 4096;
/// Words of the present blocks that [`Mark`] collects in shared memory; wider grids go to memory directly.
pub const MARK_WORDS: u32 = 2048;
/// Block column of a slot that holds none.
pub const NO_BLOCK: u32 = u32::MAX;

/// Score a block 1 if it has an element other than zero, 0 otherwise, in place of the sum of squares.
pub const CONVERT_NON_ZERO: u32 = 1;
/// Keep what [`Select`] left at or above its pivot.
pub const CONVERT_TOP: u32 = 2;
/// The present blocks are known; only the places of block rows are to be found.
pub const CONVERT_MARKED: u32 = 4;

/// The first round of [`Select`]: nothing is settled.
pub const CONVERT_FIRST: u32 = 8;
/// Rows of blocks are whole 16-byte vectors ([`FillCsr`]).
pub const CONVERT_VECTORS: u32 = 16;

/// State of one selection: what is settled of the pivot's rank, and how many blocks are still to be taken.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Settled bits of the pivot.
    pub pivot: u64,
    /// Blocks to take among those whose rank agrees with the settled bits.
    pub left: u32,
    /// Zero.
    pub reserved: u32,
}

/// Parameters of every `convert` kernel. Blocks lie in a *grid* of `block_rows` x `block_columns`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ConvertParams {
    /// The dense matrix, row-major, or the values of CSR.
    pub source: u64,
    /// Bytes from one row of the dense matrix to the next.
    pub row_bytes: u64,
    /// Row offsets of CSR, m + 1.
    pub offsets: u64,
    /// Columns of CSR; readable 4 past their end.
    pub columns: u64,
    /// Score of each piece, accumulators: rows of pieces x pieces of a row.
    pub scores: u64,
    /// [`Selection`]s: one, or one for each block row.
    pub selections: u64,
    /// Counters of each selection, [`SELECT_WORDS`], all zero between launches.
    pub digits: u64,
    /// Bits of the blocks that [`Mark`] has met, like `present`; all zero between launches.
    pub marks: u64,
    /// Bit c % 32 of word c / 32 of each block row: the block of column c is kept.
    pub present: u64,
    /// Kept blocks in front of each word of `present`, within its block row.
    pub ranks: u64,
    /// Kept blocks of each block row.
    pub counts: u64,
    /// First group of each block row, and the number of groups.
    pub starts: u64,
    /// Block rows that are tallied, zero between launches.
    pub arrivals: u64,
    /// Thread blocks that are done with each block row, zero between launches.
    pub row_arrivals: u64,
    /// Out: block column of every slot.
    pub slot_columns: u64,
    /// Out: block row of every group.
    pub group_rows: u64,
    /// Out: values of every slot.
    pub values: u64,
    /// Blocks whose rank is above this are kept.
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
    /// Pieces of a block below each other, and beside each other.
    pub piece_rows: Divisor,
    /// See `piece_rows`.
    pub piece_columns: Divisor,
    /// Thread blocks of [`Score`] for each row of pieces.
    pub chunks: Divisor,
    /// Lanes that share a piece in [`Score`], as a power of two.
    pub lane_bits: u32,
    /// Copies of a row of a block, and of a block: vectors, or elements.
    pub row_copies: Divisor,
    /// See `row_copies`.
    pub block_copies: Divisor,
    /// Slots that the output has room for.
    pub capacity: u32,
    /// Blocks to take in each selection.
    pub top: u32,
    /// Blocks of each selection.
    pub candidates: Divisor,
    /// Thread blocks of [`Select`] for each selection.
    pub parts: Divisor,
    /// Low bits of a rank that hold the position.
    pub position_bits: u32,
    /// Low bits of an ordered score that its rank leaves out.
    pub dropped_bits: u32,
    /// Lowest bit of the digit that this round of [`Select`] settles.
    pub digit_shift: u32,
    /// Slots that a warp of [`FillCsr`] takes at once.
    pub chunk_slots: u32,
    /// `CONVERT_*`.
    pub flags: u32,
}

const _: () = assert!(size_of::<Divisor>() == 8);
const _: () = assert!(size_of::<Selection>() == 16);
const _: () = assert!(size_of::<ConvertParams>() == 280);

/// Copies that one thread has in flight.
pub const COPIES: u32 = 4;

tiles! {
    { THREADS: SCAN_THREADS, MIN_BLOCKS: 4, COLUMNS: SCAN_THREADS, BURST: COPIES }
    /// Dense: the score of each piece. `ALIGNED`: 16-byte loads, else element by element.
    Score<ALIGNED> = STEP_SCORE 1, ACCESS: if ALIGNED { 16 } else { 1 };
    /// One digit of the rank of the last block that is taken, highest digit first (radix selection).
    Select = STEP_SELECT 2, ACCESS: 1, SHARED_BYTES: SELECT_WORDS * 4 + 4;
    /// Scores to present blocks, blocks of each block row, and where each block row starts.
    Tally = STEP_TALLY 3, ACCESS: 1, SHARED_BYTES: SCAN_BYTES;
    /// Dense: block columns and block rows of the output.
    Index = STEP_INDEX 4, ACCESS: 1;
    /// Dense: the values of the kept blocks. `ALIGNED`: 16-byte copies, else element by element.
    FillDense<ALIGNED> = STEP_FILL_DENSE 5, ACCESS: if ALIGNED { 16 } else { 1 };
    /// CSR: which blocks have an entry, and what [`Tally`] does.
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
