//! End of a training step: the loss of logits with its gradient, gradients of dense weights, and the update of
//! parameters.

pub mod abi;

#[cfg(any(module = "training", feature = "cuda_std"))]
mod cross_entropy;
#[cfg(any(module = "training", feature = "cuda_std"))]
mod optimizer;
#[cfg(any(module = "training", feature = "cuda_std"))]
mod weight_gradient;
