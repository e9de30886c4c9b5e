//! Walk over a transposed pattern: pairs of column and position, two per load of 16 bytes. The column selects a row of
//! B. The position is the index of the value in the stored matrix. Values are not transposed. They are gathered by
//! position together with the rows of B, and arrive no later than those.

use super::{Burst, Walk};
use crate::abi::{Permuted, SpmmParams};
use crate::device::elem::Elem;
use crate::device::ptx::global;

impl Walk for Permuted {
    #[inline(always)]
    fn lead(start: u32) -> u32 {
        start & 3
    }

    #[inline(always)]
    fn fetch<E: Elem>(p: &SpmmParams, at: u64, first: bool, second: bool) -> Burst {
        let from = p.columns + at * 8;
        Burst {
            columns: [[0; 4]; 2],
            values: [
                global::ld_nc_no_allocate_v4(from, first),
                global::ld_nc_no_allocate_v4(from + 16, first),
                global::ld_nc_no_allocate_v4(from + 32, second),
                global::ld_nc_no_allocate_v4(from + 48, second),
            ],
        }
    }

    #[inline(always)]
    fn entry<E: Elem>(p: &SpmmParams, burst: &Burst, i: usize, exists: bool) -> (u32, E::Acc) {
        let pair = &burst.values[(i / 2) & 3];
        let (column, position) = (pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
        let raw = E::ld_global::<1>(p.values + position as u64 * E::BYTES as u64, exists);
        (column, E::get(&raw, 0))
    }
}
