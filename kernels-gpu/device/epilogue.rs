//! What happens to an accumulator on its way to C: scalar, bias, ReLU, `=` or `+=`, one rounding.

use super::elem::Elem;
use crate::abi::*;

/// The bias of a row, zero without one.
#[inline(always)]
pub fn row_bias<E: Elem>(p: &SpmmParams, row: u32) -> E::Acc {
    let raw = E::load::<1>(
        p.bias + row as u64 * E::BYTES as u64,
        p.flags & FLAG_BIAS_ROWS != 0,
    );
    E::get(&raw, 0)
}

/// The scalar factor of a row's sum. A row without entries has no product: nothing is scaled, not even by infinity.
#[inline(always)]
pub fn scale<E: Elem>(p: &SpmmParams, len: u32) -> E::Acc {
    if len == 0 {
        E::ZERO
    } else {
        E::scalar(p.alpha)
    }
}

/// Finishes `V` neighbouring columns of one row and stores those below `n`. The caller guarantees
/// that `V` elements at `column` may be accessed at once when `column < n`.
#[inline(always)]
pub fn finish<E: Elem, const V: usize>(
    p: &SpmmParams,
    row: u32,
    column: u32,
    (alpha, row_bias): (E::Acc, E::Acc),
    acc: [E::Acc; V],
) {
    let inside = column < p.n;
    let offset = column as u64 * E::BYTES as u64;
    let c = p.c + row as u64 * p.ldc_bytes as u64 + offset;
    let bias = E::load::<V>(p.bias + offset, inside && p.flags & FLAG_BIAS_COLUMNS != 0);
    let old = E::load_own::<V>(c, inside && p.flags & FLAG_ACCUMULATE != 0);
    let mut out = acc;
    unroll!(i < V, {
        let mut x = E::fma(alpha, acc[i], row_bias);
        x = E::add(x, E::get(&bias, i));
        if p.flags & FLAG_RELU != 0 {
            x = E::relu(x);
        }
        if p.flags & FLAG_ACCUMULATE != 0 {
            x = E::add(x, E::get(&old, i));
        }
        out[i] = x;
    });
    if inside {
        E::store::<V>(c, &out);
    }
}
