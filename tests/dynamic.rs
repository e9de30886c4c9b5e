//! Sparsity known only while running: axes and micro-tiles, detection.

mod axes;
mod choice;
mod detect;
mod feed_forward;
mod few;
mod matmul;
mod moe;
mod operand;
mod routing;
mod turned;
