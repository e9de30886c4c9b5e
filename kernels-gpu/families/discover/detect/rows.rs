//! Lists without a matrix: rows of sequences of given lengths, and the choices of each expert.

use crate::device::prelude::*;
use crate::families::discover::abi::*;
use crate::families::discover::sequences::rows_before;

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, DetectParams> for DetectLengths {
    #[inline(always)]
    unsafe fn run(p: &DetectParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let (own, thread) = (gpu::block_x(), gpu::thread());
        let (base, count) = rows_before(p.source().cast(), p.rows, p.columns, own);
        let mut row = thread;
        while row < count {
            p.lists().at(base + row).st(own * p.columns + row);
            row += DETECT_THREADS;
        }
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
        let counter = |expert: u32| copy::dynamic_shared() + expert * 8;
        let mut expert = thread;
        while expert < p.panels {
            copy::st_shared_b32(counter(expert), 0);
            expert += DETECT_THREADS;
        }
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
                ranks[i] = copy::atom_shared_add(counter(expert), 1);
            }
        });
        gpu::sync_threads();
        let mut expert = thread;
        while expert < p.panels {
            Self::append(p, expert, counter(expert));
            expert += DETECT_THREADS;
        }
        gpu::sync_threads();
        unroll!(i < 4, {
            if chosen[i] != NO_TILE {
                let base = copy::ld_shared_b32(counter(chosen[i]) + 4);
                let list = p.lists().at(chosen[i] as u64 * p.stride as u64);
                let at = first + i as u32 * DETECT_THREADS;
                list.at(base + ranks[i]).st(at);
            }
        });
    }
}

impl DetectChoices {
    /// Reserves list positions of an expert for this thread block's choices, and finishes the list if this is the last
    /// one.
    #[inline(always)]
    fn append(p: &DetectParams, expert: u32, counter: u32) {
        let count = copy::ld_shared_b32(counter);
        let status = p.status().at(expert);
        let before = status.atom_add((1 << 32) + count as u64);
        let base = before as u32;
        copy::st_shared_b32(counter + 4, base);
        if (before >> 32) as u32 + 1 == p.parts {
            let all = base + count;
            p.counts().at(expert).st(all);
            status.st_relaxed(0);
            let list = p.lists().at(expert as u64 * p.stride as u64);
            let mut at = all;
            while at < all.next_multiple_of(DETECT_PAD) {
                list.at(at).st(NO_TILE);
                at += 1;
            }
        }
    }
}
