//! The module `dense`: `C[m,n] = A[m,k] * B[k,n]` with dense A, for matrices too small to fill the GPU with large
//! tiles. A cluster of thread blocks computes a tile of C, and each of them a part of k.

use core::marker::PhantomData;

use crate::abi::{
    AtomInfo, CLUSTER, Divisor, Dtype, LoaderInfo, MapWords, PANEL_BYTES, SMEM_TILE, Tile, Tma,
    Wgmma,
};

/// Parameters of a [`DenseTile`], and of the tiles made from it: constants, atom and loader.
pub trait DenseForm: Copy {
    /// Warpgroups, of 64 rows each.
    const GROUPS: usize;
    /// Thread blocks of a cluster that split a tile along k.
    const CUT: usize;
    /// Bytes of an element.
    const BYTES: usize;
    /// Atom.
    type A: AtomInfo;
    /// Loader.
    type L: LoaderInfo;
}

/// The [`DenseForm`] with these parameters.
#[derive(Clone, Copy, Debug)]
pub struct DenseOf<
    const GROUPS: usize,
    const CUT: usize,
    const BYTES: usize = 2,
    A = Wgmma,
    L = Tma,
>(PhantomData<(A, L)>);

impl<const GROUPS: usize, const CUT: usize, const BYTES: usize, A: AtomInfo, L: LoaderInfo>
    DenseForm for DenseOf<GROUPS, CUT, BYTES, A, L>
{
    const GROUPS: usize = GROUPS;
    const CUT: usize = CUT;
    const BYTES: usize = BYTES;
    type A = A;
    type L = L;
}

/// Tile of the module `dense`: `CHUNKS` x 64 columns. Tiles with 4-byte elements (TF32) are computed transposed, as
/// `C^T = B^T A^T`, with 64 columns for each warpgroup. `wgmma` requires operands in shared memory contiguous along k.
/// B is not, so it is loaded into registers.
#[derive(Clone, Copy, Debug)]
pub struct DenseTile<const CHUNKS: usize, F>(PhantomData<F>);

/// Bytes of shared memory of a thread block that has a multiprocessor to itself, and of one that shares it with
/// another.
const ALONE: usize = 226 << 10;
const SHARED: usize = 112 << 10;
/// Max bytes of a tile's barriers, including alignment.
const BARRIER_BYTES: usize = 256;

impl<const CHUNKS: usize, F: DenseForm> DenseTile<CHUNKS, F> {
    /// Whether the tile is computed transposed.
    pub const TRANSPOSED: bool = F::BYTES == 4;
    /// Rows of C.
    pub const ROWS: usize = 64 * if Self::TRANSPOSED { CHUNKS } else { F::GROUPS };
    /// Depth of a stage in elements.
    pub const DEPTH: usize = PANEL_BYTES / F::BYTES;
    /// Columns of B in a piece of a stage.
    pub const ACROSS: usize = PANEL_BYTES / F::BYTES;
    /// Bytes of a stage: 64 rows of A (transposed: columns of B) for each warpgroup, then the operand that all share.
    pub const STAGE: usize = (F::GROUPS + CHUNKS) * SMEM_TILE;
    /// Bytes of A in a stage.
    pub const STAGE_OF_A: usize = if Self::TRANSPOSED { CHUNKS } else { F::GROUPS } * SMEM_TILE;
    /// Warps that multiply, 16 rows each.
    pub const WARPS: u32 = 4 * F::GROUPS as u32;
    /// With `cp.async`, the warps of a tile this large also copy. Eight warps alone may use 255 registers a thread;
    /// with four copying warps, 168.
    pub const UNDIVIDED: bool = !F::L::BY_ONE && F::GROUPS * CHUNKS == 8;
    /// Threads that only copy.
    pub const PRODUCER_THREADS: u32 = match (F::L::BY_ONE, Self::UNDIVIDED) {
        (true, _) => 32,
        (false, true) => 0,
        (false, false) => 128,
    };
    /// Threads that copy.
    pub const TEAM: u32 = if Self::UNDIVIDED { 32 * Self::WARPS } else { Self::PRODUCER_THREADS };
    /// Atoms of 8 columns in a row of the tile.
    pub const ATOMS: usize = 8 * CHUNKS;
    /// Atoms of 16 rows that each thread block of the cluster finishes, over all its warps.
    pub const SHARE: usize = 4 * F::GROUPS * Self::ATOMS / F::CUT;
    /// Bytes of an atom of 16 rows.
    pub const ATOM: usize = 512;
    /// Bytes of the sums from all thread blocks of the cluster.
    pub const RECEIVED: usize = if F::CUT == 1 { 0 } else { F::CUT * Self::SHARE * Self::ATOM };
    /// Whether the sums overwrite the stages, after all stages have been read.
    pub const OVER_STAGES: bool = Self::RECEIVED > (64 << 10);
    /// Bytes of sums that are stored after the stages.
    const BESIDE: usize = if Self::OVER_STAGES { 0 } else { Self::RECEIVED };
    /// Whether two thread blocks share a multiprocessor: if each of them then has enough stages.
    const TWO: bool = if F::A::ASYNCHRONOUS {
        Self::BESIDE + 4 * Self::STAGE <= SHARED
    } else {
        F::GROUPS * CHUNKS == 1
    };
    /// Stages in flight.
    pub const STAGES: usize = {
        let room = match (F::L::BY_ONE, Self::TWO) {
            (true, true) => SHARED,
            (true, false) => ALONE,
            (false, true) => F::L::SHARED / 2,
            (false, false) => F::L::SHARED,
        };
        let fit = (room - Self::BESIDE - BARRIER_BYTES) / Self::STAGE;
        if fit > 8 { 8 } else { fit }
    };
    /// Offset of the sums.
    pub const SUMS: usize = if Self::OVER_STAGES { 0 } else { Self::STAGES * Self::STAGE };
    /// Offset of the barriers: full and empty for each stage, and one for the sums.
    pub const BARRIERS: usize = Self::STAGES * Self::STAGE + Self::BESIDE;
}

