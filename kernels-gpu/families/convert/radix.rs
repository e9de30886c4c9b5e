//! Radix selection: the digit of the last selected element.

use crate::device::compact::scan_each;
use crate::device::gpu;
use crate::families::convert::abi::DIGIT_BITS;

/// Number of digits, eight per thread.
pub const DIGITS: u32 = 1 << DIGIT_BITS;

/// Finds the digit at which `left` elements are reached, from the highest digit down. `found` gets the digit, the number
/// of elements to select among those with the digit, the number of all those, and 0. `count` returns the number of
/// elements with a digit. Every thread of the thread block must call it.
#[inline(always)]
pub fn pivot_digit(left: u32, count: impl Fn(u32) -> u32, found: impl Fn([u32; 4])) {
    let digit = |i: usize| DIGITS - 1 - gpu::thread() * 8 - i as u32;
    let mut counts = [0; 8];
    unroll!(i < 8, { counts[i] = count(digit(i)) });
    let (above, _) = scan_each(counts);
    unroll!(i < 8, {
        if above[i] < left && above[i] + counts[i] >= left {
            found([digit(i), left - above[i], counts[i], 0]);
        }
    });
}
