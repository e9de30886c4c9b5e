//! Sorting of entries in any order, and summation of duplicate entries.

use rayon::prelude::*;

use crate::error::*;
use crate::parallel;
use crate::{Accumulator, Coo, CooPattern, Element, Sparse, check, coo};

/// Gathers elements by position.
pub(super) fn gather<U: Copy + Send + Sync>(data: &[U], positions: &[u32]) -> Vec<U> {
    parallel::collect(positions.len(), 4096, &|at| data[positions[at] as usize])
}

/// Positions of the entries in lexicographic order of the axes. The sort is stable.
pub(super) fn sorted_positions(axes: &[&[u32]], extents: &[usize]) -> Vec<u32> {
    let len = axes[0].len();
    let space = extents.iter().try_fold(1u64, |n, &e| n.checked_mul(e as u64));
    if space.is_none() {
        let mut positions: Vec<u32> = (0..len as u32).collect();
        let key = |p: u32| axes.iter().map(move |data| data[p as usize]);
        positions.par_sort_by(|&a, &b| key(a).cmp(key(b)));
        return positions;
    }
    // Sorting by one number per entry is several times faster than comparing axis by axis.
    let key = |p: usize| {
        axes.iter().zip(extents).fold(0u64, |k, (data, &e)| k * e as u64 + u64::from(data[p]))
    };
    let mut keys: Vec<(u64, u32)> =
        (0..len).into_par_iter().with_min_len(4096).map(|p| (key(p), p as u32)).collect();
    keys.par_sort_unstable();
    keys.par_iter().with_min_len(4096).map(|&(_, p)| p).collect()
}

/// Implementation of [`Coo::from_entries`].
pub(crate) fn sort_entries<T: Element>(
    shape: Vec<usize>,
    coords: Vec<Vec<u32>>,
    values: Vec<T>,
) -> Result<Coo<T>> {
    let (names, count) = coo::check_coords(&shape, &coords)?;
    check::length("values", values.len(), count)?;
    let axes: Vec<&[u32]> = coords.iter().map(Vec::as_slice).collect();
    if check::lexicographic(&names, &axes).is_ok() {
        // SAFETY: the checks of `new` were made above.
        let pattern = unsafe { CooPattern::new_unchecked(shape, coords) };
        return Sparse::new(pattern, values);
    }
    let positions = sorted_positions(&axes, &shape);
    let same = |a: u32, b: u32| axes.iter().all(|data| data[a as usize] == data[b as usize]);
    let is_first = |i: &usize| *i == 0 || !same(positions[*i], positions[*i - 1]);
    let firsts: Vec<usize> = (0..count).into_par_iter().filter(is_first).collect();
    let sum = |f: usize| {
        let end = firsts.get(f + 1).copied().unwrap_or(count);
        let given = &positions[firsts[f]..end];
        if let [only] = given {
            return values[*only as usize];
        }
        let mut sum = T::Acc::ZERO;
        for &p in given {
            sum += values[p as usize].to_acc();
        }
        T::from_acc(sum)
    };
    let summed = parallel::collect(firsts.len(), 4096, &sum);
    let kept: Vec<u32> = firsts.par_iter().map(|&i| positions[i]).collect();
    let coords = axes.iter().map(|data| gather(data, &kept)).collect();
    // SAFETY: the entries are inside the shape as validated above, sorted, and distinct.
    let pattern = unsafe { CooPattern::new_unchecked(shape, coords) };
    Sparse::new(pattern, summed)
}
