//! Products of gathered rows with matrices: convolutions, experts, dynamic micro-tiles.

mod conv;
mod convolution;
mod convolution_plans;
mod dense_conv;
mod feed_forward;
mod few;
mod gradient;
mod gradient_tiles;
mod grouped;
pub(super) mod matmul;
mod moe;
mod moe_gradient;
mod moe_quantized;
mod moe_scaled;
mod operand;
mod rebuilds;
mod right;
mod right_plans;
mod streams;
mod tf32;
mod tiles;
mod turned;

pub use moe::{
    Operands as ExpertOperands, options as expert_options, reference as experts_by_loops,
};
pub use moe_gradient::reference as expert_gradients;
