//! Neighbouring short rows through shared memory: a thread block brings a stretch of them in whole vectors, each thread
//! works on one row there, and whole vectors leave. Rows may be of any length up to `STRETCH_LONGEST` and begin anywhere.

use super::forward::{Finish, base_of};
use super::gradient::slope;
use super::{Span, exp};
use crate::abi::*;
use crate::device::elem::{Elem, Raw};
use crate::device::gpu;
use crate::device::ptx::{copy, global, matrix, warp};

/// What stands in the place of a masked entry's sum: a NaN that no arithmetic makes.
const MASKED: u32 = 0xffff_fffe;

/// A stretch, and this thread's row of it. Slots are counted from the aligned vector that holds the first entry.
#[derive(Clone, Copy)]
struct Stretch {
    span: Span,
    /// First slot of the row.
    from: u32,
    /// Its entries, and those of them that no mask hides.
    len: u32,
    live: u32,
}

impl Stretch {
    #[inline(always)]
    fn load<const VEC: usize>(p: &SoftmaxParams, index: u32, count: u32) -> Stretch {
        let there = index < count;
        let first = p.firsts[SOFTMAX_STRETCHES];
        let [start, len] = global::load_v2(p.items + index as u64 * 8, there);
        let span = Span::new::<VEC>(p, start, len, len);
        let own = index - first;
        let bounds = own as u64 * STRETCH_BOUNDS as u64 + gpu::thread_again() as u64;
        let from = global::load_b16(p.bounds + bounds * 2, there);
        let len = global::load_b16(p.bounds + bounds * 2 + 2, there) - from;
        let row = first as u64 + own as u64 * STRETCH_ROWS as u64 + gpu::thread_again() as u64;
        Stretch {
            span,
            from: span.lead + from,
            len,
            live: match p.live {
                0 => len,
                live => global::load_b32(live + row * 4, there),
            },
        }
    }
}

/// Where a slot lies. A word is left out after every 32: rows of 16 and of 32 begin in different banks then.
#[inline(always)]
fn word(slot: u32) -> u32 {
    copy::arena() + (slot + slot / 32) * 4
}

/// First slot of vector `r` of this thread.
#[inline(always)]
fn slot<const VEC: usize>(r: usize) -> u32 {
    (gpu::thread_again() + r as u32 * SOFTMAX_THREADS) * VEC as u32
}

/// Vectors of an operand.
#[inline(always)]
fn load<E: Elem, const VEC: usize, const REP: usize>(from: u64, span: Span) -> [Raw; REP] {
    let mut raw = [[0u32; 4]; REP];
    unroll!(r < REP, {
        let slot = slot::<VEC>(r);
        // In place others write in front of the stretch and behind it.
        let at = from + (span.base + slot as u64) * E::BYTES as u64;
        raw[r] = E::load_own::<VEC>(at, slot < span.end);
    });
    raw
}

/// A vector of numbers to where its slots lie: one word for each, as they share their 32.
#[inline(always)]
fn put<const VEC: usize>(slot: u32, values: &[f32; VEC]) {
    let at = word(slot);
    unroll!(i < VEC, {
        copy::store_shared_b32(at + i as u32 * 4, values[i].to_bits());
    });
}

#[inline(always)]
fn get<const VEC: usize>(slot: u32) -> [u32; VEC] {
    let at = word(slot);
    let mut words = [0; VEC];
    unroll!(i < VEC, {
        words[i] = copy::load_shared_b32(at + i as u32 * 4)
    });
    words
}

/// What belongs to the stretch of a vector: whole, and at its ends single elements.
#[inline(always)]
fn store<E: Elem<Acc = f32>, const VEC: usize>(
    to: u64,
    span: Span,
    first: u32,
    values: &[f32; VEC],
) {
    let at = to + (span.base + first as u64) * E::BYTES as u64;
    if first >= span.lead && first + VEC as u32 <= span.end {
        E::store::<VEC>(at, values);
    } else {
        unroll!(i < VEC, {
            let slot = first + i as u32;
            if slot >= span.lead && slot < span.end {
                E::store::<1>(at + (i as u32 * E::BYTES) as u64, &[values[i]]);
            }
        });
    }
}

