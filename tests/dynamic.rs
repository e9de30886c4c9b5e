//! Sparsity known only while running: axes and micro-tiles, detection.

mod axes;
mod detect;
mod matmul;
mod moe;
mod moe_gradient;
mod operand;
mod routing;
