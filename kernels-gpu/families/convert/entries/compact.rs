//! Dense to CSR. A segment is up to 2 KB of a row: four vectors of up to 16 bytes for each lane. A warp counts
//! the kept elements of up to four adjacent segments. Each thread block then finds the number of entries before its own
//! by a one-pass look-back. The warps load their segments again, from L1 and L2, and write. A warp compacts the kept
//! elements of a segment in shared memory first, so that it stores whole lines. In both passes the loads of the next
//! segment are in flight while a segment is processed.

use super::turns::{look_back_sum, tile_and_run};
use super::{ALL_LANES, element, lane, magnitude, over_warps};
use crate::device::compact::scan_warp;
use crate::device::prelude::*;
use crate::families::convert::abi::*;

impl<W: WalkInfo, E: Elem, const ALIGNED: bool> Kernel<W, E, EntriesParams> for Compact<ALIGNED> {
    #[inline(always)]
    unsafe fn run(p: &EntriesParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        match p.flags & COMPACT_TOP != 0 {
            true => Self::by::<E, true>(p),
            false => Self::by::<E, false>(p),
        }
    }
}

impl<const ALIGNED: bool> Compact<ALIGNED> {
    #[inline(always)]
    fn by<E: Elem, const TOP: bool>(p: &EntriesParams) {
        match (ALIGNED, E::BYTES) {
            (false, _) => compact::<E, 1, TOP>(p),
            (true, 8) => compact::<E, 2, TOP>(p),
            (true, 4) => compact::<E, 4, TOP>(p),
            (true, _) => compact::<E, 8, TOP>(p),
        }
    }
}

/// A segment: its row, its index in the row, and this lane's elements.
#[derive(Clone, Copy)]
struct Segment {
    row: u32,
    number: u32,
    raw: [Raw; 4],
}

/// Bit of a keep word for element `i` of a vector. Every element type uses only the upper four bits of each half of the
/// word.
const fn bit<E: Elem>(i: usize) -> u32 {
    match E::BYTES {
        2 => i as u32 % 2 * 16 + 12 + i as u32 / 2,
        _ => 28 + i as u32,
    }
}

#[inline(always)]
fn compact<E: Elem, const V: usize, const TOP: bool>(p: &EntriesParams) {
    let turn = tile_and_run(p);
    let start = (turn.tile * SEGMENTS + gpu::thread() / 32) * p.count;
    let mut kept = 0;
    let mut s = 0;
    let mut next = load::<E, V>(p, start, true);
    while s < p.count {
        let segment = next;
        s += 1;
        next = load::<E, V>(p, start + s, s < p.count);
        let keep = keep_bits::<E, V, TOP>(p, segment);
        // Each word uses four bits of each half, so four words are counted together.
        kept += (keep[0] | keep[1] >> 4 | keep[2] >> 8 | keep[3] >> 12).count_ones();
    }
    let (_, own) = scan_warp(kept);
    let (of_warps, of_tile) = over_warps(own);
    let mut next = load::<E, V>(p, start, true);
    let mut first = look_back_sum(p, turn, of_tile) + of_warps;
    s = 0;
    while s < p.count {
        let segment = next;
        s += 1;
        next = load::<E, V>(p, start + s, s < p.count);
        let own = write_kept::<E, V, TOP>(p, segment, first);
        if segment.row < p.m && segment.number == 0 && lane() == 0 {
            p.starts().at(segment.row).st(first);
        }
        first += own;
        let last = segment.row + 1 == p.m && segment.number + 1 == p.segments.value;
        if last && lane() == 0 {
            p.starts().at(p.m).st(first);
        }
    }
}

/// Writes the kept elements of a segment, from entry `first` on. Returns their number.
#[inline(always)]
fn write_kept<E: Elem, const V: usize, const TOP: bool>(
    p: &EntriesParams,
    segment: Segment,
    first: u32,
) -> u32 {
    let keep = keep_bits::<E, V, TOP>(p, segment);
    // Number of kept elements in preceding lanes and in all lanes, for two vectors packed in a word.
    let kept = |v: usize| keep[v].count_ones();
    let (low, low_all) = scan_warp(kept(0) | kept(1) << 16);
    let (high, high_all) = scan_warp(kept(2) | kept(3) << 16);
    let before = [low & 0xffff, low >> 16, high & 0xffff, high >> 16];
    let all = [low_all & 0xffff, low_all >> 16, high_all & 0xffff, high_all >> 16];
    let local = stage_of_warp();
    let mut own = 0;
    unroll!(v < 4, {
        let offset = (v as u32 * 32 + lane()) * V as u32;
        stage::<E, V>(local, &segment.raw[v], keep[v], offset, own + before[v]);
        own += all[v];
    });
    // Makes the lanes' stores to shared memory visible to the warp.
    warp::sync(ALL_LANES);
    let room = p.capacity.saturating_sub(first).min(own);
    let column = segment.number * p.segment_columns;
    let mut at = lane();
    let mut column_to = p.out_columns().at(first as u64 + at as u64);
    let mut value_to = p.out_values::<E>().at(first as u64 + at as u64);
    while at < room {
        let (offset, raw) = staged::<E>(local, at);
        column_to.st(column + offset);
        value_to.st_raw(raw);
        at += 32;
        column_to = column_to.at(32u32);
        value_to = value_to.at(32u32);
    }
    warp::sync(ALL_LANES);
    own
}

