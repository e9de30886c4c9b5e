//! Kernels `tokens`: rows of a table by token number, and the number of the largest logit.

use super::ELEMENTWISE_THREADS;
use crate::abi::tiles;

tiles! {
    { THREADS: ELEMENTWISE_THREADS, COLUMNS: 1, ACCESS: 1 }
    /// Tile of the look-up of features: a vector for each thread.
    EmbedTile = STEP_EMBED 1;
    /// Tile of the largest logit: a thread block for each token.
    GreedyTile = STEP_GREEDY 2, SHARED_BYTES: ELEMENTWISE_THREADS / 32 * 8;
}

/// Parameters of the `tokens` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TokensParams {
    /// Table with a row for each token number; or logits.
    pub table: u64,
    /// Token numbers, a word each: input of the look-up, output of the largest logit.
    pub tokens: u64,
    /// Output of the look-up: features of the tokens. For the largest logit: lengths to increment, a word each, or 0.
    pub out: u64,
    /// Bytes from one stored row of the table to the next.
    pub table_row: u32,
    /// Bytes from one stored row of the output to the next.
    pub out_row: u32,
    /// Number of tokens.
    pub count: u32,
    /// Size of the vocabulary.
    pub vocabulary: u32,
    /// Features of a token.
    pub width: u32,
    /// `ELEMENTWISE_*`.
    pub flags: u32,
}

const _: () = assert!(size_of::<TokensParams>() == 48);