/// Requirement of a cluster of `parts` thread blocks.
const fn cluster_of(parts: usize) -> u32 {
    if parts > 1 { CLUSTER } else { 0 }
}

impl<const CHUNKS: usize, F: DenseForm> Tile for DenseTile<CHUNKS, F> {
    const THREADS: u32 = 32 * Self::WARPS + Self::PRODUCER_THREADS;
    const NEEDS: u32 = F::A::NEEDS | F::L::NEEDS | cluster_of(F::CUT);
    const STANDS_IN: bool = !F::A::ASYNCHRONOUS;
    const MIN_BLOCKS: u32 = if Self::TWO { 2 } else { 1 };
    const COLUMNS: u32 = 64 * if Self::TRANSPOSED { F::GROUPS } else { CHUNKS } as u32;
    const PARTS: u32 = F::CUT as u32;
    const BURST: u32 = Self::STAGES as u32;
    const BLOCK: (u32, u32) = (Self::ROWS as u32, Self::DEPTH as u32);
    const SHARED_BYTES: u32 = (Self::BARRIERS + Self::STAGES * 16 + 8) as u32;
    const ACCESS: u32 = 16;
}

/// Parameters of the `dense` kernels: `C[m,n] = epilogue(alpha * A[m,k] * B[k,n])`. The maps require 64-byte alignment,
/// as in [`WgmmaParams`](super::WgmmaParams).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DenseParams {
    /// A, in tiles of a stage's depth x the tile's rows.
    pub a_map: MapWords,
    /// B, in tiles of 128 bytes x a stage's depth.
    pub b_map: MapWords,
    /// C, row-major.
    pub c: u64,
    /// Bias vector, or 0.
    pub bias: u64,
    /// Module `dense_live`: address of the number of rows, u32.
    pub live: u64,
    /// Scalar factor of the product.
    pub alpha: f64,
    /// Columns of B and C.
    pub n: u32,
    /// Rows of C.
    pub m: u32,
    /// Bytes from one row of C to the next.
    pub ldc_bytes: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Stages along k, over all thread blocks of a cluster.
    pub stages: u32,
    /// Module `dense_live`: 1 if `live` was written before the preceding launch started.
    pub early: u32,
}

const _: () = assert!(size_of::<DenseParams>() == 312);

/// [`Tile::STEP`] of a product of `dense_live`.
pub const STEP_LIVE_PRODUCT: u32 = 3;

/// Tile of the module `dense_live`: a `dense` tile that contains some of the `live` rows, then those a grid further
/// down.
#[derive(Clone, Copy, Debug)]
pub struct LiveTile<const CHUNKS: usize, F>(PhantomData<F>);

