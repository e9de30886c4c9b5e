//! Neighbouring short rows: a warp takes a stretch of them, a vector a lane, whatever row an element belongs to. Bits say where rows
//! start. Nothing is exchanged but by shuffles, and the next stretches' loads are under way.

use super::forward::{FAINT, factor, power};
use super::gradient::slope;
use super::parts::{Parts, has, lane};
use crate::abi::*;
use crate::device::elem::{Elem, Raw};
use crate::device::gpu;
use crate::device::ptx::{global, matrix, warp};

/// What no maximum of scores above 2^127 below zero is affected by: finite, so that what -Inf is taken relative to is a number.
const LEAST: f32 = -1.701_411_8e38;

/// How far scaled scores of a stretch may lie apart for rows to be taken relative to the largest of all: exponentials are far from
/// the smallest numbers, and what is rounded of a difference is less than of such scores themselves.
const CLOSE: f32 = 24.0;

/// Where the arrays of a launch lie for this lane, of its thread block's head.
#[derive(Clone, Copy)]
struct Arrays {
    input: u64,
    upstream: u64,
    output: u64,
    items: u64,
    starts: u64,
    lives: u64,
}

impl Arrays {
    /// From the vector that the lane would have of a stretch at slot 0, and from stretch `own` on.
    #[inline(always)]
    fn new<E: Elem, const VEC: usize>(p: &SoftmaxParams, own: u32) -> Arrays {
        let slots = gpu::block_y() as u64 * p.stride + (lane() * VEC as u32) as u64;
        let (of_head, of_lane) = (slots * E::BYTES as u64, own as u64 * 32 + lane() as u64);
        Arrays {
            input: p.input + of_head,
            upstream: p.upstream + of_head,
            output: p.output + of_head,
            items: p.items + (p.firsts[SOFTMAX_STRETCHES] + own) as u64 * 8,
            starts: p.starts + of_lane,
            lives: if p.live == 0 { 0 } else { p.lives + of_lane },
        }
    }

    /// The stretch that is reached, if it is there.
    #[inline(always)]
    fn stretch(&self, there: bool) -> Stretch {
        let [start, len] = global::load_v2(self.items, there);
        Stretch {
            start,
            len,
            starts: global::load_b8(self.starts, there),
            live: match self.lives {
                0 => !0,
                _ => global::load_b8(self.lives, there),
            },
        }
    }

    #[inline(always)]
    fn advance(&mut self, step: u32) {
        self.items += step as u64 * 8;
        self.starts += step as u64 * 32;
        self.lives += if self.lives == 0 { 0 } else { step as u64 * 32 };
    }
}

/// A stretch, and this lane's part of it. Slots are counted from the aligned vector that holds the first entry.
#[derive(Clone, Copy)]
struct Stretch {
    start: u32,
    len: u32,
    /// Bit i: a row starts at the lane's slot i.
    starts: u32,
    /// Bit i: no mask hides it.
    live: u32,
}

impl Stretch {
    /// Where this lane's vector lies in an array.
    #[inline(always)]
    fn address<E: Elem, const VEC: usize>(self, array: u64) -> u64 {
        array + (self.start & !(VEC as u32 - 1)) as u64 * E::BYTES as u64
    }

    /// The lane's slots in front of the stretch, and those up to its end.
    #[inline(always)]
    fn own<const VEC: usize>(self) -> (u32, u32) {
        let (slot, lead) = (lane() * VEC as u32, self.start % VEC as u32);
        let end = (lead + self.len).saturating_sub(slot);
        (lead.saturating_sub(slot), end)
    }

    /// This lane's vectors of both operands of a gradient, else of the one.
    #[inline(always)]
    fn vectors<E: Elem, const VEC: usize, const GRADIENT: bool>(
        self,
        arrays: &Arrays,
    ) -> (Raw, Raw) {
        let there = self.own::<VEC>().1 > 0;
        // In place others write in front of the stretch and behind it.
        let given = E::load_own::<VEC>(self.address::<E, VEC>(arrays.input), there);
        if GRADIENT {
            let upstream = self.address::<E, VEC>(arrays.upstream);
            (given, E::load_own::<VEC>(upstream, there))
        } else {
            (given, given)
        }
    }

