//! Kernels on a GPU, and random products for them and for the CPU. Separate from `main`: as one crate both would take
//! twice as long to compile on two cores.

mod families;
mod gpu;
mod random;
// The rest of the module is used by the other test program.
#[allow(dead_code)]
mod support;
