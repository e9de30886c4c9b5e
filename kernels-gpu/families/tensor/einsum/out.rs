//! From sums to the output: sums over lanes, parts of cut sums, epilogue, one rounding.

use super::{Device, Kept, Sum};
use crate::device::epilogue::activate;
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

/// Adds up the sums of a unit's lanes. All lanes of the warp must take part.
#[inline(always)]
pub fn over_lanes<E: Elem, const VEC: usize>(p: &EinsumParams, sum: &mut Sum<E, VEC>) {
    let mut bits = 0;
    while bits < 5 {
        let other = E::shfl_xor(sum.acc[0], 1 << bits);
        let seen = warp::shfl_xor(sum.seen as u32, 1 << bits) != 0;
        if bits < p.lane_bits {
            sum.acc[0] = E::add(sum.acc[0], other);
            sum.seen |= seen;
        }
        bits += 1;
    }
}

/// Returns `alpha` times the sum. A sum without terms stays zero, even if `alpha` is infinite.
#[inline(always)]
fn scaled<E: Elem, const VEC: usize>(p: &EinsumParams, sum: &Sum<E, VEC>) -> [E::Acc; VEC] {
    let mut out = sum.acc;
    let alpha = E::scalar(p.alpha);
    let whole = p.flags & FLAG_JOIN != 0;
    unroll!(i < VEC, {
        if sum.seen && !whole {
            out[i] = E::mul(alpha, sum.acc[i]);
        }
    });
    out
}

/// Stores one part of a cut sum.
#[inline(always)]
pub fn epilogue<E: Elem, const VEC: usize>(p: &EinsumParams, sum: &Sum<E, VEC>, at: u64) {
    let part = scaled(p, sum);
    unroll!(i < VEC, { p.partial::<E>().at(at + i as u64).st(part[i]) });
}

/// Adds up parts `from`, `from + step`, ... below `end`, in this order.
#[inline(always)]
pub fn join<E: Elem, const VEC: usize>(
    p: &EinsumParams,
    sum: &mut Sum<E, VEC>,
    (from, end, step): (u32, u32, u32),
    kept: Kept,
) {
    let mut at = from;
    while at < end {
        let mut parts = [[E::ZERO; VEC]; 4];
        unroll!(u < 4, {
            let own = at + u as u32 * step;
            let place = kept.at(own);
            unroll!(i < VEC, {
                parts[u][i] = p.partial::<E>().at(place + i as u64).ld_if(own < end);
            });
        });
        unroll!(u < 4, {
            unroll!(i < VEC, { sum.acc[i] = E::add(sum.acc[i], parts[u][i]) });
        });
        at += step * 4;
    }
}

/// Applies bias, activation, gate, `=` or `+=`, and one rounding. The addresses of bias and gate are computed again
/// here: computed before the terms, they would occupy registers in the term loop.
#[inline(always)]
pub fn finish<E: Elem, const VEC: usize>(
    p: &EinsumParams,
    sum: &Sum<E, VEC>,
    out: Global<E, ReadWrite>,
    (place, rest, column): (u32, u32, u32),
) {
    let mut values = scaled(p, sum);
    if p.flags != 0 {
        let spot = p.spot::<0>(&Device, place, rest);
        // SAFETY: the loops of the listing stay inside of the bias, which `AnyPlan::check` has
        // checked.
        let bias = unsafe { Global::<E, ReadWrite>::new(spot.bias) };
        // SAFETY: as above, for the gate.
        let gate = unsafe { Global::<E, ReadWrite>::new(spot.gate) };
        let bias = bias.bytes(column as u64 * p.bias_inner);
        let gate = gate.bytes(column as u64 * p.gate_inner);
        let old = out.ld_raw::<VEC>(p.flags & FLAG_ACCUMULATE != 0);
        let open_always = p.flags & FLAG_GATE == 0;
        unroll!(i < VEC, {
            let at = bias.bytes(i as u64 * p.bias_inner);
            let added = at.ld_raw::<1>(p.flags & FLAG_BIAS != 0);
            let mut x = activate::<E>(p.flags, E::add(values[i], E::get(&added, 0)));
            let at = gate.bytes(i as u64 * p.gate_inner);
            let level = E::get(&at.ld_raw::<1>(!open_always), 0);
            if !open_always && !is_positive::<E>(level) {
                x = E::ZERO;
            }
            if p.flags & FLAG_ACCUMULATE != 0 {
                x = E::add(x, E::get(&old, i));
            }
            values[i] = x;
        });
    }
    out.st_rounded(&values);
}

/// Whether a number is above zero; false for NaN.
#[inline(always)]
fn is_positive<E: Elem>(x: E::Acc) -> bool {
    let [low, high] = E::words(x);
    let (top, rest, infinity) =
        if E::ACC_BYTES == 8 { (high, low, 0x7ff0_0000) } else { (low, 0, 0x7f80_0000) };
    let sign = top >> 31 != 0;
    let nan = (top & 0x7fff_ffff) > infinity || ((top & 0x7fff_ffff) == infinity && rest != 0);
    !sign && !nan && (top | rest) != 0
}
