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

use super::forward::Finish;
use super::gradient::score_gradient;
use super::{RowForm, Span};
use crate::device::prelude::*;
use crate::device::softmax::{base_of, exp};
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
    fn load(p: &SoftmaxParams, vector: u32, index: u32, count: u32) -> Stretch {
        let valid = index < count;
        let first = p.firsts[SOFTMAX_STRETCHES];
        let [start, len] = p.items().at(index).ld_if(valid);
        let span = Span::new(p, vector, [start, len, len]);
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

/// Shared address of group `index`: four slots, one f32 word each. After every eight groups, 16 bytes are padding. Rows
/// of 16 entries then begin in different banks.
#[inline(always)]
fn address_of(index: u32) -> Shared<[u32; 4]> {
    // SAFETY: `SoftmaxRows::SHARED_BYTES` includes the stretch and the slots past it that the thread of the
    // last row reads.
    unsafe { Shared::<[u32; 4]>::dynamic(0) }.at(index + index / 8)
}

/// First slot of vector `r` of this thread.
#[inline(always)]
fn slot<const VEC: usize>(r: usize) -> u32 {
    (gpu::opaque_thread() + r as u32 * SOFTMAX_THREADS) * VEC as u32
}

/// Stores a vector of numbers to its slots.
#[inline(always)]
fn put<const VEC: usize>(slot: u32, values: &[f32; VEC]) {
    unroll!(half < 2, {
        if half * 4 < VEC {
            let mut words = [0; 4];
            unroll!(i < 4, { words[i] = values[half * 4 + i].to_bits() });
            address_of(slot / 4 + half as u32).st(words);
        }
    });
}

/// Loads the words of a vector from its slots.
#[inline(always)]
fn get<const VEC: usize>(slot: u32) -> [u32; VEC] {
    let mut words = [0; VEC];
    unroll!(half < 2, {
        if half * 4 < VEC {
            let four = address_of(slot / 4 + half as u32).ld();
            unroll!(i < 4, { words[half * 4 + i] = four[i] });
        }
    });
    words
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

    /// Calls `work` with the indices of the groups of four, two at a time. Groups 2 `c` and 2 `c` + 1 are processed if
    /// any row of this warp has unmasked entries in group 2 `c` or later groups. Uniform over the warp.
    #[inline(always)]
    fn each_group(self, mut work: impl FnMut(usize)) {
        unroll!(c < 4, {
            if warp::ballot(self.live > c as u32 * 8) != 0 {
                unroll!(half < 2, { work(c * 2 + half) });
            }
        });
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
        address_of(self.first + j as u32).ld().map(f32::from_bits)
    }

    /// Stores the unmasked entries of group `j`.
    #[inline(always)]
    fn store(self, j: usize, words: [u32; 4]) {
        let at = address_of(self.first + j as u32);
        if self.is_live(j, 0) && self.is_live(j, 3) {
            at.st(words);
        } else {
            unroll!(i < 4, {
                if self.is_live(j, i) {
                    at.cast::<u32>().at(i as u32).st(words[i]);
                }
            });
        }
    }

    /// Overwrites the masked entries of the row with `word`.
    #[inline(always)]
    fn fill_masked(self, word: u32) {
        let mut at = self.live;
        while at < self.end {
            address_of(self.first + at / 4).cast::<u32>().at(at % 4).st(word);
            at += 1;
        }
    }
}

/// Replaces this thread's row in shared memory by its softmax. The row holds scores that are already scaled.
#[inline(always)]
fn softmax_row(own: PerThread, log: bool) {
    let mut values: Fours = [[f32::NEG_INFINITY; 4]; 8];
    let mut max = f32::NEG_INFINITY;
    own.each_group(|j| {
        let scores = own.load(j);
        unroll!(i < 4, {
            if own.is_live(j, i) {
                values[j][i] = scores[i];
            }
            max = matrix::max_nan(max, values[j][i]);
        });
    });
    let base = base_of(max);
    let shift = -base * core::f32::consts::LOG2_E;
    let mut sum = 0.0;
    own.each_group(|j| {
        unroll!(i < 4, {
            let score = values[j][i];
            let (power, value) = if log {
                (exp(score - base), score - base)
            } else {
                // The rounding error of the shift multiplies all powers of a row by one factor. The division by the
                // sum cancels it.
                let power = matrix::fma_f32(score, core::f32::consts::LOG2_E, shift);
                let power = matrix::ex2_approx_ftz(power);
                (power, power)
            };
            sum += power;
            values[j][i] = value;
        });
    });
    let finish = Finish::new(max, sum, log);
    // The group at an end of a row holds words of the next row, which another thread writes: all load before any
    // stores.
    gpu::sync_threads();
    own.each_group(|j| {
        let value = |x: f32| matrix::fma_f32(x, finish.factor, finish.shift);
        own.store(j, values[j].map(|x| value(x).to_bits()));
    });
    let masked: f32 = if log { f32::NEG_INFINITY } else { 0.0 };
    own.fill_masked(masked.to_bits());
}

/// Replaces each entry of this thread's row by the sum of the row.
#[inline(always)]
fn add(own: PerThread) {
    let mut sum = 0.0;
    own.each_group(|j| {
        let more = own.load(j);
        unroll!(i < 4, {
            if own.is_live(j, i) {
                sum += more[i];
            }
        });
    });
    // As in [`softmax_row`].
    gpu::sync_threads();
    own.each_group(|j| own.store(j, [sum.to_bits(); 4]));
    own.fill_masked(MASKED);
}

/// Softmax of the rows of a stretch, or its gradient. For the gradient, shared memory holds terms of sums.
#[inline(always)]
fn process<const VEC: usize, const REP: usize, F: RowForm>(
    p: &SoftmaxParams,
    own: Stretch,
    gradient: bool,
) {
    let (mut given, mut upstream) = ([[0; 4]; REP], [[0; 4]; REP]);
    let lane = own.span.lane::<VEC, F>();
    unroll!(r < REP, {
        given[r] = lane.load(p.input(), r);
        if gradient {
            upstream[r] = lane.load(p.upstream(), r);
        }
    });
    unroll!(r < REP, {
        let mut values = [0.0; VEC];
        unroll!(i < VEC, {
            let weight = if gradient && F::LOG { 1.0 } else { F::E::get(&given[r], i) };
            values[i] = weight * if gradient { F::E::get(&upstream[r], i) } else { p.scale };
        });
        put(slot::<VEC>(r), &values);
    });
    gpu::sync_threads();
    if gradient {
        add(PerThread::new(own));
    } else {
        softmax_row(PerThread::new(own), F::LOG);
    }
    gpu::sync_threads();
    let lane = own.span.lane::<VEC, F>();
    unroll!(r < REP, {
        let slot = slot::<VEC>(r);
        if slot < own.span.end {
            let words = get::<VEC>(slot);
            let mut values = [0.0; VEC];
            unroll!(i < VEC, {
                values[i] = f32::from_bits(words[i]);
                if gradient {
                    let (y, dy) = (F::E::get(&given[r], i), F::E::get(&upstream[r], i));
                    let dx = score_gradient(y, dy, values[i], F::LOG) * p.scale;
                    values[i] = if words[i] == MASKED { 0.0 } else { dx };
                }
            });
            lane.store(p.output(), r, &values);
        }
    });
}

/// Distributes the stretches over thread blocks. The position of the next stretch is loaded while this one is computed.
#[inline(always)]
pub(super) fn distribute<const VEC: usize, const REP: usize, F: RowForm>(
    p: &SoftmaxParams,
    gradient: bool,
) {
    const CLASS: usize = SOFTMAX_STRETCHES;
    let step = p.blocks[CLASS + 1] - p.blocks[CLASS];
    let end = p.firsts[CLASS + 1];
    let mut index = p.firsts[CLASS] + gpu::block_x() - p.blocks[CLASS];
    let mut next = Stretch::load(p, VEC as u32, index, end);
    while index < end {
        let own = next;
        index += step;
        next = Stretch::load(p, VEC as u32, index, end);
        process::<VEC, REP, F>(p, own, gradient);
    }
}
