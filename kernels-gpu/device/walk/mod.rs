//! Walks: loads of the nonzeros of the sparse operand, one file per format. `fetch` starts the loads of a burst into a
//! [`Burst`] of registers, one burst ahead of its use. `entry` then returns an entry from these registers. All lanes of
//! a segment load the same entries with vector loads (a broadcast), so no shuffle separates an entry's column from the
//! gather that uses it.

mod csr;
mod group_coo;
mod permuted;

use super::elem::{Elem, Raw};
use super::memory::{Global, ReadWrite, buffers};
use crate::abi::{SpmmParams, WalkInfo};

buffers! {
    // The host checks that the columns of A are below `k` and that items, slots and spans describe its entries. It checks
    // the shapes of B and C, and allocates the workspaces for all slots and counters (`host/core/plan`).
    unsafe SpmmParams {
        items: [u32; 4], ReadOnly;
        slots: [u32; 4], ReadOnly;
        spans: [u32; 2], ReadOnly;
        columns: u32, ReadWrite;
        values<E: Elem>: E, ReadWrite;
        b<E: Elem>: E, ReadWrite;
        c<E: Elem>: E, ReadWrite;
        partial<E: Elem>: E::Acc, Fresh;
        counters: u32, Fresh;
    }
}

/// Walk over the entries of one row.
pub trait Walk: WalkInfo {
    /// Number of entries between the aligned position where loads of a row begin and its first entry.
    fn lead(start: u32) -> u32;

    /// Loads entries `at..at + 4` if `first`, and `at + 4..at + 8` if `second`. `at` is a multiple of four.
    #[inline(always)]
    fn fetch<E: Elem>(p: &SpmmParams, at: u64, first: bool, second: bool) -> Burst {
        Burst::load::<E>(p.columns(), p.values(), at, first, second)
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
    pub fn load<E: Elem>(
        columns: Global<u32, ReadWrite>,
        values: Global<E, ReadWrite>,
        at: u64,
        first: bool,
        second: bool,
    ) -> Burst {
        let [v0, v1] = quad(values.at(at), first);
        let [v2, v3] = quad(values.at(at + 4), second);
        let columns = columns.at(at).cast::<[u32; 4]>();
        Burst {
            columns: [columns.ld_once_if(first), columns.at(1u32).ld_once_if(second)],
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
fn quad<E: Elem>(from: Global<E, ReadWrite>, ok: bool) -> [Raw; 2] {
    let four = from.cast::<[u32; 4]>();
    match E::BYTES {
        8 => [four.ld_once_if(ok), four.at(1u32).ld_once_if(ok)],
        4 => [four.ld_once_if(ok), [0; 4]],
        _ => {
            let [a, b] = from.cast::<[u32; 2]>().ld_once_if(ok);
            [[a, b, 0, 0], [0; 4]]
        }
    }
}
