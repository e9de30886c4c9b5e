//! What bodies are written in; no family is named here. `prelude` is what they begin with, `gpu` the seam to
//! the compiler, `ptx` one instruction per function, `elem`, `mma`, `warpgroup`, `atom` and `walk` what bodies are
//! generic over, `stages` the ring of the asynchronous ones, `epilogue` and `store` the way to C, `entry` the table
//! expanded.

/// Repeats a block for `i` in `0..n`, n <= 8, as straight code: LLVM leaves loops around inline asm rolled, and an
/// array indexed at run time lives in local memory. A literal `n`, or `most 4`, saves the compiler the copies that
/// would not run: nested loops have hundreds.
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

pub mod atom;
pub mod elem;
mod entry;
pub mod epilogue;
pub mod glu;
pub mod gpu;
pub mod kernel;
pub mod lanes;
pub mod loader;
pub mod mma;
pub mod multiply;
pub mod prelude;
pub mod ptx;
pub mod quantize;
pub mod rows;
pub mod scan;
pub mod split_k;
pub mod stages;
pub mod store;
pub mod thin;
pub mod tile;
pub mod walk;
pub mod warpgroup;
