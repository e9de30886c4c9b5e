//! What a decoder computes between its products: normalisation, rotary positions, gates, tokens.

pub mod abi;

#[cfg(any(module = "activation", feature = "cuda_std"))]
mod activation;
#[cfg(any(module = "gated", feature = "cuda_std"))]
mod gated;
#[cfg(any(module = "norm_gradient", feature = "cuda_std"))]
mod norm_gradient;
#[cfg(any(module = "rms_norm", feature = "cuda_std"))]
mod rms_norm;
#[cfg(any(module = "rotary", feature = "cuda_std"))]
mod rotary;
#[cfg(any(module = "tokens", feature = "cuda_std"))]
mod tokens;
