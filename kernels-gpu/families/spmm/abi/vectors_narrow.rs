//! The kernels `vectors_narrow`: `vectors` for 8-bit integers, with i32 accumulators.

use crate::abi::Tile;
use crate::families::spmm::abi::{SLAB_BYTES, STEP_VECTORS, VECTOR_RING};

/// Tile of the module: `WINDOWS` windows of eight rows, times 128 columns. `PARTS` warps share a window and take its
/// steps round-robin. `ALIGNED`: rows of B begin at multiples of 16 bytes. At the end a warp's ring holds its sums, 32
/// words a lane.
#[derive(Clone, Copy, Debug)]
pub struct NarrowVectors<const WINDOWS: u32, const PARTS: u32, const ALIGNED: bool>;

const _: () = assert!(VECTOR_RING >= 32 * 32 * 4);

impl<const WINDOWS: u32, const PARTS: u32, const ALIGNED: bool> Tile
    for NarrowVectors<WINDOWS, PARTS, ALIGNED>
{
    const THREADS: u32 = 32 * WINDOWS * PARTS;
    /// 20 warps: as many as have registers for the records of three steps.
    const MIN_BLOCKS: u32 = if ALIGNED { 20 } else { 16 } / (WINDOWS * PARTS);
    const COLUMNS: u32 = SLAB_BYTES;
    const ITEMS: u32 = WINDOWS;
    const PARTS: u32 = PARTS;
    const BURST: u32 = STEP_VECTORS;
    const SHARED_BYTES: u32 = WINDOWS * PARTS * VECTOR_RING;
    /// Rows of B are copied by 16 bytes; rows of C may have any length.
    const ACCESS: u32 = if ALIGNED { 16 } else { 1 };
}
