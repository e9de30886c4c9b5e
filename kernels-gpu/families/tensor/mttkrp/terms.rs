//! The contribution of an entry to a row, element by element.

use crate::device::prelude::*;
use crate::families::tensor::abi::*;

/// Loads a lane's elements of a row of a factor.
#[inline(always)]
pub(super) fn load<E: Elem, const VEC: usize, F: GatherForm>(
    from: Global<E, ReadWrite>,
    valid: bool,
    policy: u64,
) -> [u32; 4] {
    // An L2 policy makes a load slightly slower. It is worth it if the output would evict a single factor.
    if F::FACTORS == 1 && VEC as u32 * E::BYTES == 16 {
        from.cast::<[u32; 4]>().ld_with_policy_if(valid, policy)
    } else {
        from.ld_raw::<VEC>(valid)
    }
}

/// An entry's value times element `i` of the rows of all factors except the first.
#[inline(always)]
pub(super) fn scaled<E: Elem, F: GatherForm>(
    value: E::Acc,
    others: [&[u32; 4]; 2],
    i: usize,
) -> E::Acc {
    let mut x = value;
    unroll!(f < 2, {
        if f + 1 < F::FACTORS {
            x = E::mul(x, E::get(others[f], i));
        }
    });
    x
}

/// Adds the product of an entry to a sum, or takes the max of both. Values of absent entries are zero.
#[inline(always)]
pub(super) fn reduced<E: Elem, F: GatherForm>(
    sum: E::Acc,
    (x, b): (E::Acc, E::Acc),
    exists: bool,
) -> E::Acc {
    if F::REDUCE == REDUCE_MAX {
        let product = E::max(sum, E::mul(x, b));
        if exists { product } else { sum }
    } else {
        E::fma(x, b, sum)
    }
}
