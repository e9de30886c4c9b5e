//! Neighbouring short rows in shared memory: a thread block processes a stretch of up to 128 rows. Rows may be of any
//! length up to `STRETCH_LONGEST` and begin anywhere.
//!
//! ```text
//! each thread   its vectors of the stretch   global -> registers -> shared       barrier
//! each thread   its row                      shared -> registers, max and sum    barrier: two rows may share a group
//! each thread   its row                      registers -> shared                 barrier
//! each thread   its vectors of the stretch   shared -> registers -> global
//! ```
//!
//! The last step reads the slots that the thread itself overwrites in the next stretch, so no fourth barrier is needed.
//! For the gradient, shared memory holds the terms of each row's sum, then the sum; both operands stay in registers.

use super::forward::{Finish, base_of};
use super::gradient::slope;
use super::{Span, exp};
use crate::device::prelude::*;
use crate::families::softmax::abi::*;

/// Marks a masked entry in place of its sum: a NaN that no arithmetic produces.
const MASKED: u32 = 0xffff_fffe;

/// Stretch, and this thread's row of it. Slots are counted from the aligned vector that holds the first entry.
#[derive(Clone, Copy)]
struct Stretch {
    span: Span,
    /// First slot of the row.
    from: u32,
    /// Number of entries of the row.
    len: u32,
    /// Number of unmasked entries of the row.
    live: u32,
}

impl Stretch {
    #[inline(always)]
    fn load<const VEC: usize>(p: &SoftmaxParams, index: u32, count: u32) -> Stretch {
        let valid = index < count;
        let first = p.firsts[SOFTMAX_STRETCHES];
        let [start, len] = p.items().at(index).ld_if(valid);
        let span = Span::new::<VEC>(p, start, len, len);
        let own = index - first;
        let bounds = own as u64 * STRETCH_BOUNDS as u64 + gpu::opaque_thread() as u64;
        let from = p.bounds().at(bounds).ld_if(valid);
        let len = p.bounds().at(bounds).at(1u32).ld_if(valid) - from;
        let row = first as u64 + own as u64 * STRETCH_ROWS as u64 + gpu::opaque_thread() as u64;
        Stretch {
            span,
            from: span.lead + from,
            len,
            live: match p.live {
                0 => len,
                _ => p.live().at(row).ld_if(valid),
            },
        }
    }
}

/// Address of group `index` of four slots. One group is left out after every eight, so that rows of 16 begin in
/// different banks.
#[inline(always)]
fn place(index: u32) -> u32 {
    copy::dynamic_shared() + (index + index / 8) * 16
}

/// First slot of vector `r` of this thread.
#[inline(always)]
fn slot<const VEC: usize>(r: usize) -> u32 {
    (gpu::opaque_thread() + r as u32 * SOFTMAX_THREADS) * VEC as u32
}

/// Loads this thread's vectors of an operand.
#[inline(always)]
fn load<E: Elem, const VEC: usize, const REP: usize>(
    from: Global<E, ReadWrite>,
    span: Span,
) -> [Raw; REP] {
    let mut raw = [[0u32; 4]; REP];
    unroll!(r < REP, {
        let slot = slot::<VEC>(r);
        let at = from.at(span.base + slot as u64);
        raw[r] = at.ld_raw::<VEC>(slot < span.end);
    });
    raw
}

/// Stores a vector of numbers to its slots.
#[inline(always)]
fn put<const VEC: usize>(slot: u32, values: &[f32; VEC]) {
    unroll!(half < 2, {
        if half * 4 < VEC {
            let mut words = [0; 4];
            unroll!(i < 4, { words[i] = values[half * 4 + i].to_bits() });
            copy::st_shared_v4(place(slot / 4 + half as u32), words);
        }
    });
}

/// Loads the words of a vector from its slots.
#[inline(always)]
fn get<const VEC: usize>(slot: u32) -> [u32; VEC] {
    let mut words = [0; VEC];
    unroll!(half < 2, {
        if half * 4 < VEC {
            let four = copy::ld_shared_v4(place(slot / 4 + half as u32));
            unroll!(i < 4, { words[half * 4 + i] = four[i] });
        }
    });
    words
}

