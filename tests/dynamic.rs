//! Sparsity known only while running: axes and micro-tiles, detection.

mod axes;
mod choice;
mod detect;
mod matmul;
mod operand;
mod turned;
