//! Parallel loops on the current thread pool. Work is called through a pointer, so rayon's splitting is compiled once,
//! here. Generic loops would add a copy per loop and element type to every program.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

/// Pieces per thread: enough to balance pieces of unequal cost.
const PER_THREAD: usize = 8;

/// Calls `work(i)` for every `i` below `count`.
pub fn each(count: usize, work: &(dyn Fn(usize) + Sync)) {
    (0..count).into_par_iter().for_each(work);
}

/// Calls `work(i, part)` for every part.
pub fn each_of<P: Send>(parts: Vec<P>, work: &(dyn Fn(usize, P) + Sync)) {
    let parts: Vec<_> = parts.into_iter().map(|p| Mutex::new(Some(p))).collect();
    each(parts.len(), &|at| {
        let mut part = parts[at].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = part.take() {
            work(at, part);
        }
    });
}

/// Concatenates in order the results that `work(range, found)` appends, for ranges of at least `least` that partition
/// `0..count`.
pub fn gathered<R: Send>(
    count: usize,
    least: usize,
    work: &(dyn Fn(Range<usize>, &mut Vec<R>) + Sync),
) -> Vec<R> {
    let pieces = (count / least.max(1)).clamp(1, PER_THREAD * rayon::current_num_threads());
    let mut found: Vec<Vec<R>> = (0..pieces).map(|_| Vec::new()).collect();
    chunks(&mut found, 1, &|at, own| {
        work(count * at / pieces..count * (at + 1) / pieces, &mut own[0]);
    });
    match found.len() {
        1 => found.swap_remove(0),
        _ => found.into_iter().flatten().collect(),
    }
}

/// Collects `work(i)` for every `i` below `count`, in order. At least `least` of them run sequentially.
pub fn collect<R: Send>(count: usize, least: usize, work: &(dyn Fn(usize) -> R + Sync)) -> Vec<R> {
    gathered(count, least, &|range, found| found.extend(range.map(work)))
}

/// Calls `work(i, chunk)` for every chunk of `size` elements. The last chunk may be shorter.
pub fn chunks<T: Send>(data: &mut [T], size: usize, work: &(dyn Fn(usize, &mut [T]) + Sync)) {
    let count = data.len().div_ceil(size);
    let each = count.div_ceil(PER_THREAD * rayon::current_num_threads()).max(1);
    let parts = data.chunks_mut(each * size).collect();
    each_of(parts, &|part, data: &mut [T]| {
        for (at, chunk) in data.chunks_mut(size).enumerate() {
            work(part * each + at, chunk);
        }
    });
}

/// Calls `work(range)` for ranges of `size` that partition `0..count`.
pub fn ranges(count: usize, size: usize, work: &(dyn Fn(Range<usize>) + Sync)) {
    each(count.div_ceil(size), &|at| work(at * size..count.min((at + 1) * size)));
}