    /// Stores what belongs to the stretch of this lane's vector: whole, and at the stretch's ends single elements.
    #[inline(always)]
    fn store<E: Elem<Acc = f32>, const VEC: usize>(self, arrays: &Arrays, values: &[f32; VEC]) {
        let (from, to) = self.own::<VEC>();
        let at = self.address::<E, VEC>(arrays.output);
        let mut wide = [0.0; 8];
        unroll!(i < VEC, { wide[i] = values[i] });
        let raw = E::put(&wide);
        if from == 0 && to >= VEC as u32 {
            global::store_v4(at, raw);
        } else {
            unroll!(i < VEC, {
                let own = i as u32 >= from && (i as u32) < to;
                if E::BYTES == 2 {
                    global::store_b16_if(at + i as u64 * 2, raw[i / 2] >> (i % 2 * 16), own);
                } else {
                    global::store_b32_if(at + i as u64 * 4, raw[i % 4], own);
                }
            });
        }
    }
}

/// Scores of a lane, numbers that are neither masked nor another stretch's; the others are 0.
#[inline(always)]
fn own_scores<E: Elem<Acc = f32>, const VEC: usize>(
    arrays: &Arrays,
    own: Stretch,
    raw: &Raw,
) -> [f32; VEC] {
    let mut scores = [0.0; VEC];
    unroll!(i < VEC, { scores[i] = E::get(raw, i) });
    let (from, to) = own.own::<VEC>();
    // What others write in the meantime would decide about roundings.
    if from > 0 || to < VEC as u32 {
        unroll!(i < VEC, {
            let there = i as u32 >= from && (i as u32) < to;
            scores[i] = if there { scores[i] } else { 0.0 };
        });
    }
    if arrays.lives != 0 {
        unroll!(i < VEC, {
            scores[i] = if has(own.live, i) { scores[i] } else { 0.0 };
        });
    }
    scores
}

/// The order of numbers as that of integers, and back.
#[inline(always)]
fn ordered(x: f32) -> u32 {
    let bits = x.to_bits();
    bits ^ (((bits as i32) >> 31) as u32 | 1 << 31)
}

#[inline(always)]
fn number(ordered: u32) -> f32 {
    f32::from_bits(ordered ^ (((!ordered as i32) >> 31) as u32 | 1 << 31))
}

/// The largest scaled score of a stretch, if all are within [`CLOSE`] of it: then every row may be taken relative to it, and none needs
/// a maximum of its own.
#[inline(always)]
fn largest<const VEC: usize>(scores: &[f32; VEC], factor: f32) -> (f32, bool) {
    let (mut high, mut low) = (scores[0], scores[0]);
    unroll!(i < VEC, {
        if i > 0 {
            high = matrix::max_or_nan(high, scores[i]);
            low = matrix::min(low, scores[i]);
        }
    });
    // NaN is above all numbers.
    let high = number(warp::greatest(ordered(high))) * factor;
    let low = number(warp::least(ordered(low))) * factor;
    let largest = if factor < 0.0 { low } else { high };
    (largest, (high - low).abs() <= CLOSE)
}

#[inline(always)]
fn forward<E: Elem<Acc = f32>, const VEC: usize, const LOG: bool>(
    (scale, arrays): (f32, &Arrays),
    (own, parts): (Stretch, Parts),
    raw: Raw,
) {
    let factor = factor::<LOG>(scale);
    let scores = own_scores::<E, VEC>(arrays, own, &raw);
    let (largest, close) = largest(&scores, factor);
    if close && parts.are_few() {
        let mut differences = [0.0; VEC];
        unroll!(i < VEC, {
            differences[i] = matrix::fma_f32(scores[i], factor, -largest);
        });
        finish::<E, VEC, LOG, true>(arrays, (own, parts), differences);
    } else {
        let mut differences = [0.0; VEC];
        unroll!(i < VEC, {
            differences[i] = matrix::mul_f32(scores[i], factor)
        });
        if arrays.lives != 0 {
            unroll!(i < VEC, {
                let (score, live) = (differences[i], has(own.live, i));
                differences[i] = if live { score } else { f32::NEG_INFINITY };
            });
        }
        let most = parts.over_rows::<VEC, true, false>(&differences, LEAST, |most| most);
        unroll!(i < VEC, { differences[i] -= most[i] });
        finish::<E, VEC, LOG, false>(arrays, (own, parts), differences);
    }
}

