//! The kernels `router`: selects experts and their weights from a token's logits, and computes the gradient of the
//! logits.

use crate::abi::tiles;

/// Threads in a thread block: one warp per token.
pub const ROUTER_THREADS: u32 = 128;
/// Max experts: a lane has 32 logits.
pub const ROUTER_EXPERTS: u32 = 1024;
/// Max choices per token: one per lane.
pub const ROUTER_CHOICES: u32 = 32;

/// The weights of a token add up to 1.
pub const ROUTER_NORMALIZED: u32 = 1 << 16;

tiles! {
    { THREADS: ROUTER_THREADS, MIN_BLOCKS: 4, COLUMNS: 1, ACCESS: 1 }
    /// Selects the largest logits.
    RouterChoose = STEP_ROUTER_CHOOSE 1;
    /// Gradient of the logits.
    RouterGradient = STEP_ROUTER_GRADIENT 2;
}

/// Parameters of the `router` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RouterParams {
    /// Logits, one row per token.
    pub logits: u64,
    /// Experts of each token, one word each, contiguous; written by [`RouterChoose`].
    pub choices: u64,
    /// Weights of the choices, f32; written by [`RouterChoose`].
    pub weights: u64,
    /// Gradient of the weights.
    pub weight_gradient: u64,
    /// Out: gradient of the logits.
    pub logit_gradient: u64,
    /// Number of tokens.
    pub tokens: u32,
    /// Number of experts.
    pub experts: u32,
    /// Choices per token.
    pub top: u32,
    /// Bytes from one row of logits to the next.
    pub logit_bytes: u32,
    /// Bytes from one row of the logits' gradient to the next.
    pub gradient_bytes: u32,
    /// `ROUTER_*`.
    pub flags: u32,
}

const _: () = assert!(size_of::<RouterParams>() == 64);
