//! Loops on the current pool. Work is called through a pointer and rayon's splitting is compiled once, here: generic
//! loops over it would bring a copy for each of them and each element type into every program.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

/// Pieces for each thread, where work is cut: enough to even out pieces of unequal cost.
const PER_THREAD: usize = 8;

/// `work(i)` for every `i` below `count`.
pub fn each(count: usize, work: &(dyn Fn(usize) + Sync)) {
    (0..count).into_par_iter().for_each(work);
}

/// `work(i, part)` for every part.
pub fn each_of<P: Send>(parts: Vec<P>, work: &(dyn Fn(usize, P) + Sync)) {
    let parts: Vec<_> = parts.into_iter().map(|p| Mutex::new(Some(p))).collect();
    each(parts.len(), &|at| {
        let mut part = parts[at].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = part.take() {
            work(at, part);
        }
    });
}

/// What `work(range, found)` finds in ranges of at least `least` that cut `0..count`, in order.
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

/// `work(i)` for every `i` below `count`, in order; at least `least` of them one after the other.
pub fn collect<R: Send>(count: usize, least: usize, work: &(dyn Fn(usize) -> R + Sync)) -> Vec<R> {
    gathered(count, least, &|range, found| found.extend(range.map(work)))
}

/// `work(i, chunk)` for every chunk of `size` elements, the last of which may be shorter.
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

/// `work(range)` for ranges that cut `0..count` into pieces of `size`.
pub fn ranges(count: usize, size: usize, work: &(dyn Fn(Range<usize>) + Sync)) {
    each(count.div_ceil(size), &|at| work(at * size..count.min((at + 1) * size)));
}
