//! Softmax cross-entropy of rows of logits and its gradient in one pass, with the mean of the losses in a fixed order.
//! A row is read twice, the second time from L1. Max and sum are computed together (Milakov and Gimelshein, arXiv
//! 1805.02867); then each lane writes the gradient where it has read.

use crate::device::lanes::{self, reduced};
use crate::device::prelude::*;
use crate::device::softmax::{base_of, exp};
use crate::families::optimizer::abi::*;
use core::f32::consts::LN_2;

const THREADS: u32 = CROSS_ENTROPY_THREADS;
const NONE: f32 = f32::NEG_INFINITY;

buffers! {
    // `nn::cross_entropy` checks the shapes of logits, gradient, labels and loss.
    // `CrossEntropyLaunch` allocates the other words, and sets `CROSS_ENTROPY_VECTORS` if rows
    // permit accesses of 16 bytes.
    unsafe CrossEntropyParams {
        logits: u8, ReadWrite;
        gradient: u8, ReadWrite;
        labels: u32, ReadWrite;
        partial: f32, Fresh;
        words: u32, Fresh;
        loss: f32, ReadWrite;
    }
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, CrossEntropyParams> for CountLabels {
    #[inline(always)]
    unsafe fn run(p: &CrossEntropyParams, _: Maps) {
        grid::wait_dependency();
        let mut count = 0;
        let mut row = gpu::block_x() * THREADS + gpu::thread();
        while row < p.rows {
            let label = p.labels().at(row).ld();
            count += u32::from(label < p.classes);
            row += gpu::grid_x() * THREADS;
        }
        // Integers: the order of additions does not matter.
        let count = warp::sum(count);
        if gpu::thread().is_multiple_of(32) {
            p.words().atom_add(count);
        }
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, CrossEntropyParams> for CrossEntropyRows {
    #[inline(always)]
    unsafe fn run(p: &CrossEntropyParams, _: Maps) {
        grid::wait_dependency();
        let count = p.words().ld();
        let factor = match count {
            0 => 0.0,
            count => matrix::rcp_approx(count as f32),
        };
        let vectors = p.flags & CROSS_ENTROPY_VECTORS != 0;
        let sum = match (vectors, p.classes <= CROSS_ENTROPY_SHORT, E::BYTES) {
            (true, true, 4) => rows::<E, 4, CROSS_ENTROPY_FEW>(p, factor),
            (true, true, _) => rows::<E, 8, CROSS_ENTROPY_FEW>(p, factor),
            (true, false, 4) => rows::<E, 4, 32>(p, factor),
            (true, false, _) => rows::<E, 8, 32>(p, factor),
            (false, true, _) => rows::<E, 1, CROSS_ENTROPY_FEW>(p, factor),
            (false, false, _) => rows::<E, 1, 32>(p, factor),
        };
        mean(p, sum, factor);
    }
}

/// Partial result of a lane for a row: the max logit, the sum of exponentials relative to it, the logit of the label.
#[derive(Clone, Copy)]
struct Seen {
    max: f32,
    sum: f32,
    target: f32,
}

/// A lane's part of a row: vectors `LANES` vectors apart.
#[derive(Clone, Copy)]
struct Part {
    logits: Global<u8, ReadWrite>,
    gradient: Global<u8, ReadWrite>,
    /// First column of the lane.
    first: u32,
    label: u32,
    /// Whether the row has a label.
    live: bool,
}

/// Processes the rows of this thread block. Returns this thread's share of the sum of losses.
#[inline(always)]
fn rows<E: Elem<Acc = f32>, const VEC: usize, const LANES: u32>(
    p: &CrossEntropyParams,
    factor: f32,
) -> f32 {
    let of_block = THREADS / LANES;
    let lane = gpu::thread() % LANES;
    let mut next = gpu::block_x() * of_block;
    let mut sum = 0.0;
    // All threads of a block run the same number of iterations, because they exchange values.
    while next < p.rows {
        let row = next + gpu::thread() / LANES;
        next += gpu::grid_x() * of_block;
        let inside = row < p.rows;
        let label = p.labels().at(row).ld_if(inside);
        let part = Part {
            logits: p.logits().row(row, p.logit_bytes),
            gradient: p.gradient().row(row, p.gradient_bytes),
            first: lane * VEC as u32,
            label,
            live: inside && label < p.classes,
        };
        let seen = read::<E, VEC, LANES>(p, part);
        let base = base_of(reduced::<LANES, true>(seen.max));
        let all = reduced::<LANES, false>(seen.sum * exp(seen.max - base));
        let target = reduced::<LANES, false>(seen.target);
        if part.live && lane == 0 {
            sum += LN_2 * matrix::lg2_approx(all) + base - target;
        }
        if p.gradient != 0 {
            let shares = (base, matrix::rcp_approx(all));
            write::<E, VEC, LANES>(p, part, inside, shares, factor);
        }
    }
    sum
}

#[inline(always)]
fn load<E: Elem<Acc = f32>, const VEC: usize>(part: Part, column: u32, ok: bool) -> Raw {
    part.logits.bytes(column * E::BYTES).cast::<E>().ld_raw::<VEC>(ok)
}

#[inline(always)]
fn read<E: Elem<Acc = f32>, const VEC: usize, const LANES: u32>(
    p: &CrossEntropyParams,
    part: Part,
) -> Seen {
    let mut seen = Seen { max: NONE, sum: 0.0, target: 0.0 };
    let mut from = 0;
    while from < p.classes {
        let column = from + part.first;
        from += LANES * VEC as u32;
        let ok = part.live && column < p.classes;
        let raw = load::<E, VEC>(part, column, ok);
        let (mut x, mut max) = ([NONE; VEC], seen.max);
        unroll!(i < VEC, {
            if ok {
                x[i] = E::get(&raw, i);
            }
            if column + i as u32 == part.label {
                seen.target = x[i];
            }
            max = matrix::max_nan(max, x[i]);
        });
        let base = base_of(max);
        seen.sum *= exp(seen.max - base);
        unroll!(i < VEC, {
            seen.sum += exp(x[i] - base);
        });
        seen.max = max;
    }
    seen
}

/// Writes the gradient: `(softmax - [column is label]) / rows with a label`, zeros without a label.
#[inline(always)]
fn write<E: Elem<Acc = f32>, const VEC: usize, const LANES: u32>(
    p: &CrossEntropyParams,
    part: Part,
    inside: bool,
    (base, inverse): (f32, f32),
    factor: f32,
) {
    let mut from = 0;
    while from < p.classes {
        let column = from + part.first;
        from += LANES * VEC as u32;
        let raw = load::<E, VEC>(part, column, part.live && column < p.classes);
        let mut out = [0.0; VEC];
        unroll!(i < VEC, {
            let one = if column + i as u32 == part.label { 1.0 } else { 0.0 };
            let share = exp(E::get(&raw, i) - base) * inverse;
            if part.live {
                out[i] = (share - one) * factor;
            }
        });
        if inside && column < p.classes {
            part.gradient.bytes(column * E::BYTES).cast::<E>().st_rounded(&out);
        }
    }
}

/// Returns the sum over the thread block, in all of its threads.
#[inline(always)]
fn block_total(x: f32) -> f32 {
    let x = lanes::sum(x);
    // All words of the previous sum have been read.
    gpu::sync_threads();
    lanes::over_warps::<8>(x)
}

/// Computes the mean of all losses. The thread block that arrives last adds the sums of all thread blocks in order.
#[inline(always)]
fn mean(p: &CrossEntropyParams, sum: f32, factor: f32) {
    const { assert!(THREADS == 8 * 32) };
    // SAFETY: the `SHARED_BYTES` of the tile include a word after those of the warps.
    let told = unsafe { Shared::<u32>::dynamic(THREADS / 32 * 4) };
    let own = block_total(sum);
    if gpu::thread() == 0 {
        p.partial().at(gpu::block_x()).st(own);
        global::fence_gpu();
        told.st(p.words().at(1u32).atom_add(1));
    }
    gpu::sync_threads();
    if told.ld() + 1 != gpu::grid_x() {
        return;
    }
    global::fence_gpu();
    let mut all = 0.0;
    let mut block = gpu::thread();
    while block < gpu::grid_x() {
        all += p.partial().at(block).ld();
        block += THREADS;
    }
    let all = block_total(all);
    if gpu::thread() == 0 {
        p.loss().st(all * factor);
        p.words().cast::<[u32; 2]>().st([0, 0]);
    }
}
