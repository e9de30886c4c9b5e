//! Distribution of the work without a sort. The tiles of all queries form one sequence, which is split into equal
//! shares, one for each thread block of the attention kernel. Groups with few tiles are never split, and no part is
//! short.

use super::{area, over};
use crate::device::prelude::*;
use crate::device::scan::inclusive;
use crate::device::split_k::block_arrives_last;
use crate::families::attention::abi::*;

/// With fewer groups than this, prefix sums are in shared memory, over the bits of columns and diagonals.
const NEAR: u32 = MASK_STATES / 4;

/// Position in the sequence of all tiles: a group (128 queries of a head), and one of its tiles.
#[derive(Clone, Copy)]
struct Border {
    group: u32,
    tile: u32,
}

/// Sequence of all groups, ordered by strip (128 queries), then by head.
struct Row<'a> {
    p: &'a MaskParams,
    groups: u32,
    total: u32,
    /// Share of a thread block.
    share: u32,
    /// Whether each group has its own thread block, and none is long.
    single: bool,
}

/// Returns the strip, the head and the index of the tile count of a group.
#[inline(always)]
fn place(p: &MaskParams, group: u32) -> [u32; 3] {
    let strip = over(group, p.heads);
    let head = group - strip * p.heads;
    [strip, head, over(head, p.sharing) * p.strips + strip]
}

#[inline(always)]
fn tiles_of(p: &MaskParams, group: u32) -> u32 {
    let [_, _, index] = place(p, group);
    p.counts().at(index).ld()
}

/// Returns the sum over the values of the lower threads, the sum over all, and whether any of them is `large`. Every
/// thread must call it once.
#[inline(always)]
fn sums(value: u32, large: bool) -> ([u32; 2], bool) {
    let lane = gpu::thread() % 32;
    let sum = inclusive(value);
    let vote = warp::ballot(large);
    let of_warps = area::<[u32; 2]>(MASK_SUMS);
    if lane == 31 {
        of_warps.at(gpu::thread() / 32).st([sum, vote]);
    }
    gpu::sync_threads();
    let (mut before, mut all, mut any) = (0, 0, 0);
    unroll!(w < 8, {
        let [of_warp, vote] = of_warps.at(w as u32).ld();
        if (w as u32) < gpu::thread() / 32 {
            before += of_warp;
        }
        all += of_warp;
        any |= vote;
    });
    ([before + sum - value, all], any != 0)
}

