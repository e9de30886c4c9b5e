//! Loss and gradient of logits, gradients of dense weights, and optimizer steps. The kernels are in
//! `kernels-gpu/families/optimizer`.

pub(crate) mod cpu;
mod cross_entropy;
mod optimizer;
mod weight_gradient;

pub(crate) use cross_entropy::{CrossEntropyLaunch, Rows};
pub(crate) use optimizer::{Arrays, Rule, UpdateLaunch};
pub(crate) use weight_gradient::{BiasGradientLaunch, WeightGradientLaunch};
