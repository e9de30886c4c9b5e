//! Lists without a matrix: rows of sequences of given lengths, and the choices of each expert.

use super::list::{append, pad};
use crate::device::prelude::*;
use crate::device::strided::{clear, strided};
use crate::families::discover::abi::*;
use crate::families::discover::sequences::rows_before;

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, DetectParams> for DetectLengths {
    #[inline(always)]
    unsafe fn run(p: &DetectParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let (own, thread) = (gpu::block_x(), gpu::thread());
        let (base, count) = rows_before(p.source().cast(), p.rows, p.columns, own);
        strided(thread, count, DETECT_THREADS, |row| {
            p.lists().at(base + row).st(own * p.columns + row);
        });
        if own + 1 == p.rows {
            let all = base + count;
            if thread == 0 {
                p.counts().st(all);
            }
            if all + thread < all.next_multiple_of(DETECT_PAD) {
                p.lists().at(all + thread).st(NO_TILE);
            }
        }
    }
}

/// Choices per thread.
const SHARE: u32 = DETECT_CHOICES / DETECT_THREADS;

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, DetectParams> for DetectChoices {
    #[inline(always)]
    unsafe fn run(p: &DetectParams, _: Maps) {
        grid::launch_dependents();
        let thread = gpu::thread();
        // The number of choices of each expert, then the first list position of each.
        // SAFETY: `DetectChoices` has two words for each of at most `DETECT_CHOICES` experts.
        let counts = unsafe { Shared::<u32>::dynamic(0) };
        let bases = counts.at(DETECT_CHOICES);
        clear(counts, p.panels, DETECT_THREADS);
        gpu::sync_threads();
        grid::wait_dependency();
        let first = gpu::block_x() * DETECT_CHOICES + thread;
        let (mut chosen, mut ranks) = ([NO_TILE; SHARE as usize], [0; SHARE as usize]);
        unroll!(i < 4, {
            let at = first + i as u32 * DETECT_THREADS;
            let inside = at < p.rows;
            let expert = p.source().cast::<u32>().at(at).ld_if(inside);
            if inside && expert < p.panels {
                chosen[i] = expert;
                ranks[i] = counts.at(expert).atom_add(1);
            }
        });
        gpu::sync_threads();
        strided(thread, p.panels, DETECT_THREADS, |expert| {
            let (base, end) = append(p, expert, p.status().at(expert), counts.at(expert).ld());
            bases.at(expert).st(base);
            if end != NO_TILE {
                pad(p, expert, end, (0, 1));
            }
        });
        gpu::sync_threads();
        unroll!(i < 4, {
            if chosen[i] != NO_TILE {
                let base = bases.at(chosen[i]).ld();
                let list = p.lists().at(chosen[i] as u64 * p.stride as u64);
                let at = first + i as u32 * DETECT_THREADS;
                list.at(base + ranks[i]).st(at);
            }
        });
    }
}
