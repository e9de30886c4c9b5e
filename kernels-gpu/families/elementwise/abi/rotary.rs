//! The module `rotary`: queries and keys of each token turned by its position (RoPE), values beside them.

use super::ELEMENTWISE_THREADS;
use crate::abi::tiles;

tiles! {
    { THREADS: ELEMENTWISE_THREADS, COLUMNS: 1, ACCESS: 1 }
    /// A thread for as many pairs of elements of a head as a vector has elements.
    RotaryTile, STEP: 1;
}

/// Parameters of the `rotary` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RotaryParams {
    /// Heads of queries, of keys, of values, one behind the other along the features.
    pub x: u64,
    /// Tokens of a sequence up to and with each token, a word each: its position is one less.
    pub lengths: u64,
    /// How far a pair turns from one position to the next, in whole turns; f64.
    pub turns: u64,
    /// Out, without gaps: `[tokens, heads, dim]`.
    pub q: u64,
    /// Out, likewise with the heads of keys.
    pub k: u64,
    /// Out, likewise.
    pub v: u64,
    /// Bytes from one stored row of x to the next.
    pub x_row: u32,
    /// Tokens.
    pub tokens: u32,
    /// Heads of queries.
    pub heads: u32,
    /// Heads of keys, and of values.
    pub key_heads: u32,
    /// Elements of a head.
    pub dim: u32,
    /// `ELEMENTWISE_*`.
    pub flags: u32,
}

const _: () = assert!(size_of::<RotaryParams>() == 72);
