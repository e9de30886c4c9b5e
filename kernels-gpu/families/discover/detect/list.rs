//! Lists from bits. Ordered: every region publishes its count and adds up the counts of the preceding regions. Their
//! thread blocks have lower indices, so they already run (look-back over aggregates only, in the terms of arXiv
//! 1602.03843). Unordered: one addition to the list's length.

use super::{MicroTiles, Place, shared};
use crate::device::compact::{each_one, scan_warp};
use crate::device::prelude::*;
use crate::device::strided::strided;
use crate::families::discover::abi::*;

/// Upper half of the word of a region that has published its count.
const FOUND: u32 = 4;
/// One arrival, in the upper half of a 64-bit word; the lower half counts micro-tiles.
const ARRIVAL: u64 = 1 << 32;

/// Reserves `count` positions of a list, in order of arrival. Returns the first of them, and the list's length if all
/// parts have arrived, else [`NO_TILE`].
#[inline(always)]
pub(super) fn append(
    p: &DetectParams,
    list: u32,
    status: Global<u64, Fresh>,
    count: u32,
) -> (u32, u32) {
    let before = status.atom_add(ARRIVAL + count as u64);
    let (base, arrived) = (before as u32, (before >> 32) as u32 + 1);
    if arrived < p.parts {
        return (base, NO_TILE);
    }
    p.counts().at(list).st(base + count);
    status.st_relaxed(0);
    (base, base + count)
}

/// Pads a list of `count` positions. `thread` is one of `threads` threads that do so.
#[inline(always)]
pub(super) fn pad(p: &DetectParams, list: u32, count: u32, (thread, threads): (u32, u32)) {
    let words = p.lists().at(list as u64 * p.stride as u64);
    let end = count.next_multiple_of(DETECT_PAD);
    strided(count + thread, end, threads, |at| words.at(at).st(NO_TILE));
}

impl<const MH: u32, const MW: u32, const STEP: u32> MicroTiles<MH, MW, STEP> {
    /// First list of the region, and the index of the region within a list.
    #[inline(always)]
    fn lists(r: Region, place: Place) -> (u32, u32) {
        if Self::ALONG_COLUMNS {
            (place.down, place.across)
        } else {
            (place.across * r.panels, place.down)
        }
    }

    /// Appends the micro-tiles of this thread block's bits to their lists. Returns the argument of `end_release`.
    #[inline(always)]
    pub(super) fn write_lists(p: &DetectParams, r: Region, place: Place) -> u32 {
        gpu::sync_threads();
        Self::find_bases(p, r, place);
        gpu::sync_threads();
        let before = Self::begin_release(p, place);
        Self::write(p, r, place);
        before
    }

    /// Computes the ranks of the words and the list position of each panel of the region, one warp per panel.
    #[inline(always)]
    fn find_bases(p: &DetectParams, r: Region, place: Place) {
        let (warps, lane) = (DETECT_THREADS / 32, gpu::thread() % 32);
        let (first, part) = Self::lists(r, place);
        strided(gpu::thread() / 32, r.panels, warps, |own| {
            let list = first + own;
            if list < p.panels {
                let count = Self::rank(r, own);
                let base = if p.flags & DETECT_ORDERED != 0 {
                    Self::in_order(p, list, part, count)
                } else {
                    Self::in_any_order(p, list, count)
                };
                if lane == 0 {
                    Self::base(own).st([base.0, base.1]);
                    if STEP == STEP_PACK {
                        Self::found_count().st(count);
                    }
                }
                if base.1 != NO_TILE {
                    pad(p, list, base.1, (lane, 32));
                }
            }
        });
    }

    /// Computes the ranks of the words of a panel. Returns its number of micro-tiles in the region.
    #[inline(always)]
    fn rank(r: Region, own: u32) -> u32 {
        let words = r.positions / 32;
        let lane = gpu::thread() % 32;
        let mut before = 0;
        strided(0, words, 32, |from| {
            let [bits, ranks] = Self::word(own * words + from + lane);
            let count = if from + lane < words { bits.ld().count_ones() } else { 0 };
            let (rank, all) = scan_warp(count);
            if from + lane < words {
                ranks.st(before + rank);
            }
            before += all;
        });
        before
    }

