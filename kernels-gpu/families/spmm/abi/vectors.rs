//! The module `vectors`: A as column vectors of eight rows, on `mma.sync` with swapped operands.

use core::marker::PhantomData;

use crate::abi::Tile;

/// Rows of a window: the length of a vector, and the 8-wide operand of `mma.m16n8`.
pub const WINDOW: usize = 8;
/// Vectors of one step.
pub const STEP_VECTORS: usize = 16;
/// Vectors of a step that one lane gathers.
pub const LANE_VECTORS: usize = 4;
/// Bytes of a slab, the columns of a row of B that eight lanes load at once.
pub const SLAB_BYTES: usize = 128;

/// Bytes of a step's record: the columns of its vectors, 2 bytes each (4 if `wide`), then a word for each row. Bit `v`
/// of the word is set if vector `v` has an entry in the row. The upper half is the row's first value of the step,
/// relative to the window's base.
pub const fn record_bytes(wide: bool) -> usize {
    STEP_VECTORS * if wide { 4 } else { 2 } + WINDOW * 4
}

/// Stages of a warp's ring: one is multiplied while rows of B for the others are copied.
pub const VECTOR_STAGES: usize = 3;
/// Bytes of a slab in a stage, one row for each vector.
pub const STAGE_SLAB: usize = STEP_VECTORS * SLAB_BYTES;

/// Constants of a [`Vectors`].
pub trait VectorsForm {
    /// Windows of eight rows.
    const WINDOWS: u32;
    /// Warps that share a window and take its steps round-robin.
    const PARTS: u32;
    /// Bytes of an element.
    const BYTES: usize;
}

/// [`VectorsForm`] as a type.
#[derive(Clone, Copy, Debug)]
pub struct VectorsOf<const WINDOWS: u32, const PARTS: u32, const BYTES: usize = 2>;

impl<const WINDOWS: u32, const PARTS: u32, const BYTES: usize> VectorsForm
    for VectorsOf<WINDOWS, PARTS, BYTES>
{
    const WINDOWS: u32 = WINDOWS;
    const PARTS: u32 = PARTS;
    const BYTES: usize = BYTES;
}

/// Tile of the module: [`VectorsForm::WINDOWS`] windows, times `SLABS` x 128 bytes of columns.
#[derive(Clone, Copy, Debug)]
pub struct Vectors<const SLABS: usize, F>(PhantomData<F>);

impl<const SLABS: usize, F: VectorsForm> Vectors<SLABS, F> {
    /// Columns of a slab.
    pub const SLAB_COLUMNS: usize = SLAB_BYTES / F::BYTES;
    /// Bytes of a warp's ring. At the end it holds the warp's sums in f32, which fit in it.
    pub const RING: usize = VECTOR_STAGES * SLABS * STAGE_SLAB;
}

impl<const SLABS: usize, F: VectorsForm> Tile for Vectors<SLABS, F> {
    const THREADS: u32 = 32 * F::WINDOWS * F::PARTS;
    /// 24 warps with one slab, 16 with two: as many as have their rings in shared memory.
    const MIN_BLOCKS: u32 = if SLABS == 1 { 24 } else { 16 } / (F::WINDOWS * F::PARTS);
    const COLUMNS: u32 = (SLABS * SLAB_BYTES / F::BYTES) as u32;
    const ITEMS: u32 = F::WINDOWS;
    const PARTS: u32 = F::PARTS;
    const BURST: u32 = STEP_VECTORS as u32;
    const SHARED_BYTES: u32 = Self::THREADS / 32 * Self::RING as u32;
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
pub const WINDOW_VECTORS: usize = (1 << 24) - 1;

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
