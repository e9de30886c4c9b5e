//! A small sparse tensor of order 3 times operands that share a batch of items: the equivariant tensor product, its
//! gradients, and other expressions of this structure.

mod channels;
mod connected;
mod items;
mod own;
mod own_weights;
mod stage;
mod sums;
mod traces;
mod weights;

use crate::device::prelude::*;

/// Loads four accumulators from shared memory, 16-byte aligned.
#[inline(always)]
fn load_four<E: Elem>(from: u32) -> [E::Acc; 4] {
    let low = copy::ld_shared_v4(from);
    if E::ACC_BYTES == 8 {
        let high = copy::ld_shared_v4(from + 16);
        let pair = |w: [u32; 4], i: usize| E::from_words([w[2 * i], w[2 * i + 1]]);
        [pair(low, 0), pair(low, 1), pair(high, 0), pair(high, 1)]
    } else {
        let one = |i: usize| E::from_words([low[i], 0]);
        [one(0), one(1), one(2), one(3)]
    }
}