/// The softmax of this thread's row, in its place.
#[inline(always)]
fn soften<const LOG: bool>(p: &SoftmaxParams, own: Stretch) {
    let mut values = [[f32::NEG_INFINITY; 8]; 4];
    let mut max = f32::NEG_INFINITY;
    unroll!(c < 4, {
        if warp::ballot(own.live > c as u32 * 8) != 0 {
            unroll!(i < 8, {
                let entry = (c * 8 + i) as u32;
                // Past the row there are other numbers, and a little room behind the last.
                let score = f32::from_bits(copy::load_shared_b32(word(own.from + entry)));
                let scaled = matrix::mul_f32(score, p.scale);
                if entry < own.live {
                    values[c][i] = scaled;
                }
                max = matrix::max_or_nan(max, values[c][i]);
            });
        }
    });
    let base = base_of(max);
    let mut sum = 0.0;
    unroll!(c < 4, {
        if warp::ballot(own.live > c as u32 * 8) != 0 {
            unroll!(i < 8, {
                let difference = values[c][i] - base;
                let power = exp(difference);
                sum += power;
                values[c][i] = if LOG { difference } else { power };
            });
        }
    });
    let finish = Finish::new::<LOG>(max, sum);
    unroll!(c < 4, {
        if warp::ballot(own.len > c as u32 * 8) != 0 {
            unroll!(i < 8, {
                let entry = (c * 8 + i) as u32;
                let mut value = matrix::fma_f32(values[c][i], finish.factor, finish.shift);
                if entry >= own.live {
                    value = if LOG { f32::NEG_INFINITY } else { 0.0 };
                }
                if entry < own.len {
                    copy::store_shared_b32(word(own.from + entry), value.to_bits());
                }
            });
        }
    });
}

/// The sum of this thread's row, in the place of each of its entries.
#[inline(always)]
fn add(own: Stretch) {
    let mut sum = 0.0;
    unroll!(c < 4, {
        if warp::ballot(own.live > c as u32 * 8) != 0 {
            unroll!(i < 8, {
                let entry = (c * 8 + i) as u32;
                let more = f32::from_bits(copy::load_shared_b32(word(own.from + entry)));
                if entry < own.live {
                    sum += more;
                }
            });
        }
    });
    unroll!(c < 4, {
        if warp::ballot(own.len > c as u32 * 8) != 0 {
            unroll!(i < 8, {
                let entry = (c * 8 + i) as u32;
                let value = if entry < own.live {
                    sum.to_bits()
                } else {
                    MASKED
                };
                if entry < own.len {
                    copy::store_shared_b32(word(own.from + entry), value);
                }
            });
        }
    });
}

#[inline(always)]
fn forward<E: Elem<Acc = f32>, const VEC: usize, const REP: usize, const LOG: bool>(
    p: &SoftmaxParams,
    own: Stretch,
) {
    let raw = load::<E, VEC, REP>(p.input, own.span);
    unroll!(r < REP, {
        let mut values = [0.0; VEC];
        unroll!(i < VEC, { values[i] = E::get(&raw[r], i) });
        put(slot::<VEC>(r), &values);
    });
    gpu::sync_threads();
    soften::<LOG>(p, own);
    gpu::sync_threads();
    unroll!(r < REP, {
        let slot = slot::<VEC>(r);
        if slot < own.span.end {
            let words = get::<VEC>(slot);
            let mut values = [0.0; VEC];
            unroll!(i < VEC, { values[i] = f32::from_bits(words[i]) });
            store::<E, VEC>(p.output, own.span, slot, &values);
        }
    });
}

#[inline(always)]
fn gradient<E: Elem<Acc = f32>, const VEC: usize, const REP: usize, const LOG: bool>(
    p: &SoftmaxParams,
    own: Stretch,
) {
    let given = load::<E, VEC, REP>(p.input, own.span);
    let upstream = load::<E, VEC, REP>(p.upstream, own.span);
    unroll!(r < REP, {
        let mut values = [0.0; VEC];
        unroll!(i < VEC, {
            let weight = if LOG { 1.0 } else { E::get(&given[r], i) };
            values[i] = weight * E::get(&upstream[r], i);
        });
        put(slot::<VEC>(r), &values);
    });
    gpu::sync_threads();
    add(own);
    gpu::sync_threads();
    unroll!(r < REP, {
        let slot = slot::<VEC>(r);
        if slot < own.span.end {
            let sums = get::<VEC>(slot);
            let mut values = [0.0; VEC];
            unroll!(i < VEC, {
                let (y, dy) = (E::get(&given[r], i), E::get(&upstream[r], i));
                let slope = slope::<LOG>(y, dy, f32::from_bits(sums[i])) * p.scale;
                values[i] = if sums[i] == MASKED { 0.0 } else { slope };
            });
            store::<E, VEC>(p.output, own.span, slot, &values);
        }
    });
}

/// The stretches, dealt round. Each thread writes to shared memory, and reads last, the same slots: two barriers a stretch.
#[inline(always)]
pub(super) fn deal<
    E: Elem<Acc = f32>,
    const VEC: usize,
    const REP: usize,
    const GRADIENT: bool,
    const LOG: bool,
>(
    p: &SoftmaxParams,
) {
    const CLASS: usize = SOFTMAX_STRETCHES;
    let step = p.blocks[CLASS + 1] - p.blocks[CLASS];
    let end = p.firsts[CLASS + 1];
    let mut index = p.firsts[CLASS] + gpu::block_x() - p.blocks[CLASS];
    let mut next = Stretch::load::<VEC>(p, index, end);
    while index < end {
        let own = next;
        index += step;
        next = Stretch::load::<VEC>(p, index, end);
        if GRADIENT {
            gradient::<E, VEC, REP, LOG>(p, own);
        } else {
            forward::<E, VEC, REP, LOG>(p, own);
        }
    }
}
