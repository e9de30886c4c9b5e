//! Rows that start anywhere: each lane loads one entry, coalesced; entries go round by shuffle.

use super::Walk;
use crate::abi::Csr;
use crate::device::elem::Elem;
use crate::device::ptx::{global, warp};

impl Walk for Csr {
    const ONE_BURST: bool = false;
    type Batch<E: Elem> = (u32, E::Acc);

    #[inline(always)]
    fn batch_len<const LANES: u32, const UNROLL: usize>() -> u32 {
        const { assert!(UNROLL as u32 <= LANES, "a batch holds one entry per lane") };
        LANES
    }

    #[inline(always)]
    fn fetch<E: Elem, const LANES: u32, const UNROLL: usize>(
        columns: u64,
        values: u64,
        start: u32,
        left: u32,
        lane: u32,
    ) -> Self::Batch<E> {
        let ok = lane < left;
        let at = start as u64 + lane as u64;
        let column = global::load_b32(columns + at * 4, ok);
        let value = E::load::<1>(values + at * E::BYTES as u64, ok);
        (column, E::get(&value, 0))
    }

    #[inline(always)]
    fn entry<E: Elem, const LANES: u32>(batch: &Self::Batch<E>, i: u32, members: u32) -> (u32, E::Acc) {
        let column = warp::shuffle::<LANES>(batch.0, i, members);
        let [lo, hi] = E::words(batch.1);
        let lo = warp::shuffle::<LANES>(lo, i, members);
        let hi = if E::ACC_BYTES == 8 { warp::shuffle::<LANES>(hi, i, members) } else { 0 };
        (column, E::from_words([lo, hi]))
    }
}
