//! Loss and gradient of logits, gradients of dense weights, and optimizer steps. The kernels are in
//! `kernels-gpu/families/optimizer`.

pub mod cpu;
mod cross_entropy;
mod optimizer;
mod weight_gradient;

pub use cross_entropy::{CrossEntropyLaunch, Rows};
pub use optimizer::{Arrays, Rule, UpdateLaunch};
pub use weight_gradient::{BiasGradientLaunch, WeightGradientLaunch};
