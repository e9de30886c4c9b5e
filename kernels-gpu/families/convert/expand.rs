//! Sparse matrix to dense. A warp stores the entries of a few groups of elements into zeroed shared memory, and writes
//! whole lines.

use crate::abi::{STRIP_HEAD, STRIP_SLOTS, STRIP_STEP, strip_word};
use crate::device::prelude::*;
use crate::device::scan::inclusive;
use crate::families::convert::abi::*;

buffers! {
    // `host/core/families/convert/expand.rs` allocates places, starts, heads and lists for the pattern
    // that `Placed` describes. Callers of `Expand::new` allocate the dense matrix.
    unsafe ExpandParams {
        columns: u32, ReadOnly;
        spans: [u32; 2], ReadOnly;
        values: u8, ReadOnly;
        places: u8, ReadWrite;
        starts: u32, ReadWrite;
        out: u8, ReadWrite;
        heads: u32, Fresh;
    }
}

/// Returns the first of the entries `low..high` of a row at or after column `column`.
#[inline(always)]
fn lower_bound(
    columns: Global<u32, ReadOnly>,
    (mut low, mut high): (u32, u32),
    column: u32,
) -> u32 {
    while low < high {
        let middle = low + (high - low) / 2;
        if columns.at(middle).ld() < column {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Computes one first entry and one word of positions per thread.
#[inline(always)]
fn place(p: &ExpandParams) {
    let own = gpu::block_x() * Expand::<EXPAND_PLACES>::THREADS + gpu::thread();
    // After the groups of a row, its end is stored.
    let row = own.checked_div(p.row_groups.value + 1).unwrap_or(0);
    if row < p.rows {
        let of_row = own - row * (p.row_groups.value + 1);
        let end = of_row == p.row_groups.value;
        let column = if end { u32::MAX } else { of_row * p.group };
        let [start, len] = p.spans().at(row).ld();
        let first = lower_bound(p.columns(), (start, start + len), column);
        p.starts().at(own).st(first);
    }
    let first = own as u64 * 4;
    if first < p.entries as u64 {
        let mut word = 0;
        unroll!(i < 4, {
            let at = first + i as u64;
            let column = p.columns().at(at).ld_if(at < p.entries as u64);
            word |= (column & (p.group - 1)) << (8 * i);
        });
        p.places().at(first).cast::<u32>().st(word);
    }
}

/// First entry and end of each group that a warp has in flight, from group `first` on.
type Spans = [[u32; 2]; GROUPS_AT_ONCE];

#[inline(always)]
fn spans(p: &ExpandParams, first: u32) -> Spans {
    let mut spans = [[0; 2]; GROUPS_AT_ONCE];
    unroll!(i < GROUPS_AT_ONCE, {
        let group = first + i as u32;
        let (row, _) = p.row_groups.of(group);
        // SAFETY: the launch of `place` ended before this one started.
        let starts = unsafe { p.starts().with::<ReadOnly>() };
        let at = starts.at(group as u64 + row as u64);
        let inside = group < p.groups;
        spans[i] = [at.ld_if(inside), at.at(1u32).ld_if(inside)];
    });
    spans
}

/// Stores up to 128 entries of each group to shared memory, from `base` entries after its first. A lane has two
/// neighboring entries, the first with an even index.
#[inline(always)]
fn lay<E: ElemInfo>(p: &ExpandParams, spans: &Spans, base: u32, tile: Shared<[u32; 4]>) {
    let bytes = E::DTYPE.bytes() as u32;
    let lane = gpu::thread() % 32;
    let entry = |i: usize, j: usize| (spans[i][0] & !1) + base + j as u32 * 64 + lane * 2;
    let mut places = [[0; 2]; GROUPS_AT_ONCE];
    let mut values = [[[0; 2]; 2]; GROUPS_AT_ONCE];
    unroll!(i < GROUPS_AT_ONCE, {
        unroll!(j < 2, {
            let at = entry(i, j) as u64;
            let inside = entry(i, j) < spans[i][1];
            // SAFETY: the launch of `place` ended before this one started.
            let of_groups = unsafe { p.places().with::<ReadOnly>() };
            places[i][j] = of_groups.at(at).cast::<u16>().ld_if(inside);
            let from = p.values().cast::<E>().at(at);
            values[i][j] = if bytes == 2 {
                let both = from.cast::<u32>().ld_if(inside);
                [both, both >> 16]
            } else {
                from.cast::<[u32; 2]>().ld_if(inside)
            };
        });
    });
    unroll!(i < GROUPS_AT_ONCE, {
        unroll!(j < 2, {
            let of_group = tile.bytes(i as u32 * GROUP_BYTES).cast::<E>();
            let store = |half: u32, value: u32| {
                let to = of_group.at(places[i][j] >> (8 * half) & 0xff);
                let own = entry(i, j) + half;
                if own >= spans[i][0] && own < spans[i][1] {
                    if bytes == 2 {
                        to.cast::<u16>().st(value);
                    } else {
                        to.cast::<u32>().st(value);
                    }
                }
            };
            store(0, values[i][j][0]);
            store(1, values[i][j][1]);
        });
    });
}

#[inline(always)]
fn write<E: ElemInfo>(p: &ExpandParams) {
    let lane = gpu::thread() % 32;
    let warp = gpu::thread() / 32 * GROUPS_AT_ONCE as u32;
    let items = Expand::<EXPAND_VALUES>::ITEMS;
    let mut first = gpu::block_x() * items + warp;
    // SAFETY: a thread block of `EXPAND_VALUES` has `GROUP_BYTES` for each of its `ITEMS` groups.
    let tile = unsafe { Shared::<[u32; 4]>::dynamic(0) }.bytes(warp * GROUP_BYTES);
    let mut own = spans(p, first);
    while first < p.groups {
        let (next, mut longest) = (spans(p, first + gpu::grid_x() * items), 0);
        unroll!(i < GROUPS_AT_ONCE, {
            tile.bytes(i as u32 * GROUP_BYTES).at(lane).st([0; 4]);
            let entries = own[i][1] - (own[i][0] & !1);
            longest = if entries > longest { entries } else { longest };
        });
        warp::sync(u32::MAX);
        let mut base = 0;
        while base < longest {
            lay::<E>(p, &own, base, tile);
            base += 128;
        }
        warp::sync(u32::MAX);
        unroll!(i < GROUPS_AT_ONCE, {
            let group = first + i as u32;
            let (row, of_row) = p.row_groups.of(group);
            let at = of_row as u64 * GROUP_BYTES as u64 + lane as u64 * 16;
            let words = tile.bytes(i as u32 * GROUP_BYTES).at(lane).ld();
            if group < p.groups && at < p.row_bytes {
                p.out().row(row, p.row_bytes).bytes(at).cast::<[u32; 4]>().st(words);
            }
        });
        own = next;
        first += gpu::grid_x() * items;
    }
}

/// Rows of a row block, one per lane.
#[derive(Clone, Copy)]
struct Strip {
    number: u32,
    /// First entry of the row in each stage.
    starts: Global<u32, ReadOnly>,
    there: bool,
    /// First slot and end of the row block.
    slots: [u32; 2],
}

impl Strip {
    /// Row block of this warp.
    #[inline(always)]
    fn own(p: &ExpandParams) -> Self {
        let number = gpu::block_x() * Expand::<EXPAND_STRIPS>::ITEMS + gpu::thread() / 32;
        let lane = gpu::thread() % 32;
        let row = number * p.strip + lane;
        let there = lane < p.strip && row < p.rows;
        // SAFETY: the launch of `place` ended before this one started.
        let starts = unsafe { p.starts().with::<ReadOnly>() };
        let starts = starts.at(row as u64 * (p.deal.stages as u64 + 1));
        let first = starts.ld_if(there);
        let end = starts.at(p.deal.stages).ld_if(there);
        let last = warp::max(if end > first { end } else { 0 });
        // Rows without entries are ignored. A row block without entries has an empty range.
        let first = warp::min(if end > first { first } else { last });
        Strip { number, starts, there, slots: [first, last] }
    }

    /// Returns the row's entries in a stage: their number in all rows up to this one, and the end of this row.
    #[inline(always)]
    fn stage(self, stage: u32) -> [u32; 2] {
        let at = self.starts.at(stage);
        let first = at.ld_if(self.there);
        let end = at.at(1u32).ld_if(self.there);
        [inclusive(end - first), end]
    }

    /// Writes the steps of a stage from `to` on, one entry of a step per lane.
    #[inline(always)]
    fn list(self, p: &ExpandParams, [ends, end]: [u32; 2], total: u32, to: Global<u32, ReadWrite>) {
        let lane = gpu::thread() % 32;
        let mut from = 0;
        while from < total {
            warp::nounroll();
            let own = (from + lane).min(total - 1);
            // Binary search for the first row that ends after entry `own`.
            let mut of = 0;
            unroll!(i < 5, {
                let half = 16 >> i;
                let ahead = warp::shfl(ends, of + half - 1);
                of += if ahead <= own { half } else { 0 };
            });
            let behind = warp::shfl(ends, of) - own;
            let slot = warp::shfl(end, of) - behind;
            // SAFETY: the launch of `place` ended before this one started.
            let column = unsafe { p.places().with::<ReadOnly>() }.at(slot).ld();
            let word = strip_word(slot - self.slots[0], of, column);
            to.at(from + lane).st(word);
            from += STRIP_STEP;
        }
    }
}

/// Writes the lists of a row block, one warp each. If `room` is 0, only finds the steps of the longest list.
#[inline(always)]
fn list(p: &ExpandParams) {
    let strip = Strip::own(p);
    let first = gpu::thread() % 32 == 0;
    let mut longest = 0;
    let mut part = 0;
    while part < p.deal.parts {
        warp::nounroll();
        let from = p.deal.start(part);
        let count = p.deal.start(part + 1) - from;
        let mut turn = 0;
        while turn < p.deal.turns {
            warp::nounroll();
            let list = p.deal.list(strip.number, part, turn) as u64;
            let head = p.heads().at(list * p.deal.head() as u64);
            let words = p.out().cast::<u32>().at(list * p.room as u64 * STRIP_STEP as u64);
            let mut ends = head.at(STRIP_HEAD);
            let mut steps = 0;
            let mut stage = turn;
            while stage < count {
                warp::nounroll();
                let rows = strip.stage(from + stage);
                let total = warp::shfl(rows[0], 31);
                if p.room > 0 {
                    let to = words.at(steps as u64 * STRIP_STEP as u64);
                    strip.list(p, rows, total, to);
                }
                steps += total.div_ceil(STRIP_STEP);
                if p.room > 0 && first {
                    ends.st(steps);
                }
                ends = ends.at(1u32);
                stage += p.deal.turns;
            }
            if p.room > 0 && first {
                let [from, to] = strip.slots;
                head.st(from);
                head.at(1u32).st(to - from);
                head.at(2u32).st(steps);
            }
            longest = if steps > longest { steps } else { longest };
            turn += 1;
        }
        part += 1;
    }
    if p.room == 0 && first {
        let [from, to] = strip.slots;
        // A row block with more slots than a word can count is never listed.
        let counted = to - from <= STRIP_SLOTS;
        p.heads().red_max(if counted { longest } else { u32::MAX });
    }
}

impl<W: WalkInfo, E: ElemInfo, const STEP: u32> Kernel<W, E, ExpandParams> for Expand<STEP> {
    #[inline(always)]
    unsafe fn run(p: &ExpandParams, _: Maps) {
        match STEP {
            EXPAND_PLACES => place(p),
            EXPAND_STRIPS => list(p),
            _ => write::<E>(p),
        }
    }
}
