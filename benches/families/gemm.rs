//! Block-sparse and dense matrices on Tensor Cores.

mod accumulate;
pub mod dense;
mod layer;
mod narrow;

use crate::prelude::*;
use crate::sweep;
use einsparse::formats::BsrPattern;

/// Operations of the family.
pub const OPERATIONS: &[Entry] = &[
    ("block_spmm", Table(sweep::run)),
    ("nm_spmm", Table(sweep::run)),
    (dense::OP, Own(dense::run)),
    (accumulate::OP, Own(accumulate::run)),
    ("narrow", Own(narrow::run)),
    ("nm_narrow", Own(narrow::two_of_four)),
    ("layer", Own(layer::run)),
];

/// Terms of a row of a product of blocks: element `i` of the stored blocks is `a(i)`, element `(k, j)` of the dense
/// matrix `b(k, j)`.
fn blocks_terms(
    pattern: &BsrPattern,
    a: impl Fn(usize) -> f64,
    b: impl Fn(usize, usize) -> f64,
) -> impl Fn(usize, &mut [Sum]) {
    let (bm, bk) = pattern.block();
    move |row, sums| {
        let ends = &pattern.offsets()[row / bm..];
        for p in ends[0] as usize..ends[1] as usize {
            let first = pattern.columns()[p] as usize * bk;
            for i in 0..bk {
                let x = a((p * bm + row % bm) * bk + i);
                sums.iter_mut().enumerate().for_each(|(j, sum)| sum.add(x * b(first + i, j)));
            }
        }
    }
}
