//! The kernels. `gpu` is the seam to the compiler, `ptx` one instruction per function, `elem` and
//! `walk` what the bodies are generic over, `spmm` and `block` the bodies, `entry` the table expanded.

mod block;
mod elem;
mod entry;
mod epilogue;
mod gpu;
mod mma;
mod ptx;
mod spmm;
mod tile;
mod walk;