impl<const CHUNKS: usize, F: DenseForm> LiveTile<CHUNKS, F> {
    /// Offset of the index of the current row of tiles, after the barriers.
    pub const DOWN: usize =
        DenseTile::<CHUNKS, F>::BARRIERS + DenseTile::<CHUNKS, F>::STAGES * 16 + 8;
    /// Offset of the number of rows.
    pub const LIVE: usize = Self::DOWN + 4;
    /// Offset of the biases.
    pub const BIASES: usize = Self::DOWN + 8;
}

impl<const CHUNKS: usize, F: DenseForm> Tile for LiveTile<CHUNKS, F> {
    const NEEDS: u32 = DenseTile::<CHUNKS, F>::NEEDS;
    const STANDS_IN: bool = DenseTile::<CHUNKS, F>::STANDS_IN;
    const THREADS: u32 = DenseTile::<CHUNKS, F>::THREADS;
    const MIN_BLOCKS: u32 = DenseTile::<CHUNKS, F>::MIN_BLOCKS;
    const COLUMNS: u32 = DenseTile::<CHUNKS, F>::COLUMNS;
    const ITEMS: u32 = DenseTile::<CHUNKS, F>::ITEMS;
    const PARTS: u32 = F::CUT as u32;
    const BURST: u32 = DenseTile::<CHUNKS, F>::BURST;
    const BLOCK: (u32, u32) = DenseTile::<CHUNKS, F>::BLOCK;
    const STEP: u32 = STEP_LIVE_PRODUCT;
    const ACCESS: u32 = DenseTile::<CHUNKS, F>::ACCESS;
    fn shared_bytes(dtype: Dtype) -> u32 {
        Self::BIASES as u32 + Self::COLUMNS * dtype.bytes() as u32
    }
}

/// Tile of the module `dense_conv`: a [`DenseTile`] of a product whose rows are the positions of C, image after image.
/// Its k are the taps, each with all its channels. If k is not split, tiles a grid further down follow.
#[derive(Clone, Copy, Debug)]
pub struct ConvTile<const CHUNKS: usize, F>(PhantomData<F>);

impl<const CHUNKS: usize, F: DenseForm> Tile for ConvTile<CHUNKS, F> {
    const NEEDS: u32 = DenseTile::<CHUNKS, F>::NEEDS;
    const STANDS_IN: bool = DenseTile::<CHUNKS, F>::STANDS_IN;
    const THREADS: u32 = DenseTile::<CHUNKS, F>::THREADS;
    const MIN_BLOCKS: u32 = DenseTile::<CHUNKS, F>::MIN_BLOCKS;
    const COLUMNS: u32 = DenseTile::<CHUNKS, F>::COLUMNS;
    const PARTS: u32 = F::CUT as u32;
    const BURST: u32 = DenseTile::<CHUNKS, F>::BURST;
    const BLOCK: (u32, u32) = DenseTile::<CHUNKS, F>::BLOCK;
    const SHARED_BYTES: u32 = DenseTile::<CHUNKS, F>::SHARED_BYTES;
    const ACCESS: u32 = 16;
}

/// Parameters of the `dense_conv` kernels: `C[n,x,y,f] = epilogue(alpha * A[n,x+i,y+j,m] * B[i,j,m,f])`, channels last.
/// Element `[0]` of a pair is along x, the rows of an image, `[1]` along y, its columns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DenseConvParams {
    /// The product. `a_map` is a map of pixels (`im2col`): a stage's channels x the tile's rows. `b_map` has three
    /// axes: filters, channels and taps. `m` counts positions of C, `n` filters, `stages` the stages of all taps.
    pub product: DenseParams,
    /// Positions in an image of C.
    pub image: Divisor,
    /// Positions in a row of the image.
    pub row: Divisor,
    /// Taps in a row of the window.
    pub window: Divisor,
    /// Stages of a tap.
    pub tap: Divisor,
    /// Positions of A between neighbouring positions of C.
    pub stride: [u32; 2],
    /// Positions of A between neighbouring taps.
    pub dilation: [u32; 2],
    /// Positions of zero padding before A.
    pub padding: [u32; 2],
}

const _: () = assert!(size_of::<DenseConvParams>() == 368);
