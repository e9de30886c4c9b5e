//! Single entries to the dense matrix they are of. Of each 16 bytes a byte says which elements are stored, so that
//! values are read once, one behind the other, and whole sectors are written.

use crate::device::prelude::*;
use crate::families::convert::abi::*;

/// First entry of a row from column `column` on.
#[inline(always)]
fn lower_bound(p: &ExpandParams, [start, len]: [u32; 2], column: u32) -> u32 {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low) / 2;
        let at = p.columns + (start as u64 + middle as u64) * 4;
        if global::load_b32(at, true) < column {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    start + low
}

#[inline(always)]
fn mark(p: &ExpandParams) {
    let lane = gpu::thread() % 32;
    let group = gpu::block_x() * Expand::<EXPAND_MARKS>::ITEMS + gpu::thread() / 32;
    if group >= p.groups {
        return;
    }
    let (row, of_row) = p.row_groups.of(group);
    let [start, len] = global::load_v2(p.spans + row as u64 * 8, true);
    let first = (of_row * GROUP_PIECES + lane) * p.piece;
    let entry = lower_bound(p, [start, len], first);
    let mut marks = 0;
    let mut i = 0;
    while i < p.piece {
        let at = entry as u64 + i as u64;
        let stored = at < start as u64 + len as u64;
        let column = global::load_b32(p.columns + at * 4, stored).wrapping_sub(first);
        if stored && column < p.piece {
            marks |= 1 << column;
        }
        i += 1;
    }
    let mut word = marks << (lane % 4 * 8);
    word |= warp::exchange(word, 1);
    word |= warp::exchange(word, 2);
    let at = group as u64 * GROUP_PIECES as u64 + lane as u64;
    global::store_b32_if(p.marks + at, word, lane.is_multiple_of(4));
    global::store_b32_if(p.starts + group as u64 * 4, entry, lane == 0);
}

/// For each group the marks in front of this lane's. Two groups share a word: a group has 256 at the most.
#[inline(always)]
fn in_front(marks: &[u32; GROUPS_AT_ONCE]) -> [u32; GROUPS_AT_ONCE] {
    let lane = gpu::thread() % 32;
    let mut all = [0; GROUPS_AT_ONCE];
    unroll!(pair < 2, {
        let own = marks[2 * pair].count_ones() | marks[2 * pair + 1].count_ones() << 16;
        let mut sum = own;
        unroll!(step < 5, {
            let before = warp::shuffle_up(sum, 1 << step);
            sum += if lane >= 1 << step { before } else { 0 };
        });
        all[2 * pair] = (sum - own) & 0xffff;
        all[2 * pair + 1] = (sum - own) >> 16;
    });
    all
}

/// The elements of a piece, whose first stored one is `entry`.
#[inline(always)]
fn piece<E: ElemInfo>(p: &ExpandParams, marks: u32, entry: u64) -> [u32; 4] {
    let bytes = E::DTYPE.bytes();
    let mut words = [0; 4];
    let mut at = p.values + entry * bytes as u64;
    unroll!(i < 8, {
        if i * bytes < 16 {
            let stored = marks >> i & 1 != 0;
            if bytes == 2 {
                words[i / 2] |= global::load_b16(at, stored) << (i % 2 * 16);
            } else {
                words[i % 4] = global::load_b32(at, stored);
            }
            at += if stored { bytes as u64 } else { 0 };
        }
    });
    words
}

#[inline(always)]
fn write<E: ElemInfo>(p: &ExpandParams) {
    let lane = gpu::thread() % 32;
    let warp = gpu::block_x() * (Expand::<EXPAND_VALUES>::THREADS / 32) + gpu::thread() / 32;
    let first = warp * GROUPS_AT_ONCE as u32;
    let (mut marks, mut starts) = ([0; GROUPS_AT_ONCE], [0; GROUPS_AT_ONCE]);
    unroll!(i < GROUPS_AT_ONCE, {
        let group = first as u64 + i as u64;
        let inside = group < p.groups as u64;
        let at = group * GROUP_PIECES as u64 + lane as u64;
        marks[i] = global::load_b8(p.marks + at, inside);
        starts[i] = global::load_b32(p.starts + group * 4, inside);
    });
    let before = in_front(&marks);
    let mut pieces = [[0; 4]; GROUPS_AT_ONCE];
    unroll!(i < GROUPS_AT_ONCE, {
        pieces[i] = piece::<E>(p, marks[i], starts[i] as u64 + before[i] as u64);
    });
    unroll!(i < GROUPS_AT_ONCE, {
        let group = first + i as u32;
        let (row, of_row) = p.row_groups.of(group);
        let at = (of_row * GROUP_PIECES + lane) as u64 * PIECE_BYTES as u64;
        if group < p.groups && at < p.row_bytes {
            global::store_v4(p.out + row as u64 * p.row_bytes + at, pieces[i]);
        }
    });
}

impl<W: WalkInfo, E: ElemInfo, const STEP: u32> Kernel<W, E, ExpandParams> for Expand<STEP> {
    #[inline(always)]
    unsafe fn run(p: &ExpandParams, _: u64) {
        if STEP == EXPAND_MARKS {
            mark(p);
        } else {
            write::<E>(p);
        }
    }
}
