//! Library of the kernel bodies, independent of families. `prelude`: imports of every body. `gpu`: interface to the
//! compiler. `ptx`: one function per instruction. `memory`, `shared`, `maps`: typed addresses. `elem`, `mma`, `warpgroup`,
//! `multiply`, `loader` and `walk`: traits over which bodies are generic. `stages`, `fill`: ring of stages between
//! producers and consumers. `scan`, `lanes`, `compact`, `partial`: scans, reductions and lists. `strided`: loops over
//! threads. `epilogue` and `store`: output to C. `entry`: kernel entries from the table.

/// Unrolls a block for `i` in `0..n`, n <= 8. LLVM does not unroll loops around inline asm, and an array that is
/// indexed at run time is stored in local memory. A literal `n`, or `most 4`, avoids copies that would never run:
/// nested loops would have hundreds.
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
        // The value that the last copy assigns is never read.
        $(#[allow(unused_assignments)] {
            let $i: usize = $k;
            if $i < $n $body
        })*
    }};
}

pub mod compact;
pub mod elem;
mod entry;
pub mod epilogue;
pub mod fill;
pub mod glu;
pub mod gpu;
pub mod kernel;
pub mod lanes;
pub mod loader;
pub mod maps;
pub mod memory;
pub mod mma;
pub mod multiply;
pub mod partial;
pub mod prelude;
pub mod ptx;
pub mod quantize;
pub mod rows;
pub mod scan;
pub mod shared;
pub mod softmax;
pub mod split_k;
pub mod stages;
pub mod store;
pub mod strided;
pub mod thin;
pub mod tile;
pub mod walk;
pub mod warpgroup;
