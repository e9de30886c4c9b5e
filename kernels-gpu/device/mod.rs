//! The kernels. `gpu` is the seam to the compiler, `ptx` one instruction per function, `elem` and
//! `walk` what the bodies are generic over, `spmm` and `block` the bodies, `entry` the table expanded.

/// Repeats a block for `i` in `0..n`, n <= 8, as straight code: LLVM leaves loops around inline asm
/// rolled, and an array indexed at run time lives in local memory. A literal `n`, or `most 4`, saves the compiler the copies
/// that would not run: nested loops have hundreds.
macro_rules! unroll {
    ($i:ident < 2, $body:block) => { unroll!(@ $i 2, $body, 0 1) };
    ($i:ident < 3, $body:block) => { unroll!(@ $i 3, $body, 0 1 2) };
    ($i:ident < 4, $body:block) => { unroll!(@ $i 4, $body, 0 1 2 3) };
    ($i:ident < $n:expr, most 4, $body:block) => {{
        const { assert!($n <= 4, "straight code for four steps at the most") };
        unroll!(@ $i $n, $body, 0 1 2 3)
    }};
    ($i:ident < $n:expr, $body:block) => {{
        const { assert!($n < 9, "straight code for eight steps at the most") };
        unroll!(@ $i $n, $body, 0 1 2 3 4 5 6 7)
    }};
    (@ $i:ident $n:expr, $body:block, $($k:literal)*) => {{
        // What the last copy passes on is read by nobody.
        $(#[allow(unused_assignments)] {
            let $i: usize = $k;
            if $i < $n $body
        })*
    }};
}

