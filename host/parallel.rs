//! Loops on the current pool. Work is called through a pointer, so that rayon's splitting is compiled once and not for every loop.

use std::ops::Range;

use rayon::prelude::*;

/// `work(i)` for every `i` below `count`.
pub(crate) fn each(count: usize, work: &(dyn Fn(usize) + Sync)) {
    (0..count).into_par_iter().for_each(work);
}

/// `work(i)` for every `i` below `count`, in order.
pub(crate) fn collect<R: Send>(count: usize, work: &(dyn Fn(usize) -> R + Sync)) -> Vec<R> {
    (0..count).into_par_iter().map(work).collect()
}

/// `work(item)` for every item.
pub(crate) fn each_owned<I: Send>(items: Vec<I>, work: &(dyn Fn(I) + Sync)) {
    items.into_par_iter().for_each(work);
}

/// `work(i, chunk)` for every chunk of `size` elements, the last of which may be shorter.
pub(crate) fn chunks<T: Send>(
    data: &mut [T],
    size: usize,
    work: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    let chunks = data.par_chunks_mut(size).enumerate();
    chunks.for_each(|(at, chunk)| work(at, chunk));
}

/// `work(range)` for ranges that cut `0..count` into pieces of `size`.
pub(crate) fn ranges(count: usize, size: usize, work: &(dyn Fn(Range<usize>) + Sync)) {
    each(count.div_ceil(size), &|at| {
        work(at * size..count.min((at + 1) * size))
    });
}
