//! Gradient of the max message. An integer minimum finds the first winning entry, independent of the order. Sums over
//! the entries of a source, and over features, are added in a fixed order.

use crate::device::lanes::{self, DOWN};
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

const ENTRIES: usize = MESSAGE_ENTRIES as usize;

#[inline(always)]
fn warp_number() -> u32 {
    gpu::block_x() * 8 + gpu::thread() / 32
}

/// Loads the elements of a list for the four entries from `at` on.
#[inline(always)]
fn four(list: u64, at: u32) -> Raw {
    global::ld_nc_v4(list + at as u64 * 4, true)
}

/// Loads feature `f` of row `row`.
#[inline(always)]
fn element<E: Elem>(matrix: u64, row: u32, row_bytes: u32, f: u32, ok: bool) -> E::Acc {
    let at = matrix + row as u64 * row_bytes as u64 + (f * E::BYTES) as u64;
    E::get(&E::ld_global::<1>(at, ok), 0)
}

#[inline(always)]
fn value<E: Elem>(p: &MessageParams, slot: u32, ok: bool) -> E::Acc {
    E::get(&E::ld_global::<1>(p.values + slot as u64 * E::BYTES as u64, ok), 0)
}

/// Address of the winner for target `m` and feature `f`.
#[inline(always)]
fn winner(p: &MessageParams, m: u32, f: u32) -> u64 {
    p.first + (m as u64 * p.features as u64 + f as u64) * 4
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, MessageParams> for FirstLargest {
    #[inline(always)]
    unsafe fn run(p: &MessageParams, _: u64) {
        let at = warp_number() * MESSAGE_ENTRIES;
        if at >= p.count {
            return;
        }
        let [targets, sources, slots] = [p.targets, p.sources, p.slots].map(|of| four(of, at));
        let mut weights = [E::ZERO; ENTRIES];
        unroll!(u < 4, { weights[u] = value::<E>(p, slots[u], at + (u as u32) < p.count) });
        let mut f = gpu::thread() % 32;
        while f < p.features {
            let (mut x, mut y) = ([E::ZERO; ENTRIES], [E::ZERO; ENTRIES]);
            unroll!(u < 4, {
                let ok = at + (u as u32) < p.count;
                x[u] = element::<E>(p.x, sources[u], p.x_bytes, f, ok);
                y[u] = element::<E>(p.y, targets[u], p.y_bytes, f, ok);
            });
            unroll!(u < 4, {
                // Rounded like the stored result: the first of the messages that round to the max wins.
                let rounded = E::put(&[E::mul(weights[u], x[u]); 8]);
                if at + (u as u32) < p.count && E::equal(E::get(&rounded, 0), y[u]) {
                    global::red_min(winner(p, targets[u], f), slots[u]);
                }
            });
            f += 32;
        }
    }
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, MessageParams> for PickLargest {
    #[inline(always)]
    unsafe fn run(p: &MessageParams, _: u64) {
        let unit = warp_number();
        let chunks = p.features.div_ceil(MESSAGE_FEATURES);
        // The host guarantees a nonzero divisor. `checked_div` avoids a panic, which device code must not have.
        let item = unit.checked_div(chunks).unwrap_or(0);
        let f = (unit - item * chunks) * MESSAGE_FEATURES + gpu::thread() % 32;
        if item >= p.count || f >= p.features {
            return;
        }
        let [source, start, len, slot] = global::ld_nc_v4(p.items + item as u64 * 16, true);
        let sum =
            if p.join != 0 { joined::<E>(p, start, len, f) } else { picked::<E>(p, start, len, f) };
        if slot == MESSAGE_WHOLE {
            let row = p.out + source as u64 * p.out_bytes as u64;
            E::store::<1>(row + (f * E::BYTES) as u64, &[sum]);
        } else {
            let at = slot as u64 * p.features as u64 + f as u64;
            E::store_acc(p.partial + at * E::ACC_BYTES as u64, sum);
        }
    }
}

/// Sum over entries `start .. start + len` of value times gradient, if the entry has won.
#[inline(always)]
fn picked<E: Elem>(p: &MessageParams, start: u32, len: u32, f: u32) -> E::Acc {
    let mut sum = E::ZERO;
    let end = start + len;
    // Starts at the aligned index at or before the first entry, as loads have four indices.
    let mut at = start / MESSAGE_ENTRIES * MESSAGE_ENTRIES;
    while at < end {
        let [targets, slots] = [p.targets, p.slots].map(|of| four(of, at));
        let mut won = [false; ENTRIES];
        unroll!(u < 4, {
            let own = at + u as u32;
            let inside = own >= start && own < end;
            let first = global::ld_global_b32(winner(p, targets[u], f), inside);
            won[u] = inside && first == slots[u];
        });
        let (mut weight, mut dy) = ([E::ZERO; ENTRIES], [E::ZERO; ENTRIES]);
        unroll!(u < 4, {
            weight[u] = value::<E>(p, slots[u], won[u]);
            dy[u] = element::<E>(p.dy, targets[u], p.dy_bytes, f, won[u]);
        });
        unroll!(u < 4, {
            if won[u] {
                sum = E::fma(weight[u], dy[u], sum);
            }
        });
        at += MESSAGE_ENTRIES;
    }
    sum
}

/// Adds parts `start .. start + len` of a cut sum, in this order.
#[inline(always)]
fn joined<E: Elem>(p: &MessageParams, start: u32, len: u32, f: u32) -> E::Acc {
    let mut sum = E::ZERO;
    let mut slot = start;
    while slot < start + len {
        let at = slot as u64 * p.features as u64 + f as u64;
        sum = E::add(sum, E::load_acc(p.partial + at * E::ACC_BYTES as u64, true));
        slot += 1;
    }
    sum
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, MessageParams> for LargestWeights {
    #[inline(always)]
    unsafe fn run(p: &MessageParams, _: u64) {
        let at = warp_number() * MESSAGE_ENTRIES;
        // Uniform over the warp, whose lanes exchange their sums.
        if at >= p.count {
            return;
        }
        let [targets, sources, slots] = [p.targets, p.sources, p.slots].map(|of| four(of, at));
        let lane = gpu::thread() % 32;
        let mut sums = [E::ZERO; ENTRIES];
        let mut f = lane;
        while f < p.features {
            let mut won = [false; ENTRIES];
            unroll!(u < 4, {
                let inside = at + (u as u32) < p.count;
                let first = global::ld_global_b32(winner(p, targets[u], f), inside);
                won[u] = inside && first == slots[u];
            });
            unroll!(u < 4, {
                let x = element::<E>(p.x, sources[u], p.x_bytes, f, won[u]);
                let dy = element::<E>(p.dy, targets[u], p.dy_bytes, f, won[u]);
                if won[u] {
                    sums[u] = E::fma(x, dy, sums[u]);
                }
            });
            f += 32;
        }
        unroll!(u < 4, {
            let sum = lanes::sum_of::<E>(sums[u], DOWN, 1..32);
            if lane == u as u32 && at + (u as u32) < p.count {
                E::store::<1>(p.out + slots[u] as u64 * E::BYTES as u64, &[sum]);
            }
        });
    }
}
