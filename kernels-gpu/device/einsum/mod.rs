//! Any indirect Einsum from its description: a unit of lanes adds up the terms of one item in registers, finishes the sum
//! and stores it, or leaves it as the part of a cut one. Every element of the output belongs to one unit: no atomics.

mod out;

use super::elem::{Elem, Raw};
use super::gpu;
use super::ptx::global;
use crate::abi::*;

/// Index arrays in device memory, which nothing writes while a plan lives.
struct Device;

impl Arrays for Device {
    #[inline(always)]
    fn slot(&self, address: u64, ok: bool) -> u32 {
        global::load_b32(address, ok)
    }
    #[inline(always)]
    fn word(&self, address: u64) -> u64 {
        let [low, high] = global::load_v2(address, true);
        (high as u64) << 32 | low as u64
    }
}

/// What a unit has added up.
struct Sum<E: Elem, const VEC: usize> {
    acc: [E::Acc; VEC],
    /// Whether there was a term.
    seen: bool,
}

/// The body, generic over the element; the tile is the implementor.
pub trait Body: Tile {
    /// # Safety
    /// `p` describes live device memory, and the launch has this tile's geometry.
    unsafe fn run<W: WalkInfo, E: Elem>(p: &EinsumParams, at: u64);
}

impl<const N: usize, const FIXED: usize, const VEC: usize> Body for Wide<N, FIXED, VEC> {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: Elem>(p: &EinsumParams, _: u64) {
        // What the registers of three thread blocks (of two from three factors on) hold.
        if N == 2 && FIXED == 1 && VEC < 8 {
            unit::<E, N, FIXED, VEC, 6, false>(p);
        } else if N == 2 && VEC == 8 {
            unit::<E, N, FIXED, VEC, 3, false>(p);
        } else if N - FIXED == 1 && N < 4 {
            unit::<E, N, FIXED, VEC, 8, false>(p);
        } else if N < 4 {
            unit::<E, N, FIXED, VEC, 4, false>(p);
        } else {
            unit::<E, N, FIXED, VEC, 2, false>(p);
        }
    }
}

impl<const N: usize> Body for Thin<N> {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: Elem>(p: &EinsumParams, _: u64) {
        if N < 4 {
            unit::<E, N, 0, 1, 4, false>(p);
        } else {
            unit::<E, N, 0, 1, 2, false>(p);
        }
    }
}

impl<const N: usize> Body for Across<N> {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: Elem>(p: &EinsumParams, _: u64) {
        if N < 4 {
            unit::<E, N, 0, 1, 4, true>(p);
        } else {
            unit::<E, N, 0, 1, 2, true>(p);
        }
    }
}

#[inline(always)]
fn unit<
    E: Elem,
    const N: usize,
    const FIXED: usize,
    const VEC: usize,
    const UNROLL: usize,
    const ACROSS: bool,
>(
    p: &EinsumParams,
) {
    let lanes = 1 << p.lane_bits;
    let lane = gpu::thread() & (lanes - 1);
    let own = gpu::block_x() * (256 >> p.lane_bits) + (gpu::thread() >> p.lane_bits);
    // Never by zero, which only the host knows: device code may not panic.
    let item = own.checked_div(p.per_item).unwrap_or(0);
    let rest = own - item * p.per_item;
    let live = item < p.count;
    let [place, start, len, slot] = global::load_v4(p.items + item as u64 * 16, live);
    let mut spot = p.spot::<N>(&Device, place, rest);
    let column = (spot.chunk * lanes + lane) * VEC as u32;
    // Sums over lanes are exchanged by whole warps; elsewhere who has no element leaves.
    if !ACROSS {
        if !live || column >= p.columns {
            return;
        }
        unroll!(f < N, {
            spot.base[f] += column as u64 * p.factors[f.min(EINSUM_FACTORS - 1)].inner;
        });
        spot.out += column as u64 * p.out_inner;
        spot.bias += column as u64 * p.bias_inner;
        spot.gate += column as u64 * p.gate_inner;
    }
    let mut sum = Sum::<E, VEC> {
        acc: [E::ZERO; VEC],
        seen: false,
    };
    let kept = (rest as u64 * if ACROSS { 1 } else { lanes as u64 * VEC as u64 })
        + if ACROSS {
            0
        } else {
            (lane * VEC as u32) as u64
        };
    let width = p.per_item as u64 * if ACROSS { 1 } else { lanes as u64 * VEC as u64 };
    let (first, step) = if ACROSS { (lane, lanes) } else { (0, 1) };
    if p.flags & FLAG_JOIN != 0 {
        out::join::<E, VEC>(p, &mut sum, (start + first, start + len, step), width, kept);
    } else {
        add_up::<E, N, FIXED, VEC, UNROLL>(p, &mut sum, spot.base, (start, len), (first, step));
    }
    if ACROSS {
        out::over_lanes::<E, VEC>(p, &mut sum);
        if !live || lane != 0 {
            return;
        }
    }
    if slot == EINSUM_WHOLE {
        out::finish::<E, VEC>(p, &sum, spot.out, spot.bias, spot.gate);
    } else {
        out::leave::<E, VEC>(p, &sum, slot as u64 * width + kept);
    }
}

