//! Row of every entry from offsets, and offsets from rows. `EntryRows`: a thread has eight adjacent entries. The thread
//! block marks row starts in shared memory, and a running maximum gives every entry its row. `EntryOffsets`: a warp has
//! 256 adjacent entries. A thread starts eight loads before it uses the first. An entry stores its position as the
//! start of each row after the row of the previous entry, up to its own row.

use super::{lane, mark_starts, own_marks, row_at, scan_max};
use crate::device::prelude::*;
use crate::families::convert::abi::*;

impl<W: WalkInfo, E: Elem> Kernel<W, E, EntriesParams> for EntryRows {
    #[inline(always)]
    unsafe fn run(p: &EntriesParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let count = p.offsets().at(p.m).ld().min(p.capacity);
        let start = gpu::block_x() * ENTRY_TILE;
        if start >= count {
            return;
        }
        let end = start + (count - start).min(ENTRY_TILE);
        let first = row_at(p.offsets(), p.m, start);
        mark_starts(p, first, start, end);
        let mut rows = own_marks();
        let mut largest = 0;
        unroll!(i < 8, {
            largest = largest.max(rows[i / 4][i % 4]);
        });
        // Entries before the first mark belong to the row in which the tile begins.
        let mut current = scan_max(largest).max(first + 1);
        unroll!(i < 8, {
            current = current.max(rows[i / 4][i % 4]);
            rows[i / 4][i % 4] = current - 1;
        });
        unroll!(half < 2, {
            let at = start + gpu::thread() * 8 + half as u32 * 4;
            if at < end && end - at >= 4 {
                p.rows().at(at).cast::<[u32; 4]>().st(rows[half]);
            } else {
                unroll!(i < 4, {
                    if at < end && (i as u32) < end - at {
                        p.rows().at(at as u64 + i as u64).st(rows[half][i]);
                    }
                });
            }
        });
    }
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, EntriesParams> for EntryOffsets {
    /// Position `count`, after the last entry, is treated as an entry of row m: it writes the remaining offsets.
    #[inline(always)]
    unsafe fn run(p: &EntriesParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let base = gpu::block_x() as u64 * ENTRY_TILE as u64 + (gpu::thread() / 32 * 256) as u64;
        let mut keys = [0u32; 8];
        let mut before = [0u32; 8];
        unroll!(i < 8, {
            let at = base + i as u64 * 32 + lane() as u64;
            let key = p.keys().at(at).ld_if(at < p.count as u64);
            keys[i] = if at < p.count as u64 { key } else { p.m };
            let valid = at > 0 && at <= p.count as u64;
            // Offsets up to the row of the previous entry are already written: `before` is that row + 1, or 0.
            let prior = p.keys().wrapping_at(at.wrapping_sub(1)).ld_if(valid);
            before[i] = if valid { prior + 1 } else { 0 };
        });
        unroll!(i < 8, {
            let at = base + i as u64 * 32 + lane() as u64;
            let inside = at <= p.count as u64;
            let end = if inside { keys[i].min(p.m) + 1 } else { 0 };
            let gap = end.saturating_sub(before[i]);
            let wide = gap > 8;
            let mut row = before[i];
            while !wide && row < end {
                p.starts().at(row).st(at as u32);
                row += 1;
            }
            let mut left = warp::ballot(wide);
            while left != 0 {
                let source = left.trailing_zeros();
                let of = |value: u32| warp::shfl(value, source);
                let (first, last, value) = (of(before[i]), of(end), of(at as u32));
                let mut row = first as u64 + lane() as u64;
                while row < last as u64 {
                    p.starts().at(row).st(value);
                    row += 32;
                }
                left &= left - 1;
            }
        });
    }
}
