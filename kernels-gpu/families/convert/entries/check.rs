//! Rules of CSR: offsets start at 0, never descend and end at the number of entries; columns are in range and ascend in
//! a row. For any content of the arrays, no address outside of them is read.

use super::{mark_starts, own_marks, row_at};
use crate::device::prelude::*;
use crate::families::convert::abi::*;

impl<W: WalkInfo, E: Elem> Kernel<W, E, EntriesParams> for CheckEntries {
    #[inline(always)]
    unsafe fn run(p: &EntriesParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let start = gpu::block_x() * ENTRY_TILE;
        offsets(p, start);
        if start >= p.count {
            return;
        }
        let end = start + (p.count - start).min(ENTRY_TILE);
        let first = if p.m == 0 { 0 } else { row_at(p.offsets(), p.m, start) };
        mark_starts(p, first, start, end);
        let marks = own_marks();
        let at = start + gpu::thread() * 8;
        let column = |at: u32| p.columns().at(at).ld_if(at < end);
        let mut before = if at > 0 && at < end { column(at - 1) } else { 0 };
        let mut bad = u32::MAX;
        unroll!(i < 8, {
            let at = at + i as u32;
            let own = column(at);
            let starts = at == 0 || marks[i / 4][i % 4] != 0;
            let wrong = own >= p.k || !starts && own <= before;
            if at < end && wrong {
                bad = bad.min(at);
            }
            before = own;
        });
        if bad != u32::MAX {
            p.report().at(1u32).red_min(bad);
        }
    }
}

/// Checks offsets `start..start + ENTRY_TILE`, each against the previous one.
#[inline(always)]
fn offsets(p: &EntriesParams, start: u32) {
    unroll!(i < 8, {
        let at = start + i as u32 * SCAN_THREADS + gpu::thread();
        let own = p.offsets().at(at).ld_if(at <= p.m);
        let prior = p.offsets().at(at).wrapping_at(-1i64 as u64).ld_if(at > 0 && at <= p.m);
        let wrong = own < prior || at == 0 && own != 0 || at == p.m && own != p.count;
        if at <= p.m && wrong {
            p.report().red_min(at);
        }
    });
}
