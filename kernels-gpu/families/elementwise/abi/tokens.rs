//! The module `tokens`: rows of a table by the numbers of tokens, and the number of the largest logit.

use super::ELEMENTWISE_THREADS;
use crate::abi::tiles;

tiles! {
    { THREADS: ELEMENTWISE_THREADS, COLUMNS: 1, ACCESS: 1 }
    /// Features of tokens: a vector a thread.
    EmbedTile = STEP_EMBED 1;
    /// The largest logit of a token: a thread block each.
    GreedyTile = STEP_GREEDY 2, SHARED_BYTES: ELEMENTWISE_THREADS / 32 * 8;
}

/// Parameters of the `tokens` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TokensParams {
    /// A row for each number of a token; logits.
    pub table: u64,
    /// The numbers, a word each: in, of the step that finds them out.
    pub tokens: u64,
    /// Out: features of the tokens. Of the other step, or 0: lengths that grow by one, a word each.
    pub out: u64,
    /// Bytes from one stored row of the table to the next.
    pub table_row: u32,
    /// The same of the output.
    pub out_row: u32,
    /// How many tokens.
    pub count: u32,
    /// How many numbers there are.
    pub vocabulary: u32,
    /// Features of a token.
    pub width: u32,
    /// `ELEMENTWISE_*`.
    pub flags: u32,
}

const _: () = assert!(size_of::<TokensParams>() == 48);