/// Stores the elements of a vector that belong to the stretch: whole vectors, and at its ends single elements.
#[inline(always)]
fn store<E: Elem<Acc = f32>, const VEC: usize>(
    to: Global<E, ReadWrite>,
    span: Span,
    first: u32,
    values: &[f32; VEC],
) {
    let at = to.at(span.base + first as u64);
    if first >= span.lead && first + VEC as u32 <= span.end {
        at.st_rounded(values);
    } else {
        unroll!(i < VEC, {
            let slot = first + i as u32;
            if slot >= span.lead && slot < span.end {
                at.at(i as u64).st_rounded(&[values[i]]);
            }
        });
    }
}

/// Numbers of a row in groups of four. Groups at its ends are shared with the neighbouring rows.
type Fours = [[f32; 4]; 8];

/// This thread's row in groups of four.
#[derive(Clone, Copy)]
struct PerThread {
    /// Index of the first group.
    first: u32,
    /// Slots before the row in the first group.
    lead: u32,
    /// End of the unmasked entries, and of all entries.
    live: u32,
    end: u32,
}

impl PerThread {
    #[inline(always)]
    fn new(stretch: Stretch) -> PerThread {
        let lead = stretch.from % 4;
        PerThread {
            first: stretch.from / 4,
            lead,
            live: lead + stretch.live,
            end: lead + stretch.len,
        }
    }

    /// Returns whether a row of this warp reaches pair `c` of groups.
    #[inline(always)]
    fn reaches(self, c: usize) -> bool {
        warp::ballot(self.live > c as u32 * 8) != 0
    }

    /// Returns whether slot `i` of group `j` is an unmasked entry.
    #[inline(always)]
    fn is_live(self, j: usize, i: usize) -> bool {
        let at = (j * 4 + i) as u32;
        at < self.live && (j > 0 || at >= self.lead)
    }

    /// Loads group `j`. Past the row these are numbers of other rows, past the last row unused slots.
    #[inline(always)]
    fn load(self, j: usize) -> [f32; 4] {
        copy::ld_shared_v4(place(self.first + j as u32)).map(f32::from_bits)
    }

    /// Stores the unmasked entries of group `j`.
    #[inline(always)]
    fn store(self, j: usize, words: [u32; 4]) {
        let at = place(self.first + j as u32);
        if self.is_live(j, 0) && self.is_live(j, 3) {
            copy::st_shared_v4(at, words);
        } else {
            unroll!(i < 4, {
                if self.is_live(j, i) {
                    copy::st_shared_b32(at + i as u32 * 4, words[i]);
                }
            });
        }
    }

    /// Stores `word` to the masked entries.
    #[inline(always)]
    fn hide(self, word: u32) {
        let mut at = self.live;
        while at < self.end {
            copy::st_shared_b32(place(self.first + at / 4) + at % 4 * 4, word);
            at += 1;
        }
    }
}

/// Computes the softmax of this thread's scaled row, in place.
#[inline(always)]
fn soften<const LOG: bool>(own: PerThread) {
    let mut values: Fours = [[f32::NEG_INFINITY; 4]; 8];
    let mut max = f32::NEG_INFINITY;
    unroll!(c < 4, {
        if own.reaches(c) {
            unroll!(half < 2, {
                let j = c * 2 + half;
                let scores = own.load(j);
                unroll!(i < 4, {
                    if own.is_live(j, i) {
                        values[j][i] = scores[i];
                    }
                    max = matrix::max_nan(max, values[j][i]);
                });
            });
        }
    });
    let base = base_of(max);
    let shift = -base * core::f32::consts::LOG2_E;
    let mut sum = 0.0;
    unroll!(c < 4, {
        if own.reaches(c) {
            unroll!(half < 2, {
                unroll!(i < 4, {
                    let score = values[c * 2 + half][i];
                    let (power, value) = if LOG {
                        (exp(score - base), score - base)
                    } else {
                        // The rounding error of the shift is the same for the whole row.
                        let power = matrix::fma_f32(score, core::f32::consts::LOG2_E, shift);
                        let power = matrix::ex2_approx_ftz(power);
                        (power, power)
                    };
                    sum += power;
                    values[c * 2 + half][i] = value;
                });
            });
        }
    });
    let finish = Finish::new(max, sum, LOG);
    // The group at an end of a row holds words of the next row, which another thread writes: all load before any
    // stores.
    gpu::sync_threads();
    unroll!(c < 4, {
        if own.reaches(c) {
            unroll!(half < 2, {
                let j = c * 2 + half;
                let mut words = [0; 4];
                unroll!(i < 4, {
                    let value = matrix::fma_f32(values[j][i], finish.factor, finish.shift);
                    words[i] = value.to_bits();
                });
                own.store(j, words);
            });
        }
    });
    let masked: f32 = if LOG { f32::NEG_INFINITY } else { 0.0 };
    own.hide(masked.to_bits());
}

