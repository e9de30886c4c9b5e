//! Loss and gradient of logits, gradients of dense weights, steps of optimizers.

mod cross_entropy;
mod steps;
mod weight_gradient;
