//! Walks: loads of the nonzeros of the sparse operand, one file per format. `fetch` starts the loads of a burst into a
//! [`Burst`] of registers, one burst ahead of its use. `entry` then returns an entry from these registers. All lanes of
//! a segment load the same entries with vector loads (a broadcast), so no shuffle separates an entry's column from the
//! gather that uses it.

mod csr;
mod group_coo;
mod permuted;

use super::elem::{Elem, Raw};
use super::ptx::global;
use crate::abi::{SpmmParams, WalkInfo};

/// Walk over the entries of one row.
pub trait Walk: WalkInfo {
    /// Number of entries between the aligned position where loads of a row begin and its first entry.
    fn lead(start: u32) -> u32;

    /// Loads entries `at..at + 4` if `first`, and `at + 4..at + 8` if `second`. `at` is a multiple of four.
    #[inline(always)]
    fn fetch<E: Elem>(p: &SpmmParams, at: u64, first: bool, second: bool) -> Burst {
        Burst::load::<E>(p.columns, p.values, at, first, second)
    }

    /// Column and value of entry `i` of the burst; `exists` is true if the entry belongs to the row. `i` is a constant
    /// after unrolling.
    #[inline(always)]
    fn entry<E: Elem>(_: &SpmmParams, burst: &Burst, i: usize, _exists: bool) -> (u32, E::Acc) {
        burst.entry::<E>(i)
    }
}

/// Registers of a burst, up to eight entries: columns, and values as stored in memory (f64 fills all four vectors). For
/// [`Permuted`](crate::abi::Permuted), `values` holds pairs of column and position, and `columns` is unused.
#[derive(Clone, Copy)]
pub struct Burst {
    columns: [Raw; 2],
    values: [Raw; 4],
}

impl Burst {
    /// Loads entries `at..at + 4` if `first`, and `at + 4..at + 8` if `second`; others are zero. `at` is a multiple of
    /// four.
    #[inline(always)]
    pub fn load<E: Elem>(columns: u64, values: u64, at: u64, first: bool, second: bool) -> Burst {
        let [v0, v1] = quad::<E>(values, at, first);
        let [v2, v3] = quad::<E>(values, at + 4, second);
        Burst {
            columns: [
                global::ld_no_allocate_v4(columns + at * 4, first),
                global::ld_no_allocate_v4(columns + at * 4 + 16, second),
            ],
            values: [v0, v1, v2, v3],
        }
    }

    /// Column and value of entry `i` of the burst; `i` is a constant after unrolling.
    #[inline(always)]
    pub fn entry<E: Elem>(&self, i: usize) -> (u32, E::Acc) {
        let (half, j) = ((i / 4) & 1, i & 3);
        let value = match E::BYTES {
            8 => E::get(&self.values[(half * 2 + j / 2) & 3], j % 2),
            _ => E::get(&self.values[half * 2], j),
        };
        (self.columns[half][j], value)
    }
}

/// Values of four entries.
#[inline(always)]
fn quad<E: Elem>(values: u64, at: u64, ok: bool) -> [Raw; 2] {
    let from = values + at * E::BYTES as u64;
    match E::BYTES {
        8 => [global::ld_no_allocate_v4(from, ok), global::ld_no_allocate_v4(from + 16, ok)],
        4 => [global::ld_no_allocate_v4(from, ok), [0; 4]],
        _ => {
            let [a, b] = global::ld_no_allocate_v2(from, ok);
            [[a, b, 0, 0], [0; 4]]
        }
    }
}
