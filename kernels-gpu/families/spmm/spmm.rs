//! SpMM on CUDA cores. A *segment* is `LANES` adjacent lanes of a warp. Each lane owns `REP` vectors of `VEC` columns
//! of C. `SPLIT` segments, the *parts*, share a work item: a row of A, a piece of a split row, or (with one part) a
//! bundle of short rows. A *burst* is `UNROLL` entries. All lanes of a segment load the same entries. Each lane loads
//! its own columns of the rows of B.
//!
//! ```text
//! entries of burst j+1     global -> registers   loads start before those of B; used one burst later
//! rows of B of burst j     global -> registers   UNROLL rows start before the first multiplication
//! value * row of B         registers             waits for the rows of B; sums in entry order
//! parts (SPLIT > 1)        registers -> shared   one barrier of the thread block, then part 0 adds them in order
//! row, row of a bundle     registers -> global   epilogue, C
//! piece of a split row     registers -> global   slot of the workspace; the last piece to arrive adds all slots
//! ```
//!
//! The loads of B of one segment are hidden by other warps of the multiprocessor only. Segments wait for each other
//! only if `SPLIT` > 1. Sub-warp tiling, aligned loads and row swizzle follow Sputnik (arXiv 2006.10901, section 5).

use crate::device::epilogue::{finish, row_bias, scale};
use crate::device::prelude::*;
use crate::device::split_k::fix_up_row;
use crate::device::walk::{Burst, Walk};
use crate::families::spmm::abi::*;

type Acc<E, const VEC: usize, const REP: usize> = [[<E as Elem>::Acc; VEC]; REP];

impl<W: Walk, E: Elem, const VEC: usize, const REP: usize, F: SubWarpForm> Kernel<W, E, SpmmParams>
    for SubWarp<VEC, REP, F>
{
    #[inline(always)]
    unsafe fn run(p: &SpmmParams, _at: Maps) {
        grid::launch_dependents();
        let lane = gpu::thread() % F::LANES;
        let part = gpu::thread() / F::LANES % F::SPLIT;
        let index = gpu::block_x() * Self::ITEMS + gpu::thread() / (F::LANES * F::SPLIT);
        let inside = index < p.item_count;
        // With one part no thread waits for another. With several, every thread must reach the barrier.
        if F::SPLIT == 1 && !inside {
            return;
        }
        // The plan's lists are read while the previous kernel ends (PDL); operands are read only after
        // `wait_dependency`.
        let [row, start, len, slot] = p.items().at(index).ld_once_if(inside);
        let column = gpu::block_y() * Self::COLUMNS + lane * VEC as u32;
        if F::SPLIT == 1 && F::THREADS == BUNDLED_THREADS && slot == BUNDLE {
            return Self::bundle::<W, E>(p, row, len, column);
        }
        grid::wait_dependency();
        let mut acc = Self::gather::<W, E>(p, start, len, part, column);
        if F::SPLIT > 1 {
            Self::join::<E>(part, &mut acc);
            if part > 0 || !inside {
                return;
            }
        }
        if slot == WHOLE_ROW || Self::fix_up::<E>(p, slot, [lane, column], &mut acc) {
            Self::store::<E>(p, row, len, column, &acc);
        }
    }
}

/// Entries of a work item, or of one row of a bundle: the aligned position where loads begin, and the range of the
/// loaded entries that are valid.
#[derive(Clone, Copy)]
struct Run {
    /// Aligned position at or before the first entry. The positions in `lead` and `end` count from here.
    base: u64,
    /// Position of the first entry.
    lead: u32,
    /// One past the position of the last entry.
    end: u32,
}

impl Run {
    #[inline(always)]
    fn new<W: Walk>(start: u32, len: u32) -> Run {
        let lead = W::lead(start);
        Run { base: start as u64 - lead as u64, lead, end: lead + len }
    }

    /// Starts the loads of the burst at `at`, four entries each. Fours past the end are not loaded.
    #[inline(always)]
    fn fetch<W: Walk, E: Elem, F: SubWarpForm>(&self, p: &SpmmParams, at: u32) -> Burst {
        let second = F::UNROLL > 4 && at + 4 < self.end;
        let from = self.base + at as u64;
        W::fetch::<E>(p, from, at < self.end, second)
    }
}

