//! Module `levels`: one dense product, `C[m,n] = A[m,k] * B[k,n]`, from a plain loop to a persistent, warp-specialized
//! kernel. Its purpose is to be read (docs/levels.md) and measured; no plan chooses it.

use crate::abi::{MapWords, SMEM_TILE, TMA, Tile, WGMMA};

/// Tile of level `NUMBER` of the product, for 16-bit elements. m, n and k must be multiples of the tile; other modules
/// support ragged edges.
#[derive(Clone, Copy, Debug)]
pub struct Level<const NUMBER: usize>;

/// Shape of the thread block of a level.
struct Shape {
    threads: u32,
    min_blocks: u32,
    /// Rows and columns of C.
    tile: (u32, u32),
    /// Elements along k of a stage.
    depth: u32,
    /// Bytes of a row of A's tile, or of a column of B's, in a stage.
    line: usize,
    stages: usize,
    /// Bytes of the shared-memory buffer through which C is stored.
    out: usize,
}

const SHAPES: [Shape; 7] = {
    const fn shape(threads: u32, min_blocks: u32, tile: (u32, u32)) -> Shape {
        Shape { threads, min_blocks, tile, depth: 64, line: 128, stages: 1, out: 0 }
    }
    let loops = Shape { depth: 1, stages: 0, ..shape(256, 4, (1, 256)) };
    // Elements are stored as f32.
    let shared = Shape { depth: 16, line: 64, ..shape(256, 2, (128, 128)) };
    let mma = Shape { stages: 3, ..shape(128, 2, (128, 128)) };
    let wgmma = shape(128, 2, (128, 128));
    let ring = Shape { stages: 3, ..shape(128, 2, (128, 128)) };
    let roles = Shape { stages: 4, ..shape(384, 1, (128, 256)) };
    let persistent = Shape { stages: 4, out: 2 * SMEM_TILE, ..shape(384, 1, (128, 256)) };
    [loops, shared, mma, wgmma, ring, roles, persistent]
};

impl<const NUMBER: usize> Level<NUMBER> {
    /// Rows of C of a tile.
    pub const ROWS: u32 = SHAPES[NUMBER].tile.0;
    /// Elements along k of a stage.
    pub const DEPTH: u32 = SHAPES[NUMBER].depth;
    /// Number of stages.
    pub const STAGES: usize = SHAPES[NUMBER].stages;
    /// Bytes of a stage: A's tile, then B's.
    pub const STAGE: usize = (Self::ROWS + Self::COLUMNS) as usize * SHAPES[NUMBER].line;
    /// Bytes of A's tile.
    pub const A_BYTES: usize = Self::ROWS as usize * SHAPES[NUMBER].line;
    /// Offset of the buffer through which C is stored.
    pub const OUT: usize = Self::STAGES * Self::STAGE;
    /// Offset of the mbarriers: `full` and `empty` of each stage.
    pub const BARRIERS: usize = Self::OUT + SHAPES[NUMBER].out;
}

impl<const NUMBER: usize> Tile for Level<NUMBER> {
    const NEEDS: u32 = TMA | WGMMA;
    const THREADS: u32 = SHAPES[NUMBER].threads;
    const MIN_BLOCKS: u32 = SHAPES[NUMBER].min_blocks;
    const COLUMNS: u32 = SHAPES[NUMBER].tile.1;
    /// A persistent thread block computes one tile after another.
    const ITEMS: u32 = if NUMBER == 6 { u32::MAX } else { 1 };
    const BURST: u32 = if NUMBER == 0 { 1 } else { Self::STAGES as u32 };
    const BLOCK: (u32, u32) = (Self::ROWS, Self::DEPTH);
    const SHARED_BYTES: u32 = (Self::BARRIERS + Self::STAGES * 16) as u32;
    const ACCESS: u32 = 16;
}

/// Parameters of the `levels` kernels. All matrices are row-major without gaps. The maps require 64-byte alignment, as
/// in [`WgmmaParams`](crate::families::gemm::abi::WgmmaParams).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LevelsParams {
    /// A, in tiles of 64 columns x 128 rows.
    pub a_map: MapWords,
    /// B, in tiles of 64 columns x 64 rows.
    pub b_map: MapWords,
    /// A.
    pub a: u64,
    /// B.
    pub b: u64,
    /// C.
    pub c: u64,
    /// Rows of A and C.
    pub m: u32,
    /// Columns of B and C.
    pub n: u32,
    /// Columns of A, rows of B.
    pub k: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<LevelsParams>() == 296);
