//! The module `router`: which experts a token's logits choose, with what weights, and the gradient of the logits.

use crate::abi::tiles;

/// Threads of a thread block: a warp a token.
pub const ROUTER_THREADS: u32 = 128;
/// Experts at the most: a lane holds 32 logits.
pub const ROUTER_EXPERTS: u32 = 1024;
/// Choices of a token at the most: a lane each.
pub const ROUTER_CHOICES: u32 = 32;

/// Weights of a token add up to 1.
pub const ROUTER_NORMALIZED: u32 = 1 << 16;

tiles! {
    { THREADS: ROUTER_THREADS, MIN_BLOCKS: 4, COLUMNS: 1, ACCESS: 1 }
    /// The greatest logits.
    RouterChoose = STEP_ROUTER_CHOOSE 1;
    /// The gradient of the logits.
    RouterGradient = STEP_ROUTER_GRADIENT 2;
}

/// Parameters of the `router` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RouterParams {
    /// Logits, a row a token.
    pub logits: u64,
    /// Experts of a token, one word each, without gaps; written by the step that chooses.
    pub choices: u64,
    /// Their weights, f32; written by the step that chooses.
    pub weights: u64,
    /// Gradient of the weights.
    pub weight_gradient: u64,
    /// Out: gradient of the logits.
    pub logit_gradient: u64,
    /// Tokens.
    pub tokens: u32,
    /// Experts.
    pub experts: u32,
    /// Choices of a token.
    pub top: u32,
    /// Bytes from one row of logits to the next.
    pub logit_bytes: u32,
    /// Bytes from one row of their gradient to the next.
    pub gradient_bytes: u32,
    /// `ROUTER_*`.
    pub flags: u32,
}

const _: () = assert!(size_of::<RouterParams>() == 64);
