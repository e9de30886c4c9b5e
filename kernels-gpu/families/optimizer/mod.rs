//! What a training step ends in: the loss of logits with its gradient, and the update of parameters.

pub mod abi;

#[cfg(any(module = "cross_entropy", feature = "cuda_std"))]
mod cross_entropy;
#[cfg(any(module = "optimizer", feature = "cuda_std"))]
mod optimizer;
