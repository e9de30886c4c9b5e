//! Direct convolutions over planes, a channel each: depthwise, and of few input channels.

pub mod abi;

#[cfg(any(module = "conv2d", feature = "cuda_std"))]
mod conv2d;
