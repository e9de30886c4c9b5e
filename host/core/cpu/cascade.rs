//! Long sums in runs. The terms of a run are added in order, and 16 sums of runs at a time are combined. The rounding
//! error of a sum then grows with the logarithm of its length.

use std::ops::Range;

use einsparse_formats::Accumulator;

/// Number of terms that are added in order.
pub(crate) const RUN: usize = 256;
/// Number of sums of one level that are combined into a sum of the next level.
const WAYS: u64 = 16;
/// Number of levels for 2^64 terms.
const LEVELS: usize = 14;
/// Maximum number of parts of one long sum that threads share.
const PARTS: u64 = 64;

/// Maximum number of dependent additions in a sum of the CPU executor: over its terms, in its innermost loop, and over
/// the parts of threads.
#[doc(hidden)]
pub fn longest_chain(terms: u128) -> u128 {
    let run = RUN as u128;
    let runs = terms.div_ceil(run).max(1);
    let levels = u128::from(runs.ilog(u128::from(WAYS)) + 1);
    let long = 2 * (run + u128::from(WAYS) * levels) + u128::from(PARTS);
    terms.min(long)
}

/// Carries full levels after a run: `carry(from, to)` adds level `from` to level `to` and clears `from`. `runs` counts
/// the runs before this one.
#[inline(always)]
fn carry(runs: u64, levels: usize, mut carry: impl FnMut(usize, usize)) {
    let (mut count, mut level) = (runs + 1, 0);
    while count.is_multiple_of(WAYS) && level + 1 < levels {
        carry(level, level + 1);
        (count, level) = (count / WAYS, level + 1);
    }
}

/// Adds one tile to another.
pub(super) fn add<A: Accumulator>(to: &mut [A], from: &[A]) {
    let pairs = to.iter_mut().zip(from);
    pairs.for_each(|(to, from)| *to += *from);
}

/// Sums whose terms are added one at a time.
#[derive(Default)]
pub(super) struct Tile<A> {
    /// Sums of the current run; after `finish`, sums of all runs.
    pub(super) sums: Vec<A>,
    /// Number of terms in the current run.
    added: usize,
    /// Sums of runs by level, one tile per level; empty if there is one run.
    levels: Vec<A>,
    /// Number of completed runs.
    runs: u64,
}

impl<A: Accumulator> Tile<A> {
    /// Resets the tile to zeros, for sums of `terms` terms.
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

    /// Counts one term of every sum, and carries a full run.
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

    /// Adds all runs.
    pub(super) fn finish(&mut self) {
        for level in self.levels.chunks(self.sums.len().max(1)) {
            add(&mut self.sums, level);
        }
    }
}

/// Sums over a range, tile by tile. `part` sums one run in order.
#[inline(always)]
pub(crate) fn in_runs<A: Accumulator, const R: usize, const W: usize>(
    range: Range<usize>,
    run: usize,
    mut part: impl FnMut(Range<usize>) -> [[A; W]; R],
) -> [[A; W]; R] {
    // Enough levels for a sum of 2^32 slots.
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