impl Row<'_> {
    /// Returns the cost of the groups before a group; for `groups`, the total.
    #[inline(always)]
    fn before(&self, group: u32) -> u32 {
        if self.groups < NEAR {
            area::<u32>(0).at(group).ld()
        } else {
            self.p.prefix().at(group).ld()
        }
    }

    /// Sets the cost of the groups before a group.
    #[inline(always)]
    fn say(&self, group: u32, before: u32) {
        if self.groups < NEAR {
            area::<u32>(0).at(group).st(before);
        } else {
            self.p.prefix().at(group).st(before);
        }
    }

    #[inline(always)]
    fn tiles(&self, group: u32) -> u32 {
        self.before(group + 1) - self.before(group) - MASK_QUERIES
    }

    /// Returns the start of share `number`.
    #[inline(always)]
    fn border(&self, number: u32) -> Border {
        let at = number * self.share;
        if self.single || at >= self.total {
            let group = if self.single { number } else { u32::MAX };
            let group = group.min(self.groups);
            return Border { group, tile: 0 };
        }
        // Binary search for the last group that begins at or before this position.
        let (mut low, mut high) = (0, self.groups);
        while low + 1 < high {
            let middle = (low + high) / 2;
            if self.before(middle) <= at {
                low = middle;
            } else {
                high = middle;
            }
        }
        let tiles = self.tiles(low);
        let offset = at - self.before(low);
        let next = Border { group: low + 1, tile: 0 };
        let own = Border { group: low, tile: 0 };
        if tiles <= MASK_WHOLE {
            if offset * 2 < tiles + MASK_QUERIES { own } else { next }
        } else if offset <= MASK_PART {
            own
        } else if offset + MASK_PART > tiles + 1 {
            next
        } else {
            Border { group: low, tile: offset - 1 }
        }
    }

    /// Writes tiles `from..to` of a group as the work of thread block `block` in a round.
    #[inline(always)]
    fn write(&self, (block, round): (u32, u32), group: u32, from: u32, to: u32, tiles: u32) {
        let p = self.p;
        let [strip, head, index] = place(p, group);
        // The group is split where enough tiles remain on both sides.
        let before = self.before(group);
        let (mut first, mut cuts) = (0, 0);
        if tiles > MASK_WHOLE {
            first = over(before + MASK_PART + self.share, self.share);
            let last = over(before + tiles + 1 - MASK_PART, self.share);
            cuts = (last + 1).saturating_sub(first);
        }
        let part = if from == 0 { 0 } else { block + 1 - first };
        let item = round as u64 * p.blocks_of_work as u64 + block as u64;
        let at = p.work().bytes(item * size_of::<Queries>() as u64);
        if round < p.rounds {
            let tile = index * p.capacity + from;
            let row = strip * STRIP as u32;
            at.st([row, head, over(head, p.group), tile]);
            // A split adds at most two parts that no other split adds, so slots and counters are unique.
            let parts = part | (cuts + 1) << 16;
            at.at(1u32).st([to - from, 2 * first, parts, first]);
        }
    }

    /// Writes the work of a thread block, beginning with the group that the next thread block continues.
    #[inline(always)]
    fn deal(&self, block: u32) {
        let (start, end) = (self.border(block), self.border(block + 1));
        let mut round = 0;
        if end.tile > 0 {
            let from = if start.group == end.group { start.tile } else { 0 };
            let tiles = self.tiles(end.group);
            self.write((block, round), end.group, from, end.tile, tiles);
            round += 1;
        }
        let (mut group, mut from) = (start.group, start.tile);
        while group < end.group {
            let tiles = self.tiles(group);
            self.write((block, round), group, from, tiles, tiles);
            round += 1;
            from = 0;
            group += 1;
        }
        if round < self.p.rounds {
            let index = round as u64 * self.p.blocks_of_work as u64 + block as u64;
            let at = self.p.work().bytes(index * size_of::<Queries>() as u64);
            at.cast::<u32>().st(NO_STRIP);
        }
    }
}

impl MaskTiles {
    /// Distributes the work of the first `strips` strips in the thread block that arrives last. All threads call it.
    #[inline(always)]
    pub(super) fn deal_last(p: &MaskParams, strips: u32) {
        if !block_arrives_last(p.status(), p.strips * p.count, area(MASK_TOLD)) {
            return;
        }
        let groups = strips * p.heads;
        let each = groups.div_ceil(MASK_THREADS);
        let first = (gpu::thread() * each).min(groups);
        let end = (first + each).min(groups);
        let (mut own, mut group, mut long) = (0, first, false);
        while group < end {
            let tiles = tiles_of(p, group);
            own += tiles + MASK_QUERIES;
            long |= tiles > MASK_WHOLE;
            group += 1;
        }
        let ([mut before, total], long) = sums(own, long);
        let row = Row {
            p,
            groups,
            total,
            share: total.div_ceil(p.blocks_of_work.max(1)).max(MASK_PART),
            single: groups <= p.blocks_of_work && !long,
        };
        group = first;
        while group < end {
            row.say(group, before);
            if group + 1 < end {
                before += tiles_of(p, group) + MASK_QUERIES;
            }
            group += 1;
        }
        if gpu::thread() == 0 {
            row.say(groups, total);
        }
        gpu::sync_threads();
        let mut block = gpu::thread();
        while block < p.blocks_of_work {
            row.deal(block);
            block += MASK_THREADS;
        }
    }
}
