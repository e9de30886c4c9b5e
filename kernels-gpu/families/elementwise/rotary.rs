//! Rotary positions (RoPE, arXiv 2104.09864): element `i` of a head and the element half a head further are rotated as
//! a pair, as in Llama. Angles are counted in turns and in f64, so that large positions are as exact as small ones.

use super::element::element;
use crate::device::prelude::*;
use crate::families::elementwise::abi::*;
use core::f32::consts::TAU;

/// Approximate sine and cosine; without PTX their arguments are unused.
#[cfg_attr(not(target_arch = "nvptx64"), allow(unused_mut, unused_variables))]
mod angles {
    use crate::device::ptx::instructions;

    instructions! {
        pub sine(x: f32) -> f32 = y, out(reg32 y = 0f32):
            "sin.approx.f32 {y}, {x};", in(reg32 x), options(pure, nomem);
        pub cosine(x: f32) -> f32 = y, out(reg32 y = 0f32):
            "cos.approx.f32 {y}, {x};", in(reg32 x), options(pure, nomem);
    }
}

use angles::{cosine, sine};

buffers! {
    // `nn::rotary` checks the shapes of the operands, and that outputs permit accesses of 16 bytes.
    // `RotaryLaunch` uploads the turns, and sets `ELEMENTWISE_VECTORS` if rows of x are whole
    // aligned vectors.
    unsafe RotaryParams {
        x<E: Elem>: E, ReadWrite;
        lengths: u32, Fresh;
        turns: f64, ReadOnly;
        q<E: Elem>: E, ReadWrite;
        k<E: Elem>: E, ReadWrite;
        v<E: Elem>: E, ReadWrite;
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, RotaryParams> for RotaryTile {
    #[inline(always)]
    unsafe fn run(p: &RotaryParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        if E::BYTES == 4 { pairs::<E, 4>(p) } else { pairs::<E, 8>(p) }
    }
}

/// Returns token, head and first element of this thread's pairs.
#[inline(always)]
fn place(p: &RotaryParams, vector: u32) -> Option<[u32; 3]> {
    let chunks = p.dim / (2 * vector);
    let heads = p.heads + 2 * p.key_heads;
    // The divisors below must not be zero.
    if chunks == 0 || heads == 0 || p.tokens == 0 {
        return None;
    }
    let index = gpu::block_x() * ELEMENTWISE_THREADS + gpu::thread();
    // Adjacent threads read adjacent elements.
    let [token, head, chunk] = if p.flags & ELEMENTWISE_COLUMNS != 0 {
        let rest = index / p.tokens;
        [index % p.tokens, rest / chunks, rest % chunks]
    } else {
        let rest = index / chunks;
        [rest / heads, rest % heads, index % chunks]
    };
    (token < p.tokens && head < heads).then_some([token, head, chunk * vector])
}

#[inline(always)]
fn load<E: Elem<Acc = f32>, const V: usize>(
    p: &RotaryParams,
    token: u32,
    feature: u32,
) -> [f32; V] {
    let mut values = [0.0; V];
    if p.flags & ELEMENTWISE_VECTORS != 0 {
        let raw = element(p.x::<E>(), p.x_row, [token, feature]).ld_raw::<V>(true);
        unroll!(i < V, { values[i] = E::get(&raw, i) });
        return values;
    }
    unroll!(i < V, {
        let feature = feature + i as u32;
        let columns = p.flags & ELEMENTWISE_COLUMNS != 0;
        let at = if columns { [feature, token] } else { [token, feature] };
        values[i] = E::get(&element(p.x::<E>(), p.x_row, at).ld_raw::<1>(true), 0);
    });
    values
}

/// Returns sine and cosine of an angle in whole turns.
#[inline(always)]
fn angle(turns: f64) -> [f32; 2] {
    let half = if turns < 0.0 { -0.5 } else { 0.5 };
    let rest = turns - ((turns + half) as i64) as f64;
    let angle = rest as f32 * TAU;
    [sine(angle), cosine(angle)]
}

#[inline(always)]
fn pairs<E: Elem<Acc = f32>, const V: usize>(p: &RotaryParams) {
    let Some([token, head, first]) = place(p, V as u32) else {
        return;
    };
    let half = p.dim / 2;
    let feature = head * p.dim + first;
    let low = load::<E, V>(p, token, feature);
    let high = load::<E, V>(p, token, feature + half);
    let length = p.lengths().at(token).ld() as i32;
    let position = f64::from(length) - 1.0;
    let turned = head < p.heads + p.key_heads;
    let (base, head, heads) = if head < p.heads {
        (p.q::<E>(), head, p.heads)
    } else if turned {
        (p.k(), head - p.heads, p.key_heads)
    } else {
        (p.v(), head - p.heads - p.key_heads, p.key_heads)
    };
    let mut out = [low, high];
    if turned {
        unroll!(i < V, {
            let turns = p.turns().at(first + i as u32).ld();
            let [sine, cosine] = angle(turns * position);
            out[0][i] = low[i] * cosine - high[i] * sine;
            out[1][i] = high[i] * cosine + low[i] * sine;
        });
    }
    let row = token as u64 * heads as u64 + head as u64;
    let at = base.at(row * p.dim as u64 + first as u64);
    at.st_rounded(&out[0]);
    at.bytes(half * E::BYTES).st_rounded(&out[1]);
}
