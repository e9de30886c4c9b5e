//! How a kernel fetches entries of the sparse operand: one format per file.

mod csr;
mod group_coo;

use super::elem::Elem;
use crate::abi::WalkInfo;

/// A walk over the entries of one row, shared by a segment of `LANES` lanes.
pub trait Walk: WalkInfo {
    /// A batch is exactly `UNROLL` entries.
    const ONE_BURST: bool;
    /// Entries held by the segment after one fetch.
    type Batch<E: Elem>: Copy;

    /// Entries that one fetch takes.
    fn batch_len<const LANES: u32, const UNROLL: usize>() -> u32;

    /// Fetches entries `start..` of which `left` exist; the rest of the batch is undefined and must
    /// not be used.
    fn fetch<E: Elem, const LANES: u32, const UNROLL: usize>(
        columns: u64,
        values: u64,
        start: u32,
        left: u32,
        lane: u32,
    ) -> Self::Batch<E>;

    /// Column and value of entry `i` of a batch. Every lane of the segment calls it together.
    fn entry<E: Elem, const LANES: u32>(batch: &Self::Batch<E>, i: u32, members: u32) -> (u32, E::Acc);
}
