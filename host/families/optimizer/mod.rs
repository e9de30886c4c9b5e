//! Loss and gradient of logits, and steps of optimisers. The kernels: `kernels-gpu/families/optimizer`.

pub(crate) mod cpu;
mod cross_entropy;
mod optimizer;

pub(crate) use cross_entropy::{CrossEntropyLaunch, Rows};
pub(crate) use optimizer::{Arrays, Rule, UpdateLaunch};