impl<const VEC: usize, const REP: usize, F: SubWarpForm> SubWarp<VEC, REP, F> {
    /// Returns the sum over the item's entries of value x row of B, in entry order. This part processes every `SPLIT`th
    /// burst. The entries of its next burst are loaded before the rows of B of the current one.
    #[inline(always)]
    fn gather<W: Walk, E: Elem>(
        p: &SpmmParams,
        start: u32,
        len: u32,
        part: u32,
        column: u32,
    ) -> Acc<E, VEC, REP> {
        let run = Run::new::<W>(start, len);
        let mut acc = [[E::ZERO; VEC]; REP];
        let mut at = part * F::UNROLL as u32;
        let mut next = run.fetch::<W, E, F>(p, at);
        while at < run.end {
            let burst = next;
            next = run.fetch::<W, E, F>(p, at + F::UNROLL as u32 * F::SPLIT);
            Self::burst::<W, E>(p, &burst, run, at, column, &mut acc);
            at += F::UNROLL as u32 * F::SPLIT;
        }
        acc
    }

    /// Processes `left` consecutive rows, starting at `row`. As in [`Self::gather`], the entries of the next burst are
    /// loaded before the rows of B of this one, also if they belong to the next row. The span of a row (first entry,
    /// number of entries) is loaded two rows ahead. A short row therefore adds no wait.
    #[inline(always)]
    fn bundle<W: Walk, E: Elem>(p: &SpmmParams, mut row: u32, mut left: u32, column: u32) {
        let span = |row: u32, ok: bool| p.spans().at(row).ld_if(ok);
        let [start, mut len] = span(row, true);
        let mut ahead = span(row + 1, left > 1);
        grid::wait_dependency();
        let mut run = Run::new::<W>(start, len);
        let mut acc = [[E::ZERO; VEC]; REP];
        let mut at = 0;
        let mut next = run.fetch::<W, E, F>(p, 0);
        loop {
            let (burst, own, from, entries) = (next, run, at, len);
            at += F::UNROLL as u32;
            let done = at >= own.end;
            if done {
                // There is no next span after the last row: the span is empty, and nothing is loaded.
                len = ahead[1];
                run = Run::new::<W>(ahead[0], len);
                ahead = [0; 2];
                at = 0;
            }
            ahead = p.spans().at(row + 2).ld_or(ahead, done && left > 2);
            next = run.fetch::<W, E, F>(p, at);
            Self::burst::<W, E>(p, &burst, own, from, column, &mut acc);
            if done {
                Self::store::<E>(p, row, entries, column, &acc);
                left -= 1;
                if left == 0 {
                    return;
                }
                acc = [[E::ZERO; VEC]; REP];
                row += 1;
            }
            // All lanes reach the loop head by one path. With two paths, segments of a warp would wait for each other
            // at every row.
            at = warp::opaque(at);
        }
    }

    /// Adds value x row of B for the entries of one burst, in entry order.
    #[inline(always)]
    fn burst<W: Walk, E: Elem>(
        p: &SpmmParams,
        burst: &Burst,
        run: Run,
        at: u32,
        column: u32,
        acc: &mut Acc<E, VEC, REP>,
    ) {
        const { assert!(matches!(F::UNROLL, 4 | 8)) };
        match F::UNROLL {
            4 => Self::burst_of::<W, E, 4>(p, burst, run, at, column, acc),
            _ => Self::burst_of::<W, E, 8>(p, burst, run, at, column, acc),
        }
    }

