//! One instruction = one function, no policy. On the host (type-check only) `ptx!` is empty.
//! Inline asm is not `convergent` to LLVM: callers keep barriers, shuffles and mma out of divergent branches.
//! rustc's own jump threading knows nothing of either, and is turned off (`compile/device.rs`).
#![allow(
    unused_variables,
    unused_mut,
    unused_assignments,
    clippy::let_and_return
)]

pub mod barrier;
pub mod bits;
pub mod bulk;
pub mod cluster;
pub mod copy;
pub mod gather;
pub mod global;
pub mod grid;
pub mod matrix;
pub mod warp;
pub mod wgmma;
pub mod wgmma_sparse;
pub mod wgmma_thin;

#[cfg(target_arch = "nvptx64")]
macro_rules! ptx {
    ($($t:tt)*) => {
        // SAFETY: the wrapper states what the instruction needs; its operands are all named.
        unsafe { core::arch::asm!($($t)*) }
    };
}

#[cfg(not(target_arch = "nvptx64"))]
macro_rules! ptx {
    ($($t:tt)*) => {{}};
}

pub(crate) use ptx;
