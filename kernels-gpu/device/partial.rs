//! Sums of partial sums, in a fixed order.

use super::memory::{Fresh, Global};
use super::shared::Shared;

/// Sum of `parts` numbers in global memory. Eight loads are in flight; numbers past the last one are zero.
#[inline(always)]
pub fn of_parts(parts: u32, at: impl Fn(u32) -> Global<f32, Fresh>) -> f32 {
    let (mut all, mut part) = (0.0, 0);
    while part < parts {
        let mut eight = [0.0; 8];
        unroll!(i < 8, {
            let own = part + i as u32;
            eight[i] = at(own).ld_if(own < parts);
        });
        unroll!(i < 8, { all += eight[i] });
        part += 8;
    }
    all
}

/// Sum of `count` numbers in shared memory that are `stride` numbers apart.
#[inline(always)]
pub fn of_column(first: Shared<f32>, count: u32, stride: u32) -> f32 {
    let (mut all, mut i) = (0.0, 0);
    while i < count {
        all += first.at(i * stride).ld();
        i += 1;
    }
    all
}
