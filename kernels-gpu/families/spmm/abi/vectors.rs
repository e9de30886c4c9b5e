//! The module `vectors`: A as column vectors of eight rows, on `mma.sync` with swapped operands.

use crate::abi::Tile;

/// Rows of a window: the length of a vector, and the 8-wide operand of `mma.m16n8`.
pub const WINDOW: u32 = 8;
/// Vectors of one step.
pub const STEP_VECTORS: u32 = 16;
/// Vectors of a step that one lane gathers.
pub const LANE_VECTORS: usize = 4;
/// Bytes of a slab, the columns of a row of B that eight lanes load at once.
pub const SLAB_BYTES: u32 = 128;

/// Bytes of a step's record: the columns of its vectors, 2 bytes each (4 if `wide`), then a word for each row. Bit `v`
/// of the word is set if vector `v` has an entry in the row. The upper half is the row's first value of the step,
/// relative to the window's base.
pub const fn record_bytes(wide: bool) -> u32 {
    STEP_VECTORS * if wide { 4 } else { 2 } + WINDOW * 4
}

/// Stages of a warp's ring: one is multiplied while rows of B for the others are copied.
pub const VECTOR_STAGES: u32 = 3;
/// Bytes of a slab in a stage, one row for each vector.
pub const STAGE_SLAB: u32 = STEP_VECTORS * SLAB_BYTES;
/// Bytes of a warp's ring of one slab.
pub const VECTOR_RING: u32 = VECTOR_STAGES * STAGE_SLAB;

/// Columns of a slab of 2-byte elements.
pub const SLAB_COLUMNS: u32 = SLAB_BYTES / 2;

/// Tile of the module: `WINDOWS` windows of eight rows, times `SLABS` x 64 columns. `PARTS` warps share a window and
/// take its steps round-robin. At the end a warp's ring holds its sums in f32, which fit in it.
#[derive(Clone, Copy, Debug)]
pub struct Vectors<const SLABS: usize, const WINDOWS: u32, const PARTS: u32>;

impl<const SLABS: usize, const WINDOWS: u32, const PARTS: u32> Tile
    for Vectors<SLABS, WINDOWS, PARTS>
{
    const THREADS: u32 = 32 * WINDOWS * PARTS;
    /// 24 warps with one slab, 16 with two: as many as have their rings in shared memory.
    const MIN_BLOCKS: u32 = if SLABS == 1 { 24 } else { 16 } / (WINDOWS * PARTS);
    const COLUMNS: u32 = SLABS as u32 * SLAB_COLUMNS;
    const ITEMS: u32 = WINDOWS;
    const PARTS: u32 = PARTS;
    const BURST: u32 = STEP_VECTORS;
    const SHARED_BYTES: u32 = WINDOWS * PARTS * SLABS as u32 * VECTOR_RING;
    const ACCESS: u32 = 16;
}

/// Work item of one group of warps: the vectors of one window.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowWindow {
    /// Window index: rows from `8 * window` on.
    pub window: u32,
    /// Record of the first step.
    pub first: u32,
    /// Number of vectors; the upper 8 bits mark the rows that have entries.
    pub vectors: u32,
    /// First value of A, to which the words of the records are relative.
    pub base: u32,
}

/// Max vectors of a window.
pub const WINDOW_VECTORS: u32 = (1 << 24) - 1;

/// Parameters of the `vectors` kernels: `C[m,n] = epilogue(alpha * A[m,k] * B[k,n])`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VectorsParams {
    /// [`RowWindow`]s in processing order.
    pub windows: u64,
    /// Records of [`record_bytes`].
    pub records: u64,
    /// Values of A, in the order of its own format.
    pub values: u64,
    /// B, row-major.
    pub b: u64,
    /// C, row-major.
    pub c: u64,
    /// Bias vector, or 0.
    pub bias: u64,
    /// Scalar factor of the product.
    pub alpha: f64,
    /// Number of windows.
    pub window_count: u32,
    /// Columns of B and C.
    pub n: u32,
    /// Rows of C.
    pub m: u32,
    /// Bytes from one row of B to the next.
    pub ldb_bytes: u32,
    /// Bytes from one row of C to the next.
    pub ldc_bytes: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Whether columns in records have 4 bytes.
    pub wide: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<RowWindow>() == 16);
const _: () = assert!(size_of::<VectorsParams>() == 88);
