//! The join of two columns of keys on the current rayon pool.

use rayon::prelude::*;

use super::{Keys, MOST_ROWS, too_long};
use crate::error::Result;

/// Every pair of rows with equal keys: ordered by the sums of their order keys, then by the rows.
pub(crate) fn join(
    [left, right]: Keys<'_>,
    order: Option<Keys<'_>>,
) -> Result<(Vec<u32>, Vec<u32>)> {
    let mut sorted: Vec<(u64, u32)> = right.iter().copied().zip(0..).collect();
    sorted.par_sort_unstable();
    let found = |key: &u64| {
        let first = sorted.partition_point(|(k, _)| k < key);
        first..first + sorted[first..].partition_point(|(k, _)| k == key)
    };
    let rows: u128 = left.par_iter().map(|key| found(key).len() as u128).sum();
    if rows > MOST_ROWS.into() {
        return Err(too_long(rows));
    }
    let pairs = left
        .par_iter()
        .enumerate()
        .flat_map_iter(|(p, key)| sorted[found(key)].iter().map(move |&(_, q)| (p as u32, q)));
    let mut pairs: Vec<(u32, u32)> = pairs.collect();
    if let Some([left, right]) = order {
        pairs.par_sort_unstable_by_key(|&(p, q)| (left[p as usize] + right[q as usize], p, q));
    }
    Ok(pairs.into_iter().unzip())
}

#[cfg(test)]
mod tests {
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
