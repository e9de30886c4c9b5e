//! Products of gathered rows with matrices: convolutions, experts, dynamic micro-tiles.

mod conv;
mod convolution;
mod convolution_plans;
mod dense_conv;
mod dynamic;
mod feed_forward;
mod grouped_gemm;
mod moe;
mod rebuilds;
mod streams;

pub use moe::gradient::reference as expert_gradients;
pub use moe::{
    Operands as ExpertOperands, options as expert_options, reference as experts_by_loops,
};
