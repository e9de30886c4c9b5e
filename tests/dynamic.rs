//! Sparsity known only while running: axes and micro-tiles, detection.

mod attention;
mod axes;
mod choice;
mod detect;
mod encoder;
mod feed_forward;
mod few;
mod matmul;
mod moe;
mod operand;
mod routing;
mod turned;
