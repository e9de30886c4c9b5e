//! Sparsity known only while running: axes and micro-tiles, detection.

mod attention;
mod axes;
mod detect;
mod encoder;
mod matmul;
mod operand;
mod structured;
