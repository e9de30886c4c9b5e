//! Long sums in runs: the terms of a run are added up in order, the sums of runs by sixteens. The rounding error of a
//! sum then grows with the logarithm of its length.

use std::ops::Range;

use einsparse_formats::Accumulator;

/// Terms that are added up in order.
pub(crate) const RUN: usize = 256;
/// Sums of a level that make one of the next.
const WAYS: u64 = 16;
/// Runs of 2^64 terms.
const LEVELS: usize = 14;
/// Parts of one long sum that threads share, at most.
const PARTS: u64 = 64;

/// The most additions that follow one another in a sum of the CPU executor: in its terms, in its innermost loop, and
/// over the parts of threads.
#[doc(hidden)]
pub fn longest_chain(terms: u128) -> u128 {
    let run = RUN as u128;
    let runs = terms.div_ceil(run).max(1);
    let levels = u128::from(runs.ilog(u128::from(WAYS)) + 1);
    let long = 2 * (run + u128::from(WAYS) * levels) + u128::from(PARTS);
    terms.min(long)
}

/// Carries full levels over after a run: `carry(from, to)` adds level `from` to level `to` and clears it. `runs` counts
/// those before.
#[inline(always)]
fn carry(runs: u64, levels: usize, mut carry: impl FnMut(usize, usize)) {
    let (mut count, mut level) = (runs + 1, 0);
    while count.is_multiple_of(WAYS) && level + 1 < levels {
        carry(level, level + 1);
        (count, level) = (count / WAYS, level + 1);
    }
}

/// Adds a tile to another one.
pub(super) fn add<A: Accumulator>(to: &mut [A], from: &[A]) {
    let pairs = to.iter_mut().zip(from);
    pairs.for_each(|(to, from)| *to += *from);
}

/// Sums whose terms come one by one.
#[derive(Default)]
pub(super) struct Tile<A> {
    /// Sums of the run; of all runs when the tile is finished.
    pub(super) sums: Vec<A>,
    /// Terms of the run.
    added: usize,
    /// Sums of runs by level, each a tile; empty where one run is all.
    levels: Vec<A>,
    /// Runs that are done.
    runs: u64,
}

impl<A: Accumulator> Tile<A> {
    /// Zeros, for sums of so many terms.
    pub(super) fn start(&mut self, width: usize, terms: u64) {
        self.sums.clear();
        self.sums.resize(width, A::ZERO);
        self.levels.clear();
        let levels = match terms.div_ceil(RUN as u64) {
            0 | 1 => 0,
            runs => (runs.ilog(WAYS) as usize + 1).min(LEVELS),
        };
        self.levels.resize(width * levels, A::ZERO);
        (self.added, self.runs) = (0, 0);
    }

    /// Counts a term of every sum, and carries a full run over.
    pub(super) fn count(&mut self) {
        self.added += 1;
        if self.added < RUN || self.levels.is_empty() {
            return;
        }
        let width = self.sums.len();
        add(&mut self.levels[..width], &self.sums);
        self.sums.fill(A::ZERO);
        carry(self.runs, self.levels.len() / width, |from, to| {
            let (low, high) = self.levels.split_at_mut(to * width);
            add(high, &low[from * width..]);
            low[from * width..].fill(A::ZERO);
        });
        (self.added, self.runs) = (0, self.runs + 1);
    }

    /// All runs added up.
    pub(super) fn finish(&mut self) {
        for level in self.levels.chunks(self.sums.len().max(1)) {
            add(&mut self.sums, level);
        }
    }
}

/// Sums over a range, tile by tile: `part` sums a run in order.
#[inline(always)]
pub(crate) fn in_runs<A: Accumulator, const R: usize, const W: usize>(
    range: Range<usize>,
    run: usize,
    mut part: impl FnMut(Range<usize>) -> [[A; W]; R],
) -> [[A; W]; R] {
    // A sum of u32 slots has no more levels.
    const SLOT_LEVELS: usize = 7;
    let zero = [[A::ZERO; W]; R];
    let add = |to: &mut [[A; W]; R], from: &[[A; W]; R]| {
        add(to.as_flattened_mut(), from.as_flattened());
    };
    let (mut at, mut runs) = (range.start, 0);
    let mut all: Option<[[[A; W]; R]; SLOT_LEVELS]> = None;
    loop {
        let end = range.end.min(at.saturating_add(run));
        let sums = part(at..end);
        let last = end == range.end;
        if last && all.is_none() {
            return sums;
        }
        #[expect(
            clippy::unnecessary_lazy_evaluations,
            reason = "the levels are written once, and not for each run"
        )]
        let all = all.get_or_insert_with(|| [zero; SLOT_LEVELS]);
        add(&mut all[0], &sums);
        carry(runs, SLOT_LEVELS, |from, to| {
            let full = std::mem::replace(&mut all[from], zero);
            add(&mut all[to], &full);
        });
        (at, runs) = (end, runs + 1);
        if last {
            let [mut sum, rest @ ..] = *all;
            rest.iter().for_each(|level| add(&mut sum, level));
            return sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sums_are_exact_where_pairs_are() {
        for len in [0, 1, RUN, RUN + 1, 1 << 25] {
            let [[sum]] = in_runs(0..len, RUN, |range| {
                let mut sum = 0.0_f32;
                range.for_each(|_| sum += 1.0);
                [[sum]]
            });
            assert_eq!(sum, len as f32);
        }
    }

    #[test]
    fn chains_grow_with_the_logarithm() {
        assert_eq!(longest_chain(100), 100);
        assert_eq!(longest_chain(1 << 25), 2 * (256 + 5 * 16) + 64);
        assert!(longest_chain(u128::MAX) < 2000);
    }
}
