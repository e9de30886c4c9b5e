//! Bits to lists. In order: every region says what it found and adds up what those in front of it said; their thread
//! blocks have lower numbers, so they run already (decoupled look-back without the look: arXiv 1602.03843 calls it
//! aggregates). In any order: one addition to the list's length.

use super::{MicroTiles, Place};
use crate::device::prelude::*;
use crate::device::scan::inclusive;
use crate::families::discover::abi::*;

/// Upper half of the word of a region that has looked.
const FOUND: u32 = 4;
/// A micro-tile found by a region is one of these; the arrival is in the upper word.
const ARRIVAL: u64 = 1 << 32;

impl<const MH: u32, const MW: u32, const STEP: u32> MicroTiles<MH, MW, STEP> {
    /// First list of the region, and which of a list's regions it is.
    #[inline(always)]
    fn lists(r: Region, place: Place) -> (u32, u32) {
        if Self::ALONG_COLUMNS {
            (place.down, place.across)
        } else {
            (place.across * r.panels, place.down)
        }
    }

    /// Writes the micro-tiles of the bits that this thread block has set to their lists. Returns what `end_release` takes.
    #[inline(always)]
    pub(super) fn write_lists(p: &DetectParams, r: Region, place: Place) -> u32 {
        gpu::sync_threads();
        Self::find_bases(p, r, place);
        gpu::sync_threads();
        let before = Self::begin_release(p, place);
        Self::write(p, r, place);
        before
    }

    /// For each panel of the region, a warp each: the ranks of its words, and its place in the list.
    #[inline(always)]
    fn find_bases(p: &DetectParams, r: Region, place: Place) {
        let (warps, lane) = (DETECT_THREADS / 32, gpu::thread() % 32);
        let (first, part) = Self::lists(r, place);
        let mut own = gpu::thread() / 32;
        while own < r.panels {
            let list = first + own;
            if list < p.panels {
                let count = Self::rank(r, own);
                let base = if p.flags & DETECT_ORDERED != 0 {
                    Self::in_order(p, list, part, count)
                } else {
                    Self::in_any_order(p, list, count)
                };
                if lane == 0 {
                    copy::st_shared_b32(copy::dynamic_shared() + DETECT_BASES + own * 8, base.0);
                    copy::st_shared_b32(
                        copy::dynamic_shared() + DETECT_BASES + own * 8 + 4,
                        base.1,
                    );
                    if STEP == STEP_PACK {
                        copy::st_shared_b32(copy::dynamic_shared() + DETECT_BASES + 8, count);
                    }
                }
                if base.1 != NO_TILE {
                    Self::pad(p, list, base.1);
                }
            }
            own += warps;
        }
    }

    /// Ranks of the words of a panel, and how many micro-tiles it has in the region.
    #[inline(always)]
    fn rank(r: Region, own: u32) -> u32 {
        let words = r.positions / 32;
        let lane = gpu::thread() % 32;
        let (mut before, mut from) = (0, 0);
        while from < words {
            let place = copy::dynamic_shared() + (own * words + from + lane) * 4;
            let count =
                if from + lane < words { copy::ld_shared_b32(place).count_ones() } else { 0 };
            let inclusive = inclusive(count);
            if from + lane < words {
                copy::st_shared_b32(place + DETECT_RANKS, before + inclusive - count);
            }
            before += warp::shfl(inclusive, 31);
            from += 32;
        }
        before
    }

    /// Where the region's micro-tiles begin in the list, and the list's length for its last region, else [`NO_TILE`].
    #[inline(always)]
    fn in_order(p: &DetectParams, list: u32, part: u32, count: u32) -> (u32, u32) {
        let lane = gpu::thread() % 32;
        let status = p.status + list as u64 * (p.parts as u64 + 1) * 8;
        if lane == 0 {
            let word = (FOUND as u64) << 32 | count as u64;
            global::st_relaxed_b64(status + part as u64 * 8, word);
        }
        let (mut sum, mut other) = (0, lane);
        while other < part {
            sum += global::poll_b64(status, other, FOUND) as u32;
            other += 32;
        }
        let base = warp::sum(sum);
        if !Self::ALONG_COLUMNS {
            Self::end(p, status);
        }
        let last = part + 1 == p.parts;
        if last && lane == 0 {
            global::st_b32(p.counts + list as u64 * 4, base + count);
        }
        (base, if last { base + count } else { NO_TILE })
    }

    /// Counts this region as done with the others' words; the last one clears them for the next launch.
    #[inline(always)]
    fn end(p: &DetectParams, status: u64) {
        let lane = gpu::thread() % 32;
        warp::sync(u32::MAX);
        let mut before = 0;
        if lane == 0 {
            before = global::atom_add_b64(status + p.parts as u64 * 8, 1) as u32;
        }
        Self::clear_words(p, status, before);
    }

