//! Scan of A for nonempty columns, a round of columns at a time. A lane has all rows of its columns in registers. It
//! finds the nonempty ones without other lanes, and stores their values in shared memory: A is read once. The list is
//! ascending, the same in every run.

use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

/// A lane's part of A: up to eight groups of eight rows, and up to four words of each row.
pub(super) type Raw = [[[u32; 4]; 8]; 8];

/// Columns of a round that are listed: `count` columns from rank `first` on, at entry `place` of the list and after it.
#[derive(Clone, Copy)]
pub(super) struct Taken {
    pub first: u32,
    pub count: u32,
    pub place: u32,
}

impl<const MT: usize, const WARPS: usize, const TOGETHER: bool> FewRows<MT, WARPS, TOGETHER> {
    /// Loads a lane's words of a row at `at`; zeros unless `row` is below `rows`. Where vectors are allowed, the
    /// memory of a row holds whole ones.
    #[inline(always)]
    fn vector(at: Global<u16, Fresh>, row: u32, rows: u32) -> [u32; 4] {
        match Self::WORDS {
            4 => at.ld_row::<16>(row, rows),
            2 => at.ld_row::<8>(row, rows),
            _ => at.ld_row::<4>(row, rows),
        }
    }

    /// Loads a lane's words of a row of any alignment; `rows` is given for each column.
    #[inline(always)]
    fn elements(at: Global<u16, Fresh>, row: u32, rows: [u32; 8]) -> [u32; 4] {
        let mut words = [0; 4];
        unroll!(w < Self::WORDS, most 4, {
            unroll!(h < 2, {
                let i = 2 * w + h;
                let [half, ..] = at.at(i as u64).ld_row::<2>(row, rows[i]);
                words[w] |= half << (16 * h);
            });
        });
        words
    }

    /// Loads all rows of this lane's columns from `column` on, of which `left` exist. Every load is in flight before
    /// the first is used.
    #[inline(always)]
    pub(super) fn load(p: &PitFewParams, column: u32, left: u32) -> Raw {
        let rows = [0, 1, 2, 3, 4, 5, 6, 7].map(|i| if i < left { p.m } else { 0 });
        let at = p.a().at(column);
        let vectors = p.flags & FEW_VECTORS != 0;
        // Before the branch over the loads of elements: instructions after a jump are fetched late. They are then
        // fetched while these loads are in flight.
        let whole = if vectors { rows[0] } else { 0 };
        let raw = Self::each_row(p, at, |at, row| Self::vector(at, row, whole));
        if vectors {
            return raw;
        }
        Self::each_row(p, at, |at, row| Self::elements(at, row, rows))
    }

    /// Returns the words that `load` returns for each row from `at` on.
    #[inline(always)]
    fn each_row(
        p: &PitFewParams,
        at: Global<u16, Fresh>,
        load: impl Fn(Global<u16, Fresh>, u32) -> [u32; 4],
    ) -> Raw {
        let mut raw = [[[0; 4]; 8]; 8];
        let mut at = at;
        unroll!(g < MT / 8, {
            // Skips row groups past m: with one row they would dominate the instruction count.
            if g == 0 || g as u32 * 8 < p.m {
                unroll!(i < 8, {
                    raw[g][i] = load(at, (g * 8 + i) as u32);
                    at = at.bytes(p.lda_bytes);
                });
            }
        });
        raw
    }

    /// Prefetches the columns of the next round into L2, from `from` on; each tile that will scan them prefetches some
    /// lines. During the next round copies of B keep HBM busy.
    #[inline(always)]
    pub(super) fn fetch_ahead(p: &PitFewParams, from: u32, end: u32) {
        const LINE: u32 = 64;
        let across = Self::ROUND / LINE;
        let tiles = Self::by_parts(p, gpu::grid_x());
        let mut line = Self::tile(p) + gpu::thread() * tiles;
        while from < end && line < p.m * across {
            let column = from + line % across * LINE;
            let at = p.a().row(line / across, p.lda_bytes).at(column);
            at.prefetch_l2(column < end);
            line += tiles * Self::THREADS;
        }
    }

