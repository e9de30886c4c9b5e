//! The `spmm` family: products with A of single entries by its rows, and the work list that families of entries and blocks share.

use super::{Dtype, Tile};

/// Thread blocks of this size take bundles of rows; the larger ones are for long rows.
pub const BUNDLED_THREADS: u32 = 128;

/// Sub-warp tile of the SpMM family: `SPLIT` segments of `LANES` lanes share one work item; a lane owns
/// `REP` vectors of `VEC` columns; `UNROLL` (4 or 8) rows of B are in flight. Large thread blocks keep neighbouring rows and
/// their columns of B on one multiprocessor.
#[derive(Clone, Copy, Debug)]
pub struct SubWarp<
    const LANES: u32,
    const VEC: usize,
    const REP: usize,
    const UNROLL: usize,
    const SPLIT: u32,
    const THREADS: u32 = 128,
>;

impl<
    const LANES: u32,
    const VEC: usize,
    const REP: usize,
    const UNROLL: usize,
    const SPLIT: u32,
    const THREADS: u32,
> Tile for SubWarp<LANES, VEC, REP, UNROLL, SPLIT, THREADS>
{
    const THREADS: u32 = THREADS;
    // 128 or 102 registers.
    const MIN_BLOCKS: u32 = if UNROLL * REP > 8 { 512 } else { 640 } / THREADS;
    const COLUMNS: u32 = LANES * VEC as u32 * REP as u32;
    const ITEMS: u32 = THREADS / (LANES * SPLIT);
    const PARTS: u32 = SPLIT;
    const BURST: u32 = UNROLL as u32;
    const BLOCK: (u32, u32) = (1, 1);
    fn shared_bytes(dtype: Dtype) -> u32 {
        if SPLIT == 1 {
            0
        } else {
            THREADS * (VEC * REP * dtype.acc_bytes()) as u32
        }
    }
    fn vector(_: Dtype) -> u32 {
        VEC as u32
    }
}

/// A work item's `slot` when the item is the whole row.
pub const WHOLE_ROW: u32 = u32::MAX;

/// A work item's `slot` when the item is a bundle: `len` whole rows from `row` on, whose entries [`SpmmParams::spans`] says.
pub const BUNDLE: u32 = u32::MAX - 1;

/// One piece of work: entries `start..start + len` of one row (blocks of one block row).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Row of C (block row).
    pub row: u32,
    /// First entry (block) in the arrays of A.
    pub start: u32,
    /// Entries (blocks); 0 writes an empty row.
    pub len: u32,
    /// Index of the partial sum this item leaves, [`WHOLE_ROW`] or [`BUNDLE`].
    pub slot: u32,
}

/// One partial sum of a row that several items share. The item that arrives last adds the row's
/// partial sums in order, so the bits do not depend on who that is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Arrival counter of the row.
    pub counter: u32,
    /// First slot of the row.
    pub first: u32,
    /// Slots of the row.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

/// Parameters of every SpMM kernel, unstructured and block: `C[m,n] = epilogue(alpha * A[m,k] * B[k,n])`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SpmmParams {
    /// [`Item`]s.
    pub items: u64,
    /// [`Slot`]s of split rows.
    pub slots: u64,
    /// Column (block column) of each entry, u32.
    pub columns: u64,
    /// Values of A.
    pub values: u64,
    /// B, row-major.
    pub b: u64,
    /// C, row-major.
    pub c: u64,
    /// Bias vector, or 0.
    pub bias: u64,
    /// Accumulators of split rows: slots x block rows x padded columns.
    pub partial: u64,
    /// Arrival counters of split rows x column tiles, all zero between launches.
    pub counters: u64,
    /// First entry and number of entries of every row, where items are bundles.
    pub spans: u64,
    /// Scalar factor of the product.
    pub alpha: f64,
    /// Number of items.
    pub item_count: u32,
    /// Columns of B and C.
    pub n: u32,
    /// Rows of C.
    pub m: u32,
    /// Rows of B.
    pub k: u32,
    /// Bytes from one row of B to the next.
    pub ldb_bytes: u32,
    /// Bytes from one row of C to the next.
    pub ldc_bytes: u32,
    /// Columns of one row of `partial`: n rounded up to whole column tiles.
    pub partial_columns: u32,
    /// `FLAG_*`.
    pub flags: u32,
}

const _: () = assert!(size_of::<Item>() == 16);
const _: () = assert!(size_of::<Slot>() == 16);
const _: () = assert!(size_of::<SpmmParams>() == 120);
