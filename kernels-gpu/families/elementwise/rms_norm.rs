//! Root-mean-square normalisation (arXiv 1910.07467) after a residual sum. The first vectors of a thread stay in its
//! registers. With tokens in columns, adjacent elements of a row are different tokens: thread blocks share the features
//! and not the tokens, and exchange sums between two launches.

use super::element::element;
use crate::device::lanes::{self, DOWN};
use crate::device::partial;
use crate::device::prelude::*;
use crate::families::elementwise::abi::*;

const THREADS: u32 = ELEMENTWISE_THREADS;
const WARPS: u32 = THREADS / 32;
/// Vectors of both summands that are in flight together.
const AT_ONCE: usize = 4;

buffers! {
    // `nn::rms_norm` checks the shapes of the operands. `RmsNormLaunch` allocates the partial sums,
    // and sets `ELEMENTWISE_VECTORS` if rows are whole aligned vectors.
    unsafe RmsNormParams {
        x<E: Elem>: E, ReadWrite;
        y<E: Elem>: E, ReadWrite;
        factor<E: Elem>: E, ReadWrite;
        out<E: Elem>: E, ReadWrite;
        partial: f32, Fresh;
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, RmsNormParams> for RmsRows {
    #[inline(always)]
    unsafe fn run(p: &RmsNormParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let short = |vector: u32| p.width <= RMS_SHORT * vector;
        match (p.flags & ELEMENTWISE_VECTORS != 0, E::BYTES) {
            (true, 4) if short(4) => rows::<E, 4, 32>(p),
            (true, 4) => rows::<E, 4, THREADS>(p),
            (true, _) if short(8) => rows::<E, 8, 32>(p),
            (true, _) => rows::<E, 8, THREADS>(p),
            (false, _) => rows::<E, 1, THREADS>(p),
        }
    }
}

by_vectors! {
    RmsNormParams RmsSums: sums;
    RmsNormParams RmsScale: scale;
}

/// Position of a vector, and whether it is inside.
type Place = ([u32; 2], bool);

/// Loads [`AT_ONCE`] vectors of x.
#[inline(always)]
fn load_x<E: Elem, const V: usize>(p: &RmsNormParams, at: impl Fn(u32) -> Place) -> [Raw; AT_ONCE] {
    let mut x = [[0; 4]; AT_ONCE];
    unroll!(i < AT_ONCE, {
        let (from, inside) = at(i as u32);
        x[i] = element(p.x::<E>(), p.x_row, from).ld_raw::<V>(inside);
    });
    x
}

/// Loads [`AT_ONCE`] vectors. With two summands these are sums, which are also stored.
#[inline(always)]
fn load<E: Elem<Acc = f32>, const V: usize>(
    p: &RmsNormParams,
    at: impl Fn(u32) -> Place,
) -> [Raw; AT_ONCE] {
    let mut x = load_x::<E, V>(p, &at);
    if p.y == 0 {
        return x;
    }
    let mut y = [[0; 4]; AT_ONCE];
    unroll!(i < AT_ONCE, {
        let (from, inside) = at(i as u32);
        y[i] = element(p.y::<E>(), p.y_row, from).ld_raw::<V>(inside);
    });
    unroll!(i < AT_ONCE, {
        let (to, inside) = at(i as u32);
        let (mut sum, mut stored) = ([0.0; 8], [0.0; V]);
        unroll!(j < V, {
            sum[j] = E::get(&x[i], j) + E::get(&y[i], j);
            stored[j] = sum[j];
        });
        x[i] = E::put(&sum);
        if inside {
            element(p.x::<E>(), p.x_row, to).st_rounded(&stored);
        }
    });
    x
}

/// Multiplies [`AT_ONCE`] vectors by `scales` and by the factors of their features, and stores them. Features are
/// columns, or rows if `in_rows` is set.
#[inline(always)]
fn finish<E: Elem<Acc = f32>, const V: usize>(
    p: &RmsNormParams,
    raw: &[Raw; AT_ONCE],
    at: impl Fn(u32) -> Place,
    scales: [f32; V],
    in_rows: bool,
) {
    // All factors are loaded before the first store: `out` may alias them.
    let mut factors = [[0; 4]; AT_ONCE];
    unroll!(k < AT_ONCE, {
        let ([row, column], inside) = at(k as u32);
        let factor = |feature: u32| p.factor::<E>().bytes(feature * E::BYTES);
        factors[k] = if in_rows {
            factor(row).ld_raw::<1>(inside)
        } else {
            factor(column).ld_raw::<V>(inside)
        };
    });
    unroll!(k < AT_ONCE, {
        let (to, inside) = at(k as u32);
        if inside {
            let mut out = [0.0; V];
            unroll!(i < V, {
                let factor = E::get(&factors[k], if in_rows { 0 } else { i });
                out[i] = E::get(&raw[k], i) * scales[i] * factor;
            });
            element(p.out::<E>(), p.out_row, to).st_rounded(&out);
        }
    });
}

#[inline(always)]
fn inverse_root(p: &RmsNormParams, squares: f32) -> f32 {
    let share = matrix::rcp_approx(p.width as f32);
    matrix::rsqrt_approx(matrix::fma_f32(squares, share, p.epsilon))
}

#[inline(always)]
fn rows<E: Elem<Acc = f32>, const V: usize, const LANES: u32>(p: &RmsNormParams) {
    let (group, lane) = (gpu::thread() / LANES, gpu::thread() % LANES);
    let token = gpu::block_x() * (THREADS / LANES) + group;
    let step = LANES * V as u32;
    let at = |first: u32| {
        move |i: u32| {
            let column = first + i * step + lane * V as u32;
            ([token, column], token < p.tokens && column < p.width)
        }
    };
    let kept = load::<E, V>(p, at(0));
    let mut squares = of_squares::<E, V>(&kept);
    let mut first = AT_ONCE as u32 * step;
    while first < p.width {
        squares += of_squares::<E, V>(&load::<E, V>(p, at(first)));
        first += AT_ONCE as u32 * step;
    }
    squares = lanes::sum(squares);
    if LANES > 32 {
        squares = lanes::over_warps::<WARPS>(squares);
    }
    let scales = [inverse_root(p, squares); V];
    finish::<E, V>(p, &kept, at(0), scales, false);
    // The other vectors are loaded again: each thread reads what it has written itself.
    let mut first = AT_ONCE as u32 * step;
    while first < p.width {
        finish::<E, V>(p, &load_x::<E, V>(p, at(first)), at(first), scales, false);
        first += AT_ONCE as u32 * step;
    }
}

#[inline(always)]
fn of_squares<E: Elem<Acc = f32>, const V: usize>(raw: &[Raw; AT_ONCE]) -> f32 {
    let mut squares = 0.0;
    unroll!(k < AT_ONCE, {
        unroll!(i < V, {
            let x = E::get(&raw[k], i);
            squares = matrix::fma_f32(x, x, squares);
        });
    });
    squares
}

/// A thread's part of a thread block's share, with tokens in columns: every `step`-th feature of one vector of tokens.
#[derive(Clone, Copy)]
struct Part {
    /// Threads along a row, a power of two.
    across: u32,
    /// Index among these threads, and the first of its tokens.
    lane: u32,
    token: u32,
    inside: bool,
    /// First feature, distance to the next one, and end.
    first: u32,
    step: u32,
    end: u32,
}

impl Part {
    #[inline(always)]
    fn new(p: &RmsNormParams, vector: u32) -> Part {
        let base = gpu::block_y() * RMS_ACROSS * vector;
        let left = (p.tokens - base).div_ceil(vector);
        let mut across = 1;
        unroll!(i < 5, { across = if across < left { across * 2 } else { across } });
        let lane = gpu::thread() % across;
        let from = gpu::block_x() * p.share;
        let end = from + p.share;
        Part {
            across,
            lane,
            token: base + lane * vector,
            inside: lane < left,
            first: from + gpu::thread() / across,
            step: THREADS / across,
            end: if end < p.width { end } else { p.width },
        }
    }

    /// Returns the position of the thread's `i`th feature from `feature` on.
    #[inline(always)]
    fn at(self, feature: u32) -> impl Fn(u32) -> Place {
        move |i: u32| {
            let row = feature + i * self.step;
            ([row, self.token], self.inside && row < self.end)
        }
    }
}

#[inline(always)]
fn sums<E: Elem<Acc = f32>, const V: usize>(p: &RmsNormParams) {
    let part = Part::new(p, V as u32);
    let mut squares = [0.0; V];
    let mut feature = part.first;
    while feature < part.end {
        let raw = load::<E, V>(p, part.at(feature));
        unroll!(k < AT_ONCE, {
            unroll!(i < V, {
                let x = E::get(&raw[k], i);
                squares[i] = matrix::fma_f32(x, x, squares[i]);
            });
        });
        feature += AT_ONCE as u32 * part.step;
    }
    let (warp, lane) = (gpu::thread() / 32, gpu::thread() % 32);
    let tokens = RMS_ACROSS * V as u32;
    // SAFETY: `RmsSums::SHARED_BYTES` includes a word for each warp and token.
    let words = unsafe { Shared::<f32>::dynamic(0) };
    unroll!(i < V, {
        let sum = lanes::sum_of::<F32>(squares[i], DOWN, part.across..32);
        if lane < part.across {
            words.at(warp * tokens + lane * V as u32 + i as u32).st(sum);
        }
    });
    gpu::sync_threads();
    // One thread for each token of the thread block.
    let own = gpu::block_y() * RMS_ACROSS * V as u32 + gpu::thread();
    if gpu::thread() < part.across * V as u32 && own < p.tokens {
        let all = partial::of_column(words.at(gpu::thread()), WARPS, tokens);
        let at = gpu::block_x() as u64 * p.tokens as u64 + own as u64;
        p.partial().at(at).st(all);
    }
}

#[inline(always)]
fn scale<E: Elem<Acc = f32>, const V: usize>(p: &RmsNormParams) {
    let part = Part::new(p, V as u32);
    // SAFETY: `RmsScale::SHARED_BYTES` includes a word for each token.
    let words = unsafe { Shared::<f32>::dynamic(0) };
    let own = gpu::block_y() * RMS_ACROSS * V as u32 + gpu::thread();
    if gpu::thread() < part.across * V as u32 && own < p.tokens {
        let (mut squares, mut part) = (0.0, 0);
        while part < p.parts {
            squares += p.partial().at(part as u64 * p.tokens as u64 + own as u64).ld();
            part += 1;
        }
        words.at(gpu::thread()).st(inverse_root(p, squares));
    }
    gpu::sync_threads();
    let mut scales = [0.0; V];
    unroll!(i < V, {
        scales[i] = words.at(part.lane * V as u32 + i as u32).ld();
    });
    let mut feature = part.first;
    while feature < part.end {
        let at = part.at(feature);
        finish::<E, V>(p, &load_x::<E, V>(p, &at), &at, scales, true);
        feature += AT_ONCE as u32 * part.step;
    }
}