    /// Clears the words of a panel's regions if so many were done before this one that it is the last. One warp, of
    /// which the first lane knows how many.
    #[inline(always)]
    fn clear_words(p: &DetectParams, status: u64, before: u32) {
        if warp::uniform(before) + 1 == p.parts {
            let mut part = gpu::thread() % 32;
            while part <= p.parts {
                global::st_relaxed_b64(status + part as u64 * 8, 0);
                part += 32;
            }
        }
    }

    /// Words that the only panel of a region keeps for its list, where another kernel's launch finds them zero.
    #[inline(always)]
    fn own_words(p: &DetectParams, place: Place) -> u64 {
        p.status + place.down as u64 * (p.parts as u64 + 1) * 8
    }

    /// The two steps of releasing the words of the only list: the thread block writes its micro-tiles between, not
    /// behind a latency of L2. This one after the places are known to all.
    #[inline(always)]
    fn begin_release(p: &DetectParams, place: Place) -> u32 {
        let mut before = 0;
        if Self::ALONG_COLUMNS && p.flags & DETECT_ORDERED != 0 && gpu::thread() == 0 {
            let done = Self::own_words(p, place) + p.parts as u64 * 8;
            before = global::atom_add_b64(done, 1) as u32;
        }
        before
    }

    /// See [`Self::begin_release`], which has returned `before`.
    #[inline(always)]
    pub(super) fn end_release(p: &DetectParams, place: Place, before: u32) {
        if Self::ALONG_COLUMNS && p.flags & DETECT_ORDERED != 0 && gpu::thread() < 32 {
            Self::clear_words(p, Self::own_words(p, place), before);
        }
    }

    /// The same as [`Self::in_order`], in the order in which regions come.
    #[inline(always)]
    fn in_any_order(p: &DetectParams, list: u32, count: u32) -> (u32, u32) {
        let status = p.status + list as u64 * (p.parts as u64 + 1) * 8;
        let (mut base, mut arrived) = (0, 0);
        if gpu::thread().is_multiple_of(32) {
            let before = global::atom_add_b64(status, ARRIVAL + count as u64);
            base = before as u32;
            arrived = (before >> 32) as u32 + 1;
            if arrived == p.parts {
                global::st_b32(p.counts + list as u64 * 4, base + count);
                global::st_relaxed_b64(status, 0);
            }
        }
        let [base, arrived] = [base, arrived].map(warp::uniform);
        let last = arrived == p.parts;
        (base, if last { base + count } else { NO_TILE })
    }

    /// Fills a list of `count` micro-tiles up.
    #[inline(always)]
    fn pad(p: &DetectParams, list: u32, count: u32) {
        let words = p.lists + list as u64 * p.stride as u64 * 4;
        let end = count.next_multiple_of(DETECT_PAD);
        let mut at = count + gpu::thread() % 32;
        while at < end {
            global::st_b32(words + at as u64 * 4, NO_TILE);
            at += 32;
        }
    }

    /// Where a panel of the region begins in its list, and the list's length if the region was its last.
    #[inline(always)]
    pub(super) fn base(own: u32) -> [u32; 2] {
        copy::ld_shared_v2(copy::dynamic_shared() + DETECT_BASES + own * 8)
    }

    /// A word of bits of the region, and how many bits its panel has in front of it.
    #[inline(always)]
    pub(super) fn word(at: u32) -> [u32; 2] {
        let place = copy::dynamic_shared() + at * 4;
        [place, place + DETECT_RANKS].map(copy::ld_shared_b32)
    }

    /// Writes the micro-tiles of the region to their lists.
    #[inline(always)]
    fn write(p: &DetectParams, r: Region, place: Place) {
        let (first, part) = Self::lists(r, place);
        let mut at = gpu::thread();
        while at < r.panels * r.positions {
            let (own, position) = (at / r.positions, at % r.positions);
            let [bits, rank] = Self::word(at / 32);
            if bits >> (at % 32) & 1 != 0 {
                let before = (bits & ((1 << (at % 32)) - 1)).count_ones();
                if STEP == STEP_PACK {
                    let to = copy::dynamic_shared() + DETECT_FOUND + (rank + before) * 2;
                    copy::st_shared_b16(to, position);
                }
                let index = Self::base(own)[0] + rank + before;
                let list = p.lists + (first + own) as u64 * p.stride as u64 * 4;
                global::st_b32(list + index as u64 * 4, part * r.positions + position);
            }
            at += DETECT_THREADS;
        }
    }
}
