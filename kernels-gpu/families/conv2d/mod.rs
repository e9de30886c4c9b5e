//! Direct convolutions over planes, one for each channel: depthwise, and over few input channels.

pub mod abi;

#[cfg(any(module = "conv2d", feature = "cuda_std"))]
mod conv2d;
