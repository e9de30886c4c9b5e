//! One round of a radix selection: counts the ranks with each digit, then finds the digit of the pivot. Thread blocks
//! count in shared memory; the last one of a selection to arrive finds the digit.

use super::{arrives_last, ordered, rank, score, words};
use crate::device::prelude::*;
use crate::device::strided::strided;
use crate::families::convert::abi::*;
use crate::families::convert::radix::{DIGITS, pivot_digit};

impl<W: WalkInfo, E: Elem> Kernel<W, E, ConvertParams> for Select {
    #[inline(always)]
    unsafe fn run(p: &ConvertParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let (selection, part) = p.parts.of(gpu::block_x());
        let state = p.selections().at(selection);
        let [low, high, left, _] =
            if p.flags & CONVERT_FIRST != 0 { [0, 0, p.top, 0] } else { state.ld() };
        let pivot = (high as u64) << 32 | low as u64;
        unroll!(i < 8, {
            let digit = gpu::thread() + i as u32 * SCAN_THREADS;
            words().at(digit).st(0);
        });
        gpu::sync_threads();
        count::<E>(p, selection, part, pivot);
        gpu::sync_threads();
        let counters = p.digits().at(selection as u64 * SELECT_WORDS as u64);
        unroll!(i < 8, {
            let digit = gpu::thread() + i as u32 * SCAN_THREADS;
            let found = words().at(digit).ld();
            if found > 0 {
                counters.at(digit).atom_add(found);
            }
        });
        if arrives_last(counters.at(DIGITS), p.parts.value) {
            settle(p, counters, state, pivot, left);
        }
    }
}

/// Counts the digits of this part's ranks that agree with the determined bits of the pivot.
#[inline(always)]
fn count<E: Elem>(p: &ConvertParams, selection: u32, part: u32, pivot: u64) {
    let start = part * SELECT_PART;
    let end = (start + SELECT_PART).min(p.candidates.value);
    strided(start + gpu::thread(), end, SCAN_THREADS, |place| {
        let position = selection * p.candidates.value + place;
        let (block_row, column) = p.block_columns.of(position);
        let own = rank(p, ordered::<E>(score::<E>(p, block_row, column)), place);
        // Two shifts, because a single shift by 64 would not clear the value.
        let settled = (own ^ pivot) >> p.digit_shift >> DIGIT_BITS;
        if p.flags & CONVERT_FIRST != 0 || settled == 0 {
            let digit = (own >> p.digit_shift) as u32 % DIGITS;
            words().at(digit).red_add(1);
        }
    });
}

/// Finds the digit at which the `left` highest ranks are reached, from the highest digit down, and clears the counters.
#[inline(always)]
fn settle(
    p: &ConvertParams,
    counters: Global<u32, Fresh>,
    state: Global<[u32; 4], Fresh>,
    pivot: u64,
    left: u32,
) {
    let take = |digit: u32| {
        let count = counters.at(digit).ld();
        counters.at(digit).st(0);
        count
    };
    pivot_digit(left, take, |[digit, left, ..]| {
        let pivot = pivot | (digit as u64) << p.digit_shift;
        state.st([pivot as u32, (pivot >> 32) as u32, left, 0]);
    });
}
