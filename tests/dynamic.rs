//! Sparsity known only while running: axes and micro-tiles, detection.

mod axes;
mod detect;
mod feed_forward;
mod few;
mod gradient;
mod marked;
mod matmul;
mod operand;
