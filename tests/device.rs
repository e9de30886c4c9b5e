//! Kernels on a GPU, and products drawn at random for them and for the CPU. Apart from `main`: as one crate both would
//! take twice as long to compile on two cores.

mod families;
mod gpu;
mod random;
// The other program uses the rest.
#[allow(dead_code)]
mod support;
