//! Sparse matrix to dense. A warp stores the entries of a few groups of elements into zeroed shared memory, and writes
//! whole lines.

use crate::abi::{STRIP_HEAD, STRIP_SLOTS, STRIP_STEP, strip_word};
use crate::device::prelude::*;
use crate::device::scan::inclusive;
use crate::families::convert::abi::*;

/// Returns the first entry of a row at or after column `column`.
#[inline(always)]
fn lower_bound(p: &ExpandParams, row: u32, column: u32) -> u32 {
    let [start, len] = global::ld_nc_v2(p.spans + row as u64 * 8, true);
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low) / 2;
        let at = p.columns + (start as u64 + middle as u64) * 4;
        if global::ld_nc_b32(at, true) < column {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    start + low
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
        let first = lower_bound(p, row, column);
        global::st_b32(p.starts + own as u64 * 4, first);
    }
    let first = own as u64 * 4;
    if first < p.entries as u64 {
        let mut word = 0;
        unroll!(i < 4, {
            let at = first + i as u64;
            let column = global::ld_nc_b32(p.columns + at * 4, at < p.entries as u64);
            word |= (column & (p.group - 1)) << (8 * i);
        });
        global::st_b32(p.places + first, word);
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
        let at = p.starts + (group as u64 + row as u64) * 4;
        let inside = group < p.groups;
        spans[i] = [global::ld_nc_b32(at, inside), global::ld_nc_b32(at + 4, inside)];
    });
    spans
}

/// Stores up to 128 entries of each group to shared memory, from `base` entries after its first. A lane has two
/// neighboring entries, the first with an even index.
#[inline(always)]
fn lay<E: ElemInfo>(p: &ExpandParams, spans: &Spans, base: u32, tile: u32) {
    let bytes = E::DTYPE.bytes() as u32;
    let lane = gpu::thread() % 32;
    let entry = |i: usize, j: usize| (spans[i][0] & !1) + base + j as u32 * 64 + lane * 2;
    let mut places = [[0; 2]; GROUPS_AT_ONCE];
    let mut values = [[[0; 2]; 2]; GROUPS_AT_ONCE];
    unroll!(i < GROUPS_AT_ONCE, {
        unroll!(j < 2, {
            let at = entry(i, j) as u64;
            let inside = entry(i, j) < spans[i][1];
            places[i][j] = global::ld_nc_b16(p.places + at, inside);
            values[i][j] = if bytes == 2 {
                let both = global::ld_nc_b32(p.values + at * 2, inside);
                [both, both >> 16]
            } else {
                global::ld_nc_v2(p.values + at * 4, inside)
            };
        });
    });
    unroll!(i < GROUPS_AT_ONCE, {
        unroll!(j < 2, {
            let of_group = tile + i as u32 * GROUP_BYTES;
            let store = |half: u32, value: u32| {
                let to = of_group + (places[i][j] >> (8 * half) & 0xff) * bytes;
                let own = entry(i, j) + half;
                if own >= spans[i][0] && own < spans[i][1] {
                    if bytes == 2 {
                        copy::st_shared_b16(to, value);
                    } else {
                        copy::st_shared_b32(to, value);
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
    let tile = copy::dynamic_shared() + warp * GROUP_BYTES;
    let mut own = spans(p, first);
    while first < p.groups {
        let (next, mut longest) = (spans(p, first + gpu::grid_x() * items), 0);
        unroll!(i < GROUPS_AT_ONCE, {
            copy::st_shared_v4(tile + i as u32 * GROUP_BYTES + lane * 16, [0; 4]);
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
            let words = copy::ld_shared_v4(tile + i as u32 * GROUP_BYTES + lane * 16);
            if group < p.groups && at < p.row_bytes {
                global::st_v4(p.out + row as u64 * p.row_bytes + at, words);
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
    /// Address of the first entry of the row in each stage.
    starts: u64,
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
        let starts = p.starts + row as u64 * (p.deal.stages as u64 + 1) * 4;
        let first = global::ld_nc_b32(starts, there);
        let end = global::ld_nc_b32(starts + p.deal.stages as u64 * 4, there);
        let last = warp::max(if end > first { end } else { 0 });
        // Rows without entries are ignored. A row block without entries has an empty range.
        let first = warp::min(if end > first { first } else { last });
        Strip { number, starts, there, slots: [first, last] }
    }

    /// Returns the row's entries in a stage: their number in all rows up to this one, and the end of this row.
    #[inline(always)]
    fn stage(self, stage: u32) -> [u32; 2] {
        let at = self.starts + stage as u64 * 4;
        let first = global::ld_nc_b32(at, self.there);
        let end = global::ld_nc_b32(at + 4, self.there);
        [inclusive(end - first), end]
    }

    /// Writes the steps of a stage from address `to` on, one entry of a step per lane.
    #[inline(always)]
    fn list(self, p: &ExpandParams, [ends, end]: [u32; 2], total: u32, to: u64) {
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
            let column = global::ld_nc_b8(p.places + slot as u64, true);
            let word = strip_word(slot - self.slots[0], of, column);
            global::st_b32(to + (from + lane) as u64 * 4, word);
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
            let head = p.heads + list * p.deal.head() as u64 * 4;
            let words = p.out + list * p.room as u64 * 4 * STRIP_STEP as u64;
            let mut ends = head + STRIP_HEAD as u64 * 4;
            let mut steps = 0;
            let mut stage = turn;
            while stage < count {
                warp::nounroll();
                let rows = strip.stage(from + stage);
                let total = warp::shfl(rows[0], 31);
                if p.room > 0 {
                    let to = words + steps as u64 * 4 * STRIP_STEP as u64;
                    strip.list(p, rows, total, to);
                }
                steps += total.div_ceil(STRIP_STEP);
                if p.room > 0 && first {
                    global::st_b32(ends, steps);
                }
                ends += 4;
                stage += p.deal.turns;
            }
            if p.room > 0 && first {
                let [from, to] = strip.slots;
                global::st_b32(head, from);
                global::st_b32(head + 4, to - from);
                global::st_b32(head + 8, steps);
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
        global::red_max(p.heads, if counted { longest } else { u32::MAX });
    }
}

impl<W: WalkInfo, E: ElemInfo, const STEP: u32> Kernel<W, E, ExpandParams> for Expand<STEP> {
    #[inline(always)]
    unsafe fn run(p: &ExpandParams, _: u64) {
        match STEP {
            EXPAND_PLACES => place(p),
            EXPAND_STRIPS => list(p),
            _ => write::<E>(p),
        }
    }
}
