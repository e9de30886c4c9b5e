//! The module `mttkrp`: for every entry of a sparse tensor, one to three gathered rows times the value, summed by
//! output row.

use core::marker::PhantomData;

use crate::abi::{Dtype, SpmmParams, Tile};

/// Parameters of a [`Rows`].
pub trait GatherForm {
    /// Rows that are gathered for each entry.
    const FACTORS: usize;
    /// Lanes of a segment.
    const LANES: u32;
    /// Entries whose rows are gathered at once: 4 or 8.
    const UNROLL: usize;
    /// [`REDUCE_SUM`], [`REDUCE_MAX`] or [`REDUCE_MEAN`].
    const REDUCE: u32;
}

/// [`GatherForm`] as a type.
#[derive(Clone, Copy, Debug)]
pub struct GatherOf<
    const FACTORS: usize,
    const LANES: u32,
    const UNROLL: usize,
    const REDUCE: u32 = REDUCE_SUM,
>;

impl<const FACTORS: usize, const LANES: u32, const UNROLL: usize, const REDUCE: u32> GatherForm
    for GatherOf<FACTORS, LANES, UNROLL, REDUCE>
{
    const FACTORS: usize = FACTORS;
    const LANES: u32 = LANES;
    const UNROLL: usize = UNROLL;
    const REDUCE: u32 = REDUCE;
}

/// Tile of the module. A segment of lanes processes an item, a lane `REP` times `VEC` columns of the output.
#[derive(Clone, Copy, Debug)]
pub struct Rows<const VEC: usize, const REP: usize, F>(PhantomData<F>);

/// Products of a row are added.
pub const REDUCE_SUM: u32 = 0;
/// The max product of a row; NaN if one of them is NaN.
pub const REDUCE_MAX: u32 = 1;

/// Products of a row are added. The values are f32 for every factor type: a weight divided by the row's number of
/// entries would lose bits in 16.
pub const REDUCE_MEAN: u32 = 3;

/// [`Tile::STEP`] of a kernel of the module.
pub const fn rows_step(factors: usize, reduce: u32) -> u32 {
    factors as u32 | reduce << 4
}

impl<const VEC: usize, const REP: usize, F: GatherForm> Tile for Rows<VEC, REP, F> {
    const THREADS: u32 = 128;
    // The limits are 85, 102, 128 or 168 registers.
    const MIN_BLOCKS: u32 = match (F::FACTORS * F::UNROLL * REP, F::UNROLL) {
        (0..=4, _) => 6,
        (5..=8, 4) => 5,
        (5..=8, _) => 4,
        _ => 3,
    };
    const COLUMNS: u32 = F::LANES * VEC as u32 * REP as u32;
    const ITEMS: u32 = 128 / F::LANES;
    const BURST: u32 = F::UNROLL as u32;
    const STEP: u32 = rows_step(F::FACTORS, F::REDUCE);
    const ACCESS: u32 = 1;
    fn vector(_: Dtype) -> u32 {
        VEC as u32
    }
}

/// The output does not fit in L2: its rows are evicted first, rows of a single factor last.
pub const FLAG_STREAMED: u32 = 1 << 16;

/// Bit of an entry's first index: the entry is the last of its row.
pub const LAST_OF_ROW: u32 = 1 << 31;

/// Parameters of every `mttkrp` kernel. An [`Item`](crate::abi::Item) of slot [`BUNDLE`](crate::abi::BUNDLE) is a
/// bundle of whole rows: `row` counts rows that have entries, `len` counts entries. An item without entries clears
/// `start` rows of the output from `row` on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MttkrpParams {
    /// Items, slots, values, the first factor (`b`, with its row indices and [`LAST_OF_ROW`] as `columns`), the output
    /// (`c`).
    pub product: SpmmParams,
    /// Row indices of every entry in the second and third factor.
    pub places: [u64; 2],
    /// The second and third factor.
    pub factors: [u64; 2],
    /// The output row of every row with entries; 0 if all rows have entries.
    pub rows: u64,
    /// Bytes from one row of the second and third factor to the next.
    pub leading: [u32; 2],
}

const _: () = assert!(size_of::<MttkrpParams>() == size_of::<SpmmParams>() + 48);

/// Tile of the products at entries: a segment of `LANES` lanes has [`DOT_ENTRIES`] neighboring entries, `VEC` columns
/// per lane.
#[derive(Clone, Copy, Debug)]
pub struct RowDots<const FACTORS: usize, const LANES: u32, const VEC: usize>;

/// Entries per segment.
pub const DOT_ENTRIES: u32 = 16;

/// Products are summed over the columns, one sum for each entry.
pub const REDUCE_COLUMNS: u32 = 2;

impl<const FACTORS: usize, const LANES: u32, const VEC: usize> Tile
    for RowDots<FACTORS, LANES, VEC>
{
    const THREADS: u32 = 128;
    // The limits are 102 or 168 registers.
    const MIN_BLOCKS: u32 = if FACTORS < 3 { 5 } else { 3 };
    const COLUMNS: u32 = LANES * VEC as u32;
    const ITEMS: u32 = 128 / LANES;
    const BURST: u32 = 4;
    const STEP: u32 = rows_step(FACTORS, REDUCE_COLUMNS);
    const ACCESS: u32 = 1;
    fn vector(_: Dtype) -> u32 {
        VEC as u32
    }
}
