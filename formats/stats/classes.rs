//! Classes of rows with different group sizes, chosen by exact count.

use rayon::prelude::*;

use super::RowStats;

/// Maximum number of classes. More classes save less than 1 %.
const MOST: usize = 8;
/// Maximum number of sizes tried in each round.
const TRIED: usize = 512;
/// An additional class must save at least one part in this many.
const WORTH: u128 = 200;

/// Cost of the groups of a row in slots: one index slot per group, and one index and one value slot per slot of the
/// group.
fn row_cost(len: usize, group: usize) -> u128 {
    len.div_ceil(group) as u128 * (1 + 2 * group as u128)
}

/// Index of the cheapest size for a row. Of equal costs the larger size is chosen.
pub(crate) fn class_of(len: usize, sizes: &[usize]) -> usize {
    let cost = |&(at, &group): &(usize, &usize)| (row_cost(len, group), usize::MAX - group, at);
    sizes.iter().enumerate().min_by_key(cost).map_or(0, |(at, _)| at)
}

impl RowStats {
    /// Group sizes of classes of rows, ascending. Each row is in the class with the lowest cost for that row.
    ///
    /// The first size is [`RowStats::group`]. Each round then adds, among the lengths that occur, the size that saves
    /// most in addition to the chosen ones. The rounds end when a size saves less than 0.5 % of the total cost, or at
    /// eight sizes. Each candidate is counted exactly.
    pub fn group_classes(&self) -> Vec<usize> {
        let rows: Vec<(usize, u128)> = self
            .histogram
            .iter()
            .filter(|(len, _)| *len > 0)
            .map(|&(len, n)| (len, n as u128))
            .collect();
        let mut sizes = vec![self.group()];
        let step = rows.len().div_ceil(TRIED).max(1);
        let tried: Vec<usize> = rows.iter().step_by(step).map(|r| r.0).collect();
        let mut costs: Vec<u128> = rows.iter().map(|r| row_cost(r.0, sizes[0])).collect();
        while sizes.len() < MOST {
            let all: u128 = costs.iter().zip(&rows).map(|(c, r)| c * r.1).sum();
            let with = |&group: &usize| -> (u128, usize) {
                let each = costs.iter().zip(&rows);
                let sum = each.map(|(&c, r)| c.min(row_cost(r.0, group)) * r.1);
                (sum.sum(), group)
            };
            let Some((least, group)) = tried.par_iter().map(with).min() else {
                break;
            };
            if (all - least) * WORTH < all || least == all {
                break;
            }
            sizes.push(group);
            for (cost, row) in costs.iter_mut().zip(&rows) {
                *cost = row_cost(row.0, group).min(*cost);
            }
        }
        sizes.sort_unstable();
        sizes.dedup();
        // A size may lose all its rows to later sizes.
        let used: Vec<usize> = rows.iter().map(|r| class_of(r.0, &sizes)).collect();
        let kept = (0..sizes.len()).filter(|at| used.contains(at));
        kept.map(|at| sizes[at]).collect()
    }

    /// Total number of groups and of slots over all classes.
    pub(super) fn hybrid(&self) -> (u128, u128) {
        let sizes = self.group_classes();
        let rows = self.histogram.iter().filter(|(len, _)| *len > 0);
        rows.fold((0, 0), |(groups, slots), &(len, n)| {
            let group = sizes[class_of(len, &sizes)];
            let own = (len.div_ceil(group) * n) as u128;
            (groups + own, slots + own * group as u128)
        })
    }
}
