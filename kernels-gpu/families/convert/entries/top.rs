//! Selects the `p.top` largest magnitudes of a row. A thread block finds the smallest of them by radix selection:
//! digits of 11 bits, highest first, counted in shared memory. Among equal magnitudes the first columns are selected.
//! The kernel stores the smallest selected magnitude and the column after the last selected one. Zeros are never
//! selected.

use super::{after_scan, element, magnitude, scan};
use crate::device::prelude::*;
use crate::families::convert::abi::*;
use crate::families::convert::radix::{DIGITS, pivot_digit};

/// The determined part of a row's pivot.
#[derive(Clone, Copy)]
struct Pivot {
    bits: u64,
    shift: u32,
    /// Elements to select among those that agree with the determined bits.
    left: u32,
    equal: u32,
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, EntriesParams> for TopEntries {
    #[inline(always)]
    unsafe fn run(p: &EntriesParams, _: Maps) {
        grid::launch_dependents();
        let row = gpu::block_x();
        // SAFETY: this step only reads the matrix. The preceding launch ended before it started.
        let from = unsafe { p.source::<E>().with::<ReadOnly>() }.row(row, p.row_bytes);
        let mut pivot = Pivot { bits: 0, shift: E::BYTES * 8 - 1, left: p.top, equal: u32::MAX };
        while pivot.shift > 0 && pivot.left > 0 {
            pivot = next_digit::<E>(p, from, pivot);
        }
        // With fewer nonzeros than `top`, all of them are kept.
        let end = if pivot.left == 0 {
            0
        } else if pivot.equal == pivot.left {
            u32::MAX
        } else {
            end_of_ties::<E>(p, from, pivot)
        };
        if gpu::thread() == 0 {
            let words = [pivot.bits as u32, (pivot.bits >> 32) as u32, end, 0];
            p.pivots().at(row).st(words);
        }
    }
}

/// Calls `take` with the magnitudes of a row, eight loads in flight per thread.
#[inline(always)]
fn each<E: Elem>(p: &EntriesParams, from: Global<E, ReadOnly>, mut take: impl FnMut(u64)) {
    let mut first = gpu::thread();
    while first < p.k {
        let mut raw = [[0u32; 4]; 8];
        unroll!(i < 8, {
            let column = first as u64 + i as u64 * SCAN_THREADS as u64;
            raw[i] = from.at(column).ld_raw::<1>(column < p.k as u64);
        });
        // Elements that were not loaded are zero, which `take` ignores.
        unroll!(i < 8, { take(magnitude::<E>(element::<E>(&raw[i], 0))) });
        first = first.saturating_add(8 * SCAN_THREADS);
    }
}

/// Determines one more digit of the pivot. Every thread must call it; all get the same result.
#[inline(always)]
fn next_digit<E: Elem>(p: &EntriesParams, from: Global<E, ReadOnly>, pivot: Pivot) -> Pivot {
    let counters = after_scan();
    unroll!(i < 8, { counters.at(gpu::thread() + i as u32 * SCAN_THREADS).st(0) });
    let found = counters.at(DIGITS).cast::<[u32; 4]>();
    if gpu::thread() == 0 {
        found.st([0; 4]);
    }
    gpu::sync_threads();
    let shift = pivot.shift.saturating_sub(DIGIT_BITS);
    let width = pivot.shift - shift;
    each::<E>(p, from, |magnitude| {
        if magnitude > 0 && magnitude >> pivot.shift == pivot.bits >> pivot.shift {
            let digit = (magnitude >> shift) as u32 & ((1 << width) - 1);
            counters.at(digit).red_add(1);
        }
    });
    gpu::sync_threads();
    pivot_digit(pivot.left, |digit| counters.at(digit).ld(), |settled| found.st(settled));
    gpu::sync_threads();
    let [digit, left, equal, _] = found.ld();
    let settled = Pivot { bits: pivot.bits | (digit as u64) << shift, shift, left, equal };
    gpu::sync_threads();
    settled
}

/// Returns the column after the last selected one among equal magnitudes. Every thread must call it.
#[inline(always)]
fn end_of_ties<E: Elem>(p: &EntriesParams, from: Global<E, ReadOnly>, pivot: Pivot) -> u32 {
    let found = after_scan().at(DIGITS);
    let (mut first, mut taken) = (0, 0);
    while first < p.k && taken < pivot.left {
        let column = first + gpu::thread();
        let raw = from.at(column).ld_raw::<1>(column < p.k);
        let equal = column < p.k && magnitude::<E>(element::<E>(&raw, 0)) == pivot.bits;
        let (before, all) = scan(equal as u32);
        if equal && taken + before + 1 == pivot.left {
            found.st(column + 1);
        }
        taken += all;
        first = first.saturating_add(SCAN_THREADS);
    }
    gpu::sync_threads();
    found.ld()
}
