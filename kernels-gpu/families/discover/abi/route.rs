//! The module `route`: sorts the choices of a router by expert on the device, and sums the results of a token's
//! experts. The sort is stable, counts are integers, and sums have a fixed order: results are bitwise reproducible.

use crate::abi::{Divisor, tiles};

/// Threads in a thread block.
pub const ROUTE_THREADS: u32 = 256;
/// Max experts.
pub const ROUTE_EXPERTS: u32 = 1024;
/// Min choices per thread block, which is a multiple of this.
pub const ROUTE_SHARE: u32 = 1024;
/// Max thread blocks that count.
pub const ROUTE_BLOCKS: u32 = 256;
/// Max slots per panel (row block of an expert).
pub const ROUTE_PANEL: u32 = 128;
/// Max neighboring panels of an expert that form a group: they process its columns together.
pub const ROUTE_TOGETHER: u32 = 12;
/// Words of a panel's record: expert, first slot, number of slots, and a word with the panel's index in its group and,
/// from bit 16 on, the number of panels in the group. The first record has the number of panels.
pub const ROUTE_RECORD: u32 = 4;

/// Words from one per-expert array in shared memory to the next, with one more bin for dropped choices.
pub const ROUTE_STRIDE: u32 = ROUTE_EXPERTS + 4;

tiles! {
    { THREADS: ROUTE_THREADS, COLUMNS: 8, ITEMS: ROUTE_SHARE, ACCESS: 16 }
    /// Counts each thread block's choices.
    RouteCount = STEP_ROUTE_COUNT 1, MIN_BLOCKS: 4, SHARED_BYTES: ROUTE_STRIDE * 4;
    /// Gives each choice its slot and lists the panels. Shared memory: three arrays per thread block and one per warp.
    RoutePlace = STEP_ROUTE_PLACE 2, MIN_BLOCKS: 4, SHARED_BYTES: 11 * ROUTE_STRIDE * 4;
    /// Sums the results of a token's experts.
    RouteSum = STEP_ROUTE_SUM 3, MIN_BLOCKS: 6;
    /// Gradient of the weights of the choices.
    RouteGradient = STEP_ROUTE_GRADIENT 4, MIN_BLOCKS: 6;
    /// Multiplies hidden rows by their gates.
    RouteGate = STEP_ROUTE_GATE 5, MIN_BLOCKS: 6;
    /// Gradient of the weights and of the gates.
    RouteGateGradient = STEP_ROUTE_GATE_GRADIENT 6, MIN_BLOCKS: 4;
}

/// Parameters of the `route` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RouteParams {
    /// Choices, one word each: an expert. Numbers before the first expert or past the last one drop the choice.
    /// [`RouteSum`]: 0 if every choice has a row.
    pub choices: u64,
    /// For each thread block its number of choices of each expert, and of dropped ones; 0 if one thread block has all
    /// choices.
    pub counts: u64,
    /// Out: the choices sorted by expert, dropped ones last.
    pub order: u64,
    /// Out: first slot of each expert and of the dropped choices, and the number of choices.
    pub offsets: u64,
    /// Out: number of panels, then the records of the panels, [`ROUTE_RECORD`] words each.
    pub panels: u64,
    /// [`RouteSum`]: rows to add, one per choice. Gradients: hidden rows by slot, which become weighted. [`RouteGate`]:
    /// the resulting hidden rows.
    pub rows: u64,
    /// Out: sums, one row per token. Gradients: hidden gradients by slot, which become weighted.
    pub sums: u64,
    /// Weights of the choices.
    pub weights: u64,
    /// Out: gradient of the weights.
    pub gradient: u64,
    /// Products by slot: inputs of the gates, then their multiplicands. The gradient replaces them by their weighted
    /// gradients.
    pub gates: u64,
    /// Number of experts plus one.
    pub bins: Divisor,
    /// 16-byte vectors per row.
    pub vectors: Divisor,
    /// Number of choices.
    pub count: u32,
    /// Choices per thread block, a multiple of [`ROUTE_SHARE`].
    pub share: u32,
    /// Number of thread blocks that count.
    pub blocks: u32,
    /// Choices per token.
    pub top: u32,
    /// Number of tokens.
    pub tokens: u32,
    /// Bytes from one row to the next.
    pub row_bytes: u32,
    /// Bytes from one row of sums to the next.
    pub sum_bytes: u32,
    /// Bytes from one row of gates to the next.
    pub gate_bytes: u32,
    /// `FLAG_*`: the activation of the gates.
    pub flags: u32,
    /// Number of the first expert; preceding experts belong to other GPUs.
    pub first: u32,
}

const _: () = assert!(size_of::<RouteParams>() == 136);