/// Replaces each entry of this thread's row by the sum of the row.
#[inline(always)]
fn add(own: PerThread) {
    let mut sum = 0.0;
    unroll!(c < 4, {
        if own.reaches(c) {
            unroll!(half < 2, {
                let j = c * 2 + half;
                let more = own.load(j);
                unroll!(i < 4, {
                    if own.is_live(j, i) {
                        sum += more[i];
                    }
                });
            });
        }
    });
    // The group at an end of a row holds words of the next row, which another thread writes: all load before any
    // stores.
    gpu::sync_threads();
    unroll!(c < 4, {
        if own.reaches(c) {
            unroll!(half < 2, { own.store(c * 2 + half, [sum.to_bits(); 4]) });
        }
    });
    own.hide(MASKED);
}

#[inline(always)]
fn forward<E: Elem<Acc = f32>, const VEC: usize, const REP: usize, const LOG: bool>(
    p: &SoftmaxParams,
    own: Stretch,
) {
    let raw = load::<E, VEC, REP>(p.input(), own.span);
    unroll!(r < REP, {
        let mut values = [0.0; VEC];
        unroll!(i < VEC, { values[i] = E::get(&raw[r], i) * p.scale });
        put(slot::<VEC>(r), &values);
    });
    gpu::sync_threads();
    soften::<LOG>(PerThread::new(own));
    gpu::sync_threads();
    unroll!(r < REP, {
        let slot = slot::<VEC>(r);
        if slot < own.span.end {
            let words = get::<VEC>(slot);
            let mut values = [0.0; VEC];
            unroll!(i < VEC, { values[i] = f32::from_bits(words[i]) });
            store::<E, VEC>(p.output(), own.span, slot, &values);
        }
    });
}

#[inline(always)]
fn gradient<E: Elem<Acc = f32>, const VEC: usize, const REP: usize, const LOG: bool>(
    p: &SoftmaxParams,
    own: Stretch,
) {
    let given = load::<E, VEC, REP>(p.input(), own.span);
    let upstream = load::<E, VEC, REP>(p.upstream(), own.span);
    unroll!(r < REP, {
        let mut values = [0.0; VEC];
        unroll!(i < VEC, {
            let weight = if LOG { 1.0 } else { E::get(&given[r], i) };
            values[i] = weight * E::get(&upstream[r], i);
        });
        put(slot::<VEC>(r), &values);
    });
    gpu::sync_threads();
    add(PerThread::new(own));
    gpu::sync_threads();
    unroll!(r < REP, {
        let slot = slot::<VEC>(r);
        if slot < own.span.end {
            let sums = get::<VEC>(slot);
            let mut values = [0.0; VEC];
            unroll!(i < VEC, {
                let (y, dy) = (E::get(&given[r], i), E::get(&upstream[r], i));
                let slope = slope(y, dy, f32::from_bits(sums[i]), LOG) * p.scale;
                values[i] = if sums[i] == MASKED { 0.0 } else { slope };
            });
            store::<E, VEC>(p.output(), own.span, slot, &values);
        }
    });
}

/// Distributes the stretches over thread blocks. The position of the next stretch is loaded while this one is computed.
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