/// All terms of an item: its list as one line, or a line for each of its terms and each step of the summed loops.
#[inline(always)]
fn add_up<E: Elem, const N: usize, const FIXED: usize, const VEC: usize, const UNROLL: usize>(
    p: &EinsumParams,
    sum: &mut Sum<E, VEC>,
    base: [u64; N],
    (start, len): (u32, u32),
    (lane, step): (u32, u32),
) {
    let listed = p.summed == 0;
    let terms = if listed { 1 } else { len };
    let lines = if listed { 1 } else { p.lines };
    let mut term = 0;
    while term < terms {
        let mut number = 0;
        while number < lines {
            let line = if listed {
                p.listed(base, start, len)
            } else {
                p.line_of(&Device, base, start + term, number)
            };
            if line.ok {
                let mut at = lane;
                while at < line.len {
                    burst::<E, N, FIXED, VEC, UNROLL>(p, sum, &line, at, step);
                    at += step * UNROLL as u32;
                }
            }
            number += 1;
        }
        term += 1;
    }
}

/// `UNROLL` terms, `step` apart: all places, then all loads, then all products, in the order of the terms.
#[inline(always)]
fn burst<E: Elem, const N: usize, const FIXED: usize, const VEC: usize, const UNROLL: usize>(
    p: &EinsumParams,
    sum: &mut Sum<E, VEC>,
    line: &Line<N>,
    at: u32,
    step: u32,
) {
    let mut from = [[0u64; N]; UNROLL];
    let mut exists = [false; UNROLL];
    unroll!(u < UNROLL, {
        let own = at + u as u32 * step;
        let mut ok = own < line.len;
        unroll!(f < N, {
            let walk = (line.tables[f], line.strides[f]);
            let (bytes, there) = stepped(&Device, walk, line.first + own, ok);
            from[u][f] = line.base[f] + bytes;
            ok = there;
        });
        exists[u] = ok;
    });
    let mut raw: [[Raw; N]; UNROLL] = [[[0; 4]; N]; UNROLL];
    unroll!(u < UNROLL, {
        unroll!(f < N, {
            raw[u][f] = if f < FIXED {
                E::load::<1>(from[u][f], exists[u])
            } else {
                E::load::<VEC>(from[u][f], exists[u])
            };
        });
    });
    unroll!(u < UNROLL, {
        let first = E::get(&raw[u][0], 0);
        // A zero that fills a block is no entry; what it would be multiplied with may be infinite.
        let real = exists[u] && !(p.flags & FLAG_FILLED != 0 && is_zero::<E>(first));
        if real {
            add_product::<E, N, FIXED, VEC>(sum, &raw[u]);
        }
    });
}

/// One term: the factors without the lanes' index once, the others by element.
#[inline(always)]
fn add_product<E: Elem, const N: usize, const FIXED: usize, const VEC: usize>(
    sum: &mut Sum<E, VEC>,
    raw: &[Raw; N],
) {
    let mut fixed = E::get(&raw[0], 0);
    unroll!(f < FIXED, {
        if f > 0 {
            fixed = E::mul(fixed, E::get(&raw[f], 0));
        }
    });
    unroll!(i < VEC, {
        let mut product = if FIXED == 0 {
            E::get(&raw[0], i)
        } else {
            fixed
        };
        unroll!(f < N, {
            if f + 1 < N && f >= FIXED && f > 0 {
                product = E::mul(product, E::get(&raw[f], i));
            }
        });
        // One factor: nothing to multiply with.
        sum.acc[i] = if N == 1 {
            E::add(sum.acc[i], product)
        } else {
            E::fma(product, E::get(&raw[N - 1], i), sum.acc[i])
        };
    });
    sum.seen = true;
}

#[inline(always)]
fn is_zero<E: Elem>(x: E::Acc) -> bool {
    let [low, high] = E::words(x);
    if E::ACC_BYTES == 8 {
        low == 0 && high << 1 == 0
    } else {
        low << 1 == 0
    }
}
