//! The kernels. `gpu` is the seam to the compiler, `ptx` one instruction per function, `elem` and
//! `walk` what the bodies are generic over, `spmm` and `block` the bodies, `entry` the table expanded.

/// Repeats a block for `i` in `0..n`, n <= 8, as straight code: LLVM leaves loops around inline asm
/// rolled, and an array indexed at run time lives in local memory.
macro_rules! unroll {
    ($i:ident < $n:expr, $body:block) => {{
        const { assert!($n <= 8, "straight code for eight steps at the most") };
        unroll!(@ $i $n, $body, 0 1 2 3 4 5 6 7)
    }};
    (@ $i:ident $n:expr, $body:block, $($k:literal)*) => {{
        $({
            let $i: usize = $k;
            if $i < $n $body
        })*
    }};
}

mod block;
mod convert;
mod elem;
mod entry;
mod epilogue;
mod gpu;
mod levels;
mod mma;
mod nm;
mod prune;
mod ptx;
mod sampled;
mod slicing;
mod spmm;
mod staged;
mod tile;
mod walk;
mod wgmma;

use nm::narrow as nm_narrow;
use wgmma::narrow;
