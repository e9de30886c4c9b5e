//! Join of two columns of keys on the current rayon pool.

use std::ops::Range;

use einsparse_formats::allocate;
use rayon::prelude::*;

use super::{Keys, check_pairs};
use crate::error::Result;
use crate::parallel;

/// Returns all pairs of rows with equal keys, sorted by the sum of their order keys, then by the rows.
pub(crate) fn join(
    [left, right]: Keys<'_>,
    order: Option<Keys<'_>>,
) -> Result<(Vec<u32>, Vec<u32>)> {
    let mut sorted = allocate::each("keys of entries", right.len(), &|q| (right[q], q as u32))?;
    sorted.par_sort_unstable();
    let found = |p: usize| {
        let key = left[p];
        let first = sorted.partition_point(|&(k, _)| k < key);
        first..first + sorted[first..].partition_point(|&(k, _)| k == key)
    };
    let counts = allocate::each("pairs of entries", left.len(), &|p| found(p).len())?;
    let rows = counts.iter().map(|&count| count as u128).sum();
    check_pairs(rows, [left.len(), right.len()])?;
    let mut pairs = allocate::filled("pairs of entries", rows as usize, (0, 0))?;
    parallel::each_of(pieces(&counts, &mut pairs), &|_, (rows, pairs): Piece<'_>| {
        let of = |p: usize| sorted[found(p)].iter().map(move |&(_, q)| (p as u32, q));
        let places = pairs.iter_mut().zip(rows.flat_map(of));
        places.for_each(|(place, pair)| *place = pair);
    });
    if let Some([left, right]) = order {
        pairs.par_sort_unstable_by_key(|&(p, q)| (left[p as usize] + right[q as usize], p, q));
    }
    let side = |of: &(dyn Fn((u32, u32)) -> u32 + Sync)| {
        allocate::each("pairs of entries", pairs.len(), &|at| of(pairs[at]))
    };
    Ok((side(&|(p, _)| p)?, side(&|(_, q)| q)?))
}

/// Rows of the left column, and their pairs.
type Piece<'p> = (Range<usize>, &'p mut [(u32, u32)]);

/// Splits the rows into pieces and the pairs accordingly. `counts` states the number of pairs of each row.
fn pieces<'p>(counts: &[usize], mut pairs: &'p mut [(u32, u32)]) -> Vec<Piece<'p>> {
    const ROWS: usize = 1 << 12;
    let piece = |(at, counts): (usize, &[usize])| {
        let (own, rest) = std::mem::take(&mut pairs).split_at_mut(counts.iter().sum());
        pairs = rest;
        (at * ROWS..at * ROWS + counts.len(), own)
    };
    counts.chunks(ROWS).enumerate().map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::super::too_long;
    use super::*;

    #[test]
    fn pairs_come_in_the_order_asked_for() {
        let (left, right) = ([7, 1, 7, 3], [3, 7, 7, 9]);
        let (p, q) = join([&left, &right], None).unwrap();
        assert_eq!(p, [0, 0, 2, 2, 3]);
        assert_eq!(q, [1, 2, 1, 2, 0]);
        let (p, q) = join([&left, &right], Some([&[0; 4], &[0, 2, 1, 0]])).unwrap();
        assert_eq!(p, [3, 0, 2, 0, 2]);
        assert_eq!(q, [0, 2, 2, 1, 1]);
    }

    #[test]
    fn lists_longer_than_positions_are_refused() {
        let many = vec![0; 1 << 16];
        let error = join([&many, &many], None).unwrap_err();
        assert_eq!(error, too_long(1 << 32));
    }
}