/// From scores relative to what is the same for a row to its softmax.
#[inline(always)]
fn finish<E: Elem<Acc = f32>, const VEC: usize, const LOG: bool, const FEW: bool>(
    arrays: &Arrays,
    (own, parts): (Stretch, Parts),
    differences: [f32; VEC],
) {
    let mut powers = [0.0; VEC];
    unroll!(i < VEC, { powers[i] = power::<LOG>(differences[i]) });
    if arrays.lives != 0 {
        unroll!(i < VEC, {
            powers[i] = if has(own.live, i) { powers[i] } else { 0.0 };
        });
    }
    let sums = parts.over_rows::<VEC, false, FEW>(&powers, FAINT, |sum| {
        if LOG {
            core::f32::consts::LN_2 * matrix::log2(sum)
        } else {
            matrix::reciprocal(sum)
        }
    });
    let mut out = [0.0; VEC];
    unroll!(i < VEC, {
        out[i] = if LOG {
            differences[i] - sums[i]
        } else {
            powers[i] * sums[i]
        };
    });
    if arrays.lives != 0 {
        let masked = if LOG { f32::NEG_INFINITY } else { 0.0 };
        unroll!(i < VEC, {
            out[i] = if has(own.live, i) { out[i] } else { masked };
        });
    }
    own.store::<E, VEC>(arrays, &out);
}

#[inline(always)]
fn gradient<E: Elem<Acc = f32>, const VEC: usize, const LOG: bool, const FEW: bool>(
    (scale, arrays): (f32, &Arrays),
    (own, parts): (Stretch, Parts),
    (given, upstream): (Raw, Raw),
) {
    let mut shares = [0.0; VEC];
    unroll!(i < VEC, {
        let weight = if LOG { 1.0 } else { E::get(&given, i) };
        shares[i] = weight * E::get(&upstream, i);
    });
    if arrays.lives != 0 {
        unroll!(i < VEC, {
            shares[i] = if has(own.live, i) { shares[i] } else { 0.0 };
        });
    }
    let sums = parts.over_rows::<VEC, false, FEW>(&shares, 0.0, |sum| sum);
    let mut out = [0.0; VEC];
    unroll!(i < VEC, {
        let (y, dy) = (E::get(&given, i), E::get(&upstream, i));
        out[i] = slope::<LOG>(y, dy, sums[i]) * scale;
    });
    if arrays.lives != 0 {
        unroll!(i < VEC, {
            out[i] = if has(own.live, i) { out[i] } else { 0.0 };
        });
    }
    own.store::<E, VEC>(arrays, &out);
}

/// The stretches, dealt round to warps. Places are loaded two rounds ahead, elements one.
#[inline(always)]
pub(super) fn deal<E: Elem<Acc = f32>, const VEC: usize, const GRADIENT: bool, const LOG: bool>(
    p: &SoftmaxParams,
) {
    const CLASS: usize = SOFTMAX_STRETCHES;
    let warps = SOFTMAX_THREADS / 32;
    let step = (p.blocks[CLASS + 1] - p.blocks[CLASS]) * warps;
    let count = p.firsts[CLASS + 1] - p.firsts[CLASS];
    let mut index = (gpu::block_x() - p.blocks[CLASS]) * warps + gpu::thread() / 32;
    let mut arrays = Arrays::new::<E, VEC>(p, index);
    let mut own = arrays.stretch(index < count);
    arrays.advance(step);
    let mut next = arrays.stretch(index + step < count);
    let mut raw = own.vectors::<E, VEC, GRADIENT>(&arrays);
    while index < count {
        let more = next.vectors::<E, VEC, GRADIENT>(&arrays);
        arrays.advance(step);
        let later = arrays.stretch(index + 2 * step < count);
        let (with, parts) = ((p.scale, &arrays), Parts::new::<VEC>(own.starts));
        if !GRADIENT {
            forward::<E, VEC, LOG>(with, (own, parts), raw.0);
        } else if parts.are_few() {
            gradient::<E, VEC, LOG, true>(with, (own, parts), raw);
        } else {
            gradient::<E, VEC, LOG, false>(with, (own, parts), raw);
        }
        (own, next, raw) = (next, later, more);
        index += step;
    }
}