// A family is a compilation of its own: it should not check the bodies of all the others.
#[cfg(any(family = "attention", not(target_arch = "nvptx64")))]
mod attention;
#[cfg(any(family = "batched", not(target_arch = "nvptx64")))]
mod batched;
#[cfg(any(family = "bitmap", not(target_arch = "nvptx64")))]
mod bitmap;
#[cfg(any(family = "block", not(target_arch = "nvptx64")))]
mod block;
#[cfg(any(family = "channels", not(target_arch = "nvptx64")))]
mod channels;
#[cfg(any(
    family = "conv",
    family = "conv_grad",
    family = "conv_pairs",
    family = "conv_simt",
    not(target_arch = "nvptx64")
))]
mod conv;
#[cfg(any(family = "conv_grad", not(target_arch = "nvptx64")))]
mod conv_grad;
#[cfg(any(family = "conv_pairs", not(target_arch = "nvptx64")))]
mod conv_pairs;
#[cfg(any(family = "conv_simt", not(target_arch = "nvptx64")))]
mod conv_simt;
#[cfg(any(family = "conv_steps", not(target_arch = "nvptx64")))]
mod conv_steps;
#[cfg(any(
    family = "convert",
    family = "entries",
    family = "lists",
    family = "join",
    not(target_arch = "nvptx64")
))]
mod convert;
#[cfg(any(family = "dense", family = "dense_live", not(target_arch = "nvptx64")))]
mod dense;
#[cfg(any(family = "detect", not(target_arch = "nvptx64")))]
mod detect;
#[cfg(any(family = "einsum", not(target_arch = "nvptx64")))]
mod einsum;
mod elem;
#[cfg(any(family = "entries", not(target_arch = "nvptx64")))]
mod entries;
mod entry;
mod epilogue;
mod gpu;
#[cfg(any(family = "grouped", not(target_arch = "nvptx64")))]
mod grouped;
#[cfg(any(family = "grouped_grad", not(target_arch = "nvptx64")))]
mod grouped_grad;
#[cfg(any(family = "join", not(target_arch = "nvptx64")))]
mod join;
mod kernel;
#[cfg(any(family = "levels", not(target_arch = "nvptx64")))]
mod levels;
#[cfg(any(family = "lists", not(target_arch = "nvptx64")))]
mod lists;
#[cfg(any(family = "live_rows", not(target_arch = "nvptx64")))]
mod live_rows;
#[cfg(any(family = "marked", not(target_arch = "nvptx64")))]
mod marked;
#[cfg(any(family = "masks", not(target_arch = "nvptx64")))]
mod masks;
#[cfg(any(family = "message", not(target_arch = "nvptx64")))]
mod message;
mod mma;
#[cfg(any(family = "mttkrp", not(target_arch = "nvptx64")))]
mod mttkrp;
#[cfg(any(family = "nm", family = "nm_narrow", not(target_arch = "nvptx64")))]
mod nm;
#[cfg(any(
    family = "pit",
    family = "pit_turned",
    family = "pit_right",
    not(target_arch = "nvptx64")
))]
mod pit;
#[cfg(any(family = "pit_conv", not(target_arch = "nvptx64")))]
mod pit_conv;
#[cfg(any(family = "pit_few", not(target_arch = "nvptx64")))]
mod pit_few;
#[cfg(any(family = "pit_sampled", not(target_arch = "nvptx64")))]
mod pit_sampled;
#[cfg(any(family = "pit_tf32", not(target_arch = "nvptx64")))]
mod pit_tf32;
#[cfg(any(
    family = "pit",
    family = "pit_turned",
    family = "pit_right",
    family = "pit_tf32",
    not(target_arch = "nvptx64")
))]
mod pit_work;
#[cfg(any(family = "prune", not(target_arch = "nvptx64")))]
mod prune;
mod ptx;
#[cfg(any(family = "relaxed", not(target_arch = "nvptx64")))]
mod relaxed;
#[cfg(any(family = "route", not(target_arch = "nvptx64")))]
mod route;
#[cfg(any(
    family = "grouped",
    family = "pit_sampled",
    not(target_arch = "nvptx64")
))]
mod rows;
#[cfg(any(family = "sample", not(target_arch = "nvptx64")))]
mod sample;
#[cfg(any(family = "sampled", not(target_arch = "nvptx64")))]
mod sampled;
#[cfg(any(family = "scatter", not(target_arch = "nvptx64")))]
mod scatter;
#[cfg(any(
    family = "sddmm",
    family = "sddmm_staged",
    family = "sddmm_narrow",
    not(target_arch = "nvptx64")
))]
mod sddmm;
#[cfg(any(family = "sddmm_staged", not(target_arch = "nvptx64")))]
mod sddmm_staged;
#[cfg(any(family = "sddmm_tiles", not(target_arch = "nvptx64")))]
mod sddmm_tiles;
#[cfg(any(family = "slicing", not(target_arch = "nvptx64")))]
mod slicing;
#[cfg(any(family = "softmax", not(target_arch = "nvptx64")))]
mod softmax;
#[cfg(any(
    family = "spmm",
    family = "batched",
    family = "relaxed",
    not(target_arch = "nvptx64")
))]
mod spmm;
#[cfg(any(family = "staged", not(target_arch = "nvptx64")))]
mod staged;
mod stages;
#[cfg(any(family = "tensor_product", not(target_arch = "nvptx64")))]
mod tensor_product;
mod tile;
#[cfg(any(family = "transpose", not(target_arch = "nvptx64")))]
mod transpose;
#[cfg(any(family = "vectors", not(target_arch = "nvptx64")))]
mod vectors;
#[cfg(any(family = "vectors_narrow", not(target_arch = "nvptx64")))]
mod vectors_narrow;
mod walk;
#[cfg(any(
    family = "attention",
    family = "conv",
    family = "conv_grad",
    family = "conv_pairs",
    family = "conv_simt",
    family = "dense",
    family = "dense_live",
    family = "wgmma",
    family = "narrow",
    family = "sampled",
    family = "sddmm_tiles",
    family = "nm",
    family = "nm_narrow",
    family = "levels",
    family = "pit",
    family = "pit_turned",
    family = "pit_right",
    family = "pit_conv",
    family = "pit_sampled",
    family = "marked",
    family = "grouped",
    family = "grouped_grad",
    not(target_arch = "nvptx64")
))]
mod wgmma;
