//! Product of a sparse and a dense matrix by work items: types that kernels for entries, blocks and batches share.

/// `slot` of a work item that is a whole row.
pub const WHOLE_ROW: u32 = u32::MAX;

/// `slot` of a work item that is a bundle: `len` whole rows from `row` on. [`SpmmParams::spans`] has the entries of
/// each row.
pub const BUNDLE: u32 = u32::MAX - 1;

/// Work item: entries `start..start + len` of one row (blocks of one block row), all of them or a piece. If `slot` is
/// [`BUNDLE`], the item is `len` whole rows, and `start` is unused.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Row of C (block row); the first one of a bundle.
    pub row: u32,
    /// First entry (block) in the arrays of A.
    pub start: u32,
    /// Entries (blocks), rows of a bundle; 0 writes an empty row.
    pub len: u32,
    /// Index of the partial sum that this item stores, [`WHOLE_ROW`] or [`BUNDLE`].
    pub slot: u32,
}

/// Partial sum of a row that is split over several items. The item that arrives last adds the row's partial sums in
/// slot order, so the bits of the result do not depend on the order of arrival.
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
    /// Partial sums of split rows: slots x rows of a block (1 for entries) x padded columns.
    pub partial: u64,
    /// Arrival counters of split rows x column tiles, all zero between launches.
    pub counters: u64,
    /// First entry and number of entries of every row, if items are bundles.
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