    /// [`Self::burst`] of `UNROLL` entries. All rows are loaded before the first multiplication.
    #[inline(always)]
    fn burst_of<W: Walk, E: Elem, const UNROLL: usize>(
        p: &SpmmParams,
        burst: &Burst,
        run: Run,
        at: u32,
        column: u32,
        acc: &mut Acc<E, VEC, REP>,
    ) {
        let b = p.b::<E>().at(column);
        let mut raw = [[[0u32; 4]; REP]; UNROLL];
        let mut value = [E::ZERO; UNROLL];
        unroll!(u < UNROLL, {
            let exists = at + (u as u32) >= run.lead && at + (u as u32) < run.end;
            let (col, v) = W::entry::<E>(p, burst, u, exists);
            value[u] = if exists { v } else { E::ZERO };
            let from = b.row(col, p.ldb_bytes);
            unroll!(r < REP, {
                let shift = r as u32 * F::LANES * VEC as u32;
                let ok = exists && column + shift < p.n;
                raw[u][r] = from.at(shift).ld_raw::<VEC>(ok);
            });
        });
        unroll!(u < UNROLL, {
            unroll!(r < REP, {
                unroll!(i < VEC, {
                    acc[r][i] = E::fma(value[u], E::get(&raw[u][r], i), acc[r][i]);
                });
            });
        });
    }

    /// Applies the epilogue to a row of `entries` entries and stores it.
    #[inline(always)]
    fn store<E: Elem>(p: &SpmmParams, row: u32, entries: u32, column: u32, acc: &Acc<E, VEC, REP>) {
        let output = p.output();
        if p.flags == 0 {
            let alpha = scale::<E>(output, entries);
            let c = p.c::<E>().row(row, p.ldc_bytes);
            unroll!(r < REP, {
                let column = column + r as u32 * F::LANES * VEC as u32;
                let mut out = acc[r];
                unroll!(i < VEC, { out[i] = E::fma(alpha, acc[r][i], E::ZERO) });
                if column < p.n {
                    c.at(column).st_rounded(&out);
                }
            });
            return;
        }
        // An empty row with `+=` alone adds nothing: C is neither read nor written.
        if p.flags == FLAG_ACCUMULATE && entries == 0 {
            return;
        }
        let factors = (scale::<E>(output, entries), row_bias::<E>(output, row));
        unroll!(r < REP, {
            let column = column + r as u32 * F::LANES * VEC as u32;
            finish::<E, VEC>(output, row, column, factors, acc[r]);
        });
    }

    /// Adds the parts of an item, in order, through shared memory. Part 0 keeps its sums in registers and adds those of
    /// the others. One barrier separates their stores from its loads.
    #[inline(always)]
    fn join<E: Elem>(part: u32, acc: &mut Acc<E, VEC, REP>) {
        // SAFETY: the host launches with `shared_bytes`, the sums of all threads.
        let sums = unsafe { Shared::<E::Acc>::dynamic(0) };
        // Consecutive words of one thread are `THREADS` words apart, so neighbouring threads use different banks.
        let thread = |part: u32, i: u32| {
            let t = gpu::thread() / (F::LANES * F::SPLIT) * (F::LANES * F::SPLIT)
                + part * F::LANES
                + gpu::thread() % F::LANES;
            sums.at(i * F::THREADS + t)
        };
        if part > 0 {
            unroll!(r < REP, {
                unroll!(i < VEC, { thread(part, (r * VEC + i) as u32).st(acc[r][i]) });
            });
        }
        gpu::sync_threads();
        if part == 0 {
            let mut other = 1;
            while other < F::SPLIT {
                unroll!(r < REP, {
                    unroll!(i < VEC, {
                        let more = thread(other, (r * VEC + i) as u32).ld();
                        acc[r][i] = E::add(acc[r][i], more);
                    });
                });
                other += 1;
            }
        }
    }

    /// Split-K fix-up of a piece of a row.
    #[inline(always)]
    fn fix_up<E: Elem>(
        p: &SpmmParams,
        slot: u32,
        [lane, column]: [u32; 2],
        acc: &mut Acc<E, VEC, REP>,
    ) -> bool {
        const { assert!(matches!(F::LANES, 4 | 8 | 16 | 32)) };
        // Load as many slots at once as registers hold, because each load takes a trip through L2.
        let at_once = (16 / (VEC * REP)).clamp(1, 4);
        fix_up_row::<E, VEC, REP>(
            p,
            (slot, column),
            [lane, F::LANES],
            acc,
            at_once,
            E::ZERO,
            E::add,
        )
    }
}
