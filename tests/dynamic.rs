//! Sparsity known only while running: axes and micro-tiles, detection.

mod attention;
mod axes;
mod channels;
mod choice;
mod convolution;
mod convolution_plans;
mod detect;
mod encoder;
mod encoder_order;
mod feed_forward;
mod few;
mod gradient;
mod gradient_tiles;
mod marked;
mod matmul;
mod moe;
mod moe_gradient;
mod operand;
mod replay;
mod right;
mod right_plans;
mod routing;
mod streams;
mod structured;
mod tf32;
mod tiles;
mod turned;

pub use moe::{
    Operands as ExpertOperands, options as expert_options, reference as experts_by_loops,
};
pub use moe_gradient::reference as expert_gradients;
