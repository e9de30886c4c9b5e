//! Kernels `rotary`: queries and keys of each token are rotated by its position (RoPE), values are copied.

use super::ELEMENTWISE_THREADS;
use crate::abi::tiles;

tiles! {
    { THREADS: ELEMENTWISE_THREADS, COLUMNS: 1, ACCESS: 1 }
    /// Tile of `rotary`: each thread has as many pairs of elements of a head as a vector has elements.
    RotaryTile, STEP: 1;
}

/// Parameters of the `rotary` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RotaryParams {
    /// Heads of queries, of keys and of values, stored one after the other along the features.
    pub x: u64,
    /// Number of tokens of a sequence up to and including each token, a word each: its position plus one.
    pub lengths: u64,
    /// Rotation of each pair from one position to the next, in whole turns; f64.
    pub turns: u64,
    /// Output, without gaps: `[tokens, heads, dim]`.
    pub q: u64,
    /// Output like `q`, with the heads of keys.
    pub k: u64,
    /// Output like `k`, with the values.
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