    /// Returns the list position of the region's first micro-tile, and the list's length for its last region, else
    /// [`NO_TILE`].
    #[inline(always)]
    fn in_order(p: &DetectParams, list: u32, part: u32, count: u32) -> (u32, u32) {
        let lane = gpu::thread() % 32;
        let status = p.status().at(list as u64 * (p.parts as u64 + 1));
        if lane == 0 {
            let word = (FOUND as u64) << 32 | count as u64;
            status.at(part).st_relaxed(word);
        }
        let mut sum = 0;
        strided(lane, part, 32, |other| sum += status.poll(other, FOUND) as u32);
        let base = warp::sum(sum);
        if !Self::ALONG_COLUMNS {
            Self::end(p, status);
        }
        let last = part + 1 == p.parts;
        if last && lane == 0 {
            p.counts().at(list).st(base + count);
        }
        (base, if last { base + count } else { NO_TILE })
    }

    /// Counts this region as done with the other regions' words; the last one clears them for the next launch.
    #[inline(always)]
    fn end(p: &DetectParams, status: Global<u64, Fresh>) {
        let lane = gpu::thread() % 32;
        warp::sync(u32::MAX);
        let mut before = 0;
        if lane == 0 {
            before = status.at(p.parts).atom_add(1) as u32;
        }
        Self::clear_words(p, status, before);
    }

    /// Clears the words of a panel's regions if this region is the last: `before` others were done. One warp; `before`
    /// is valid in the first lane.
    #[inline(always)]
    fn clear_words(p: &DetectParams, status: Global<u64, Fresh>, before: u32) {
        if warp::uniform(before) + 1 == p.parts {
            strided(gpu::thread() % 32, p.parts + 1, 32, |part| status.at(part).st_relaxed(0));
        }
    }

    /// Address of the status words of the region's only list, which the last region clears for the next launch.
    #[inline(always)]
    fn own_words(p: &DetectParams, place: Place) -> Global<u64, Fresh> {
        p.status().at(place.down as u64 * (p.parts as u64 + 1))
    }

    /// First of two steps that release the status words of the only list. The thread block writes its micro-tiles
    /// between the steps, which hides the L2 latency of the atomic. Must follow the barrier after `find_bases`.
    #[inline(always)]
    fn begin_release(p: &DetectParams, place: Place) -> u32 {
        let mut before = 0;
        if Self::ALONG_COLUMNS && p.flags & DETECT_ORDERED != 0 && gpu::thread() == 0 {
            let done = Self::own_words(p, place).at(p.parts);
            before = done.atom_add(1) as u32;
        }
        before
    }

    /// Second step after [`Self::begin_release`], which returned `before`.
    #[inline(always)]
    pub(super) fn end_release(p: &DetectParams, place: Place, before: u32) {
        if Self::ALONG_COLUMNS && p.flags & DETECT_ORDERED != 0 && gpu::thread() < 32 {
            Self::clear_words(p, Self::own_words(p, place), before);
        }
    }

    /// [`Self::in_order`] in the order in which regions arrive.
    #[inline(always)]
    fn in_any_order(p: &DetectParams, list: u32, count: u32) -> (u32, u32) {
        let status = p.status().at(list as u64 * (p.parts as u64 + 1));
        let (mut base, mut end) = (0, 0);
        if gpu::thread().is_multiple_of(32) {
            (base, end) = append(p, list, status, count);
        }
        (warp::uniform(base), warp::uniform(end))
    }

    /// List position of a panel's first micro-tile in the region, and the list's length if the region is its last.
    #[inline(always)]
    pub(super) fn base(own: u32) -> Shared<[u32; 2]> {
        shared(DETECT_BASES).cast().at(own)
    }

    /// Number of micro-tiles of the region's only panel, for [`STEP_PACK`].
    #[inline(always)]
    pub(super) fn found_count() -> Shared<u32> {
        Self::base(1).cast()
    }

    /// Position of micro-tile `index` of the region's only panel, for [`STEP_PACK`].
    #[inline(always)]
    pub(super) fn found(index: u32) -> Shared<u16> {
        shared(DETECT_FOUND).cast().at(index)
    }

    /// A word of the region's bits, and the number of bits before it in its panel.
    #[inline(always)]
    fn word(at: u32) -> [Shared<u32>; 2] {
        [shared(0).at(at), shared(DETECT_RANKS).at(at)]
    }

    /// Writes the micro-tiles of the region to their lists.
    #[inline(always)]
    fn write(p: &DetectParams, r: Region, place: Place) {
        let (first, part) = Self::lists(r, place);
        let word = |at| Self::word(at).map(Shared::ld);
        each_one(DETECT_THREADS, r.panels * r.positions, word, |at, rank| {
            let (own, position) = (at / r.positions, at % r.positions);
            if STEP == STEP_PACK {
                Self::found(rank).st(position);
            }
            let list = p.lists().at((first + own) as u64 * p.stride as u64);
            list.at(Self::base(own).cast::<u32>().ld() + rank).st(part * r.positions + position);
        });
    }
}