    /// Returns a bit for each of this lane's columns with an element above the threshold; `left` columns exist.
    #[inline(always)]
    pub(super) fn found(p: &PitFewParams, raw: &Raw, left: u32) -> u32 {
        let mut found = 0;
        unroll!(w < Self::WORDS, most 4, {
            let mut marks = 0;
            unroll!(g < MT / 8, {
                if g == 0 || g as u32 * 8 < p.m {
                    unroll!(i < 8, {
                        marks |= (raw[g][i][w] & 0x7fff_7fff) + p.above;
                    });
                }
            });
            found |= (marks >> 15 & 1 | marks >> 30 & 2) << (2 * w);
        });
        // Columns past the last one belong to another part, or do not exist.
        found & ((1 << left.min(Self::EACH)) - 1)
    }

    /// Returns the rank in the round of this lane's first column found, and the number of columns found by the thread
    /// block. Contains a barrier. `turn` alternates between 0 and 1 from round to round.
    #[inline(always)]
    pub(super) fn rank(found: u32, turn: u32) -> [u32; 2] {
        let (own, lane) = Self::own();
        // SAFETY: `SHARED_BYTES` of the tile includes 32 words for each of two rounds.
        let counts = unsafe { Shared::<u32>::dynamic(Self::COUNTS as u32) }.at(turn * 32);
        let mine = found.count_ones();
        let (mut in_front, mut all) = (0, 0);
        // One binary digit of every lane's count at a time.
        unroll!(digit < 4, {
            if 1 << digit <= Self::EACH {
                let lanes = warp::ballot(mine >> digit & 1 != 0);
                in_front += (lanes & ((1 << lane) - 1)).count_ones() << digit;
                all += lanes.count_ones() << digit;
            }
        });
        if lane == 0 {
            counts.at(own).st(all);
        }
        gpu::sync_threads();
        let mut count = counts.at(lane).ld();
        // Words after the last warp's count are not initialized.
        count = if lane < WARPS as u32 { count } else { 0 };
        let before = warp::sum(if lane < own { count } else { 0 });
        [before + in_front, warp::sum(count)]
    }

    /// Stores the values of this lane's columns for [`Self::multiply`], and the columns in the list. `column` is the
    /// lane's first column, of rank `rank` if it was found.
    #[inline(always)]
    pub(super) fn put(raw: &Raw, found: u32, rank: u32, column: u32, taken: Taken) {
        unroll!(w < Self::WORDS, most 4, {
            unroll!(h < 2, {
                let bit = (2 * w + h) as u32;
                let before = (found & ((1 << bit) - 1)).count_ones();
                // Ranks below `first` wrap around to huge values.
                let rank = (rank + before).wrapping_sub(taken.first);
                if found >> bit & 1 != 0 && rank < taken.count {
                    let place = taken.place + rank;
                    Self::entry(place).st(column + bit);
                    let to = Self::values(place);
                    // The low or the high halves of neighbouring rows.
                    let which = if h == 0 { 0x5410 } else { 0x7632 };
                    unroll!(g < MT / 8, {
                        let pair = |i: usize| {
                            matrix::prmt(raw[g][2 * i][w], raw[g][2 * i + 1][w], which)
                        };
                        let eight = [pair(0), pair(1), pair(2), pair(3)];
                        to.at(g as u32).st(eight);
                    });
                }
            });
        });
    }

    /// Stores zeros after the last listed column, up to a k-step.
    #[inline(always)]
    pub(super) fn pad(listed: u32) {
        const EIGHTS: u32 = 8;
        let across = MT as u32 / EIGHTS;
        let place = listed + gpu::thread() / across;
        if place < listed.next_multiple_of(16) {
            Self::values(place).at(gpu::thread() % across).st([0; 4]);
        }
    }
}
