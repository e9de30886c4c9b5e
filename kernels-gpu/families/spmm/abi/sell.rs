//! The module `sell`: SpMM of one to a few columns over slices of rows of A (SELL-C-sigma), with B in shared memory.

use super::{CHUNK_STEPS, SLICE};
use crate::abi::Tile;

/// Tile of the module: `WARPS` warps, each with a share of all chunks, times `N` columns (1 or 8) of all rows of B, in
/// `KIB` KiB of shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Sell<const WARPS: u32, const N: usize, const KIB: u32 = 227>;

impl<const WARPS: u32, const N: usize, const KIB: u32> Sell<WARPS, N, KIB> {
    /// Bytes of a row of B in shared memory. One column is stored in f32, converted once; several keep their type.
    pub const ROW: u32 = if N == 1 { 4 } else { N as u32 * 2 };
    /// Rows of B that shared memory holds. A row of zeros follows them, which padding reads.
    pub const ROWS: u32 = (KIB << 10) / Self::ROW - 1;
    /// Bytes of the partial sums of a slice.
    pub const PARTIAL: u32 = (SLICE * N * 4) as u32;
}

impl<const WARPS: u32, const N: usize, const KIB: u32> Tile for Sell<WARPS, N, KIB> {
    const STANDS_IN: bool = KIB < 227;
    const THREADS: u32 = WARPS * 32;
    const COLUMNS: u32 = N as u32;
    const ITEMS: u32 = WARPS;
    const BURST: u32 = CHUNK_STEPS as u32;
    const DEPTH: u32 = Self::ROWS;
    const SHARED_BYTES: u32 = KIB << 10;
    const ACCESS: u32 = 1;
}

/// Chunks of one slice that a warp sums.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SellPiece {
    /// First chunk.
    pub first: u32,
    /// One past the last.
    pub end: u32,
    /// Slice; also the index of its arrival counter.
    pub slice: u32,
    /// Index of this part of the slice in the low 16 bits, number of parts in the upper 16. With one part, its sums are
    /// those of the slice.
    pub parts: u32,
}

/// Parameters of the `sell` kernels: `C[m,n] = epilogue(alpha * A[m,k] * B[k,n])`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SellParams {
    /// Windows of chunks, as in [`StagedParams`](super::StagedParams).
    pub windows: u64,
    /// Columns of A's slots, u16, relative to the first column of the window.
    pub columns: u64,
    /// Values of A's slots.
    pub values: u64,
    /// Rows of C of all lanes of all slices, as in [`StagedParams`](super::StagedParams).
    pub rows: u64,
    /// [`SellPiece`]s, sorted by warp.
    pub pieces: u64,
    /// First piece of each warp, and one past the last, u32.
    pub spans: u64,
    /// First slot of partial sums of each slice, u32.
    pub slots: u64,
    /// Partial sums of split slices: column tiles x slots x 32 rows x columns.
    pub partial: u64,
    /// Arrival counters: column tiles x slices, all zero between launches.
    pub counters: u64,
    /// B, row-major.
    pub b: u64,
    /// C, row-major.
    pub c: u64,
    /// Bias vector, or 0.
    pub bias: u64,
    /// Scalar factor of the product.
    pub alpha: f64,
    /// Columns of B and C.
    pub n: u32,
    /// Rows of B.
    pub k: u32,
    /// Bytes from one row of B to the next.
    pub ldb_bytes: u32,
    /// Bytes from one row of C to the next.
    pub ldc_bytes: u32,
    /// `FLAG_*`. With [`FLAG_VECTORS`](crate::abi::FLAG_VECTORS) rows of B and C are read and written 16 bytes at a
    /// time.
    pub flags: u32,
    /// Number of slices.
    pub slices: u32,
    /// Slots of partial sums of a column tile.
    pub slot_count: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<SellPiece>() == 16);
const _: () = assert!(size_of::<SellParams>() == 136);
