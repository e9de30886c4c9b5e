//! Loss and gradient of logits, gradients of dense weights, steps of optimisers.

mod cross_entropy;
mod steps;
mod weight_gradient;
