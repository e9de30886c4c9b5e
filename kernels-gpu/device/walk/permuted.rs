//! Walk over a transposed pattern: pairs of column and position, two per load of 16 bytes. The column selects a row of
//! B. The position is the index of the value in the stored matrix. Values are not transposed. They are gathered by
//! position together with the rows of B, and arrive no later than those.

use super::{Burst, Walk};
use crate::abi::{Permuted, SpmmParams};
use crate::device::elem::Elem;
use crate::device::memory::ReadOnly;

impl Walk for Permuted {
    #[inline(always)]
    fn lead(start: u32) -> u32 {
        start & 3
    }

    #[inline(always)]
    fn fetch<E: Elem>(p: &SpmmParams, at: u64, first: bool, second: bool) -> Burst {
        // SAFETY: the plan made the pairs from the pattern. No kernel writes them.
        let pairs = unsafe { p.columns().with::<ReadOnly>() };
        let from = pairs.bytes(at * 8).cast::<[u32; 4]>();
        Burst {
            columns: [[0; 4]; 2],
            values: [
                from.ld_once_if(first),
                from.at(1u32).ld_once_if(first),
                from.at(2u32).ld_once_if(second),
                from.at(3u32).ld_once_if(second),
            ],
        }
    }

    #[inline(always)]
    fn entry<E: Elem>(p: &SpmmParams, burst: &Burst, i: usize, exists: bool) -> (u32, E::Acc) {
        let pair = &burst.values[(i / 2) & 3];
        let (column, position) = (pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
        let raw = p.values::<E>().at(position).ld_raw::<1>(exists);
        (column, E::get(&raw, 0))
    }
}
