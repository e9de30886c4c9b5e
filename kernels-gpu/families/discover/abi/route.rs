//! The module `route`: the choices of a router, sorted by expert on the device, and the sum of what a token's experts
//! made. The sort is stable, counts are integers, sums go in order: the same bits at every run.

use crate::abi::{Divisor, tiles};

/// Threads of a thread block.
pub const ROUTE_THREADS: u32 = 256;
/// Experts at the most.
pub const ROUTE_EXPERTS: u32 = 1024;
/// Choices of a thread block at the least; always a multiple of it.
pub const ROUTE_SHARE: u32 = 1024;
/// Thread blocks that count, at the most.
pub const ROUTE_BLOCKS: u32 = 256;
/// Slots of a panel at the most.
pub const ROUTE_PANEL: u32 = 128;
/// Neighbouring panels of an expert that are a group, at the most: they meet its columns together.
pub const ROUTE_TOGETHER: u32 = 12;
/// Words of a record of a panel: expert, first slot, slots, and of its group how many are in front and, from bit 16 on,
/// how many there are. The first record is how many panels there are.
pub const ROUTE_RECORD: u32 = 4;

/// Words of shared memory from one array over the experts to the next: those that are dropped are one more.
pub const ROUTE_STRIDE: u32 = ROUTE_EXPERTS + 4;

tiles! {
    { THREADS: ROUTE_THREADS, COLUMNS: 8, ITEMS: ROUTE_SHARE, ACCESS: 16 }
    /// Counts each thread block's choices.
    RouteCount = STEP_ROUTE_COUNT 1, MIN_BLOCKS: 4, SHARED_BYTES: ROUTE_STRIDE * 4;
    /// Gives each choice its slot, and lists the panels: three arrays of the thread block, one of each warp.
    RoutePlace = STEP_ROUTE_PLACE 2, MIN_BLOCKS: 4, SHARED_BYTES: 11 * ROUTE_STRIDE * 4;
    /// Adds what a token's experts made.
    RouteSum = STEP_ROUTE_SUM 3, MIN_BLOCKS: 6;
    /// The gradient of the weights of the choices.
    RouteGradient = STEP_ROUTE_GRADIENT 4, MIN_BLOCKS: 6;
    /// Multiplies hidden rows with their gates.
    RouteGate = STEP_ROUTE_GATE 5, MIN_BLOCKS: 6;
    /// The gradient of the weights and of the gates.
    RouteGateGradient = STEP_ROUTE_GATE_GRADIENT 6, MIN_BLOCKS: 4;
}

/// Parameters of the `route` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RouteParams {
    /// Choices, one word each: an expert, or a number in front of the first or past the last one for none. Of sums: 0 where
    /// every choice has a row.
    pub choices: u64,
    /// How many choices each thread block has of each expert, and of none; 0 where one thread block has all.
    pub counts: u64,
    /// Out: the choices sorted by expert, those of none last.
    pub order: u64,
    /// Out: first slot of each expert, of those of none, and the number of choices.
    pub offsets: u64,
    /// Out: how many panels there are, then each one: [`ROUTE_RECORD`] words.
    pub panels: u64,
    /// Rows to add, one of each choice; of the gradient: hidden rows by slot, which become weighted; of the gates: the
    /// hidden rows that they make.
    pub rows: u64,
    /// Out: sums, one row of each token; of the gradient: hidden gradients by slot, which become weighted.
    pub sums: u64,
    /// Weights of the choices.
    pub weights: u64,
    /// Out: gradient of the weights.
    pub gradient: u64,
    /// Sums by slot, those of the gates in front of what they are multiplied with; of the gradient: they become theirs,
    /// weighted.
    pub gates: u64,
    /// Experts and one.
    pub bins: Divisor,
    /// Vectors of 16 bytes of a row.
    pub vectors: Divisor,
    /// Choices.
    pub count: u32,
    /// Choices of a thread block, a multiple of [`ROUTE_SHARE`].
    pub share: u32,
    /// Thread blocks that count.
    pub blocks: u32,
    /// Choices of a token.
    pub top: u32,
    /// Tokens.
    pub tokens: u32,
    /// Bytes from one row to the next.
    pub row_bytes: u32,
    /// Bytes from one row of sums to the next.
    pub sum_bytes: u32,
    /// Bytes from one row of gates to the next.
    pub gate_bytes: u32,
    /// `FLAG_*`: which gate.
    pub flags: u32,
    /// Number of the first expert; those in front of it are others'.
    pub first: u32,
}

const _: () = assert!(size_of::<RouteParams>() == 136);