/// Loads this lane's part of segment `at`, zeros past the matrix.
#[inline(always)]
fn load<E: Elem, const V: usize>(p: &EntriesParams, at: u32, wanted: bool) -> Segment {
    let (row, number) = p.segments.of(at);
    let column = number * p.segment_columns + lane() * V as u32;
    // SAFETY: no thread block of this launch writes the dense matrix.
    let source = unsafe { p.source::<E>().with::<ReadWrite>() };
    let from = source.row(row, p.row_bytes).at(column);
    let valid = wanted && row < p.m;
    let mut raw = [[0; 4]; 4];
    unroll!(v < 4, {
        let offset = v as u32 * 32 * V as u32;
        let ok = valid && offset < p.segment_columns && column + offset < p.k;
        // Loads of `ReadWrite` stay together before their uses. The compiler would move those of
        // `ReadOnly` to the uses.
        raw[v] = from.at(offset).ld_raw::<V>(ok);
    });
    Segment { row, number, raw }
}

/// Returns the keep words of a segment; see [`bit`]. Elements that were not loaded are zero, which is never above a
/// pivot. With a pivot of zero, no elements equal to it are kept.
#[inline(always)]
fn keep_bits<E: Elem, const V: usize, const TOP: bool>(
    p: &EntriesParams,
    segment: Segment,
) -> [u32; 4] {
    let mut keep = [0; 4];
    if !TOP && E::BYTES < 8 {
        unroll!(v < 4, { keep[v] = above::<E, V>(&segment.raw[v], p.floor) });
        return keep;
    }
    let (valid, mut pivot, mut end) = (segment.row < p.m, p.floor, 0);
    if TOP {
        let [low, high, column, _] = p.pivots().at(segment.row).ld_if(valid);
        (pivot, end) = ((high as u64) << 32 | low as u64, column);
    }
    let column = segment.number * p.segment_columns + lane() * V as u32;
    unroll!(v < 4, {
        unroll!(i < V, {
            let own = magnitude::<E>(element::<E>(&segment.raw[v], i));
            let at = column + v as u32 * 32 * V as u32 + i as u32;
            let kept = own > pivot || TOP && own == pivot && at < end;
            keep[v] |= (kept as u32) << bit::<E>(i);
        });
    });
    keep
}

/// Returns the keep bits of a vector: elements with a magnitude above `floor`, for all elements of a word at once. The
/// sum of a magnitude and (max - `floor`) sets the top bit of the element if the magnitude is above, and never carries
/// into the next element. NaN with any payload is above infinity.
#[inline(always)]
fn above<E: Elem, const V: usize>(raw: &Raw, floor: u64) -> u32 {
    let (ones, most) = match E::BYTES {
        2 => (0x1_0001, 0x7fff),
        _ => (1, 0x7fff_ffff),
    };
    let more = (most - floor.min(most as u64) as u32) * ones;
    let mut keep = 0;
    unroll!(w < 4, {
        // A vector of fewer elements than a word is padded with zeros.
        if w * 4 < (V * E::BYTES as usize).max(4) {
            let sum = (raw[w] & (most * ones)) + more;
            keep = keep >> 1 | sum & !(most * ones);
        }
    });
    // Moves the bits to the positions that four words would give.
    let words = (V * E::BYTES as usize).div_ceil(4).max(1);
    keep >> (4 - words)
}

/// This warp's compacted elements.
#[inline(always)]
fn stage_of_warp() -> Shared<u32> {
    // SAFETY: `Compact` has `KEPT_BYTES` for each of `SEGMENTS` warps after the memory of the look-back.
    unsafe { Shared::dynamic(TURNS_BYTES) }.bytes(gpu::thread() / 32 * KEPT_BYTES)
}

/// Stores the kept elements of a vector from index `first` on, with their columns in the segment. The code is
/// branch-free: stores are predicated.
#[inline(always)]
fn stage<E: Elem, const V: usize>(
    stage: Shared<u32>,
    raw: &Raw,
    keep: u32,
    column: u32,
    first: u32,
) {
    let mut word_to = stage.at(first);
    let mut pair_to = stage.cast::<[u32; 2]>().at(first);
    let mut column_to = stage.bytes(KEPT_BYTES / 2).at(first);
    let keep = warp::opaque(keep);
    unroll!(i < V, {
        let kept = keep & 1 << bit::<E>(i);
        let value = element::<E>(raw, i);
        let column = column + i as u32;
        match E::BYTES {
            8 => {
                pair_to = pair_to.st_advance([value[0], value[1]], kept);
                column_to = column_to.st_advance(column, kept);
            }
            4 => pair_to = pair_to.st_advance([value[0], column], kept),
            _ => word_to = word_to.st_advance(value[0] | column << 16, kept),
        }
    });
}

/// Loads the column in the segment and the value at an index.
#[inline(always)]
fn staged<E: Elem>(stage: Shared<u32>, at: u32) -> (u32, Raw) {
    let pair = stage.cast::<[u32; 2]>().at(at);
    match E::BYTES {
        8 => {
            let [low, high] = pair.ld();
            let column = stage.bytes(KEPT_BYTES / 2).at(at).ld();
            (column, [low, high, 0, 0])
        }
        4 => {
            let [value, column] = pair.ld();
            (column, [value, 0, 0, 0])
        }
        _ => {
            let pair = stage.at(at).ld();
            (pair >> 16, [pair & 0xffff, 0, 0, 0])
        }
    }
}
