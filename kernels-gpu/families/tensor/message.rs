//! Gradient of the max message. An integer minimum finds the first winning entry, independent of the order. Sums over
//! the entries of a source, and over features, are added in a fixed order.

use crate::device::lanes::{self, DOWN};
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

buffers! {
    // `host/core/ops/message/largest.rs` checks the shapes of all operands.
    // `host/core/families/tensor/message.rs` makes the lists from the pattern, pads them to whole
    // vectors, and allocates the workspaces for all winners and parts.
    unsafe MessageParams {
        targets: u32, ReadOnly;
        sources: u32, ReadOnly;
        slots: u32, ReadOnly;
        values<E: Elem>: E, ReadWrite;
        x<E: Elem>: E, ReadWrite;
        y<E: Elem>: E, ReadWrite;
        dy<E: Elem>: E, ReadWrite;
        out<E: Elem>: E, ReadWrite;
        first: u32, ReadWrite;
        items: [u32; 4], ReadOnly;
        partial<E: Elem>: E::Acc, Fresh;
    }
}

const ENTRIES: usize = MESSAGE_ENTRIES as usize;

#[inline(always)]
fn warp_number() -> u32 {
    gpu::block_x() * 8 + gpu::thread() / 32
}

/// Loads the targets, sources and slots of the four entries from `at` on.
#[inline(always)]
fn lists(p: &MessageParams, at: u32) -> [Raw; 3] {
    [p.targets(), p.sources(), p.slots()].map(|list| list.at(at).cast::<[u32; 4]>().ld())
}

/// Loads feature `f` of row `row`.
#[inline(always)]
fn element<E: Elem>(
    matrix: Global<E, ReadWrite>,
    row: u32,
    row_bytes: u32,
    f: u32,
    ok: bool,
) -> E::Acc {
    let at = matrix.row(row, row_bytes).bytes(f * E::BYTES);
    E::get(&at.ld_raw::<1>(ok), 0)
}

#[inline(always)]
fn value<E: Elem>(p: &MessageParams, slot: u32, ok: bool) -> E::Acc {
    E::get(&p.values::<E>().at(slot).ld_raw::<1>(ok), 0)
}

/// Address of the winner for target `m` and feature `f`.
#[inline(always)]
fn winner(p: &MessageParams, m: u32, f: u32) -> Global<u32, ReadWrite> {
    p.first().at(m as u64 * p.features as u64 + f as u64)
}

/// Whether each of four entries exists and is the winner for its target and feature `f`.
#[inline(always)]
fn won(p: &MessageParams, of: [Raw; 2], f: u32, exists: impl Fn(u32) -> bool) -> [bool; ENTRIES] {
    let [targets, slots] = of;
    let mut won = [false; ENTRIES];
    unroll!(u < 4, {
        let exists = exists(u as u32);
        let first = winner(p, targets[u], f).ld_if(exists);
        won[u] = exists && first == slots[u];
    });
    won
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, MessageParams> for FirstLargest {
    #[inline(always)]
    unsafe fn run(p: &MessageParams, _: Maps) {
        let at = warp_number() * MESSAGE_ENTRIES;
        if at >= p.count {
            return;
        }
        let [targets, sources, slots] = lists(p, at);
        let mut weights = [E::ZERO; ENTRIES];
        unroll!(u < 4, { weights[u] = value::<E>(p, slots[u], at + (u as u32) < p.count) });
        let mut f = gpu::thread() % 32;
        while f < p.features {
            let (mut x, mut y) = ([E::ZERO; ENTRIES], [E::ZERO; ENTRIES]);
            unroll!(u < 4, {
                let ok = at + (u as u32) < p.count;
                x[u] = element::<E>(p.x(), sources[u], p.x_bytes, f, ok);
                y[u] = element::<E>(p.y(), targets[u], p.y_bytes, f, ok);
            });
            unroll!(u < 4, {
                // Rounded like the stored result: the first of the messages that round to the max wins.
                let rounded = E::put(&[E::mul(weights[u], x[u]); 8]);
                if at + (u as u32) < p.count && E::equal(E::get(&rounded, 0), y[u]) {
                    winner(p, targets[u], f).red_min(slots[u]);
                }
            });
            f += 32;
        }
    }
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, MessageParams> for PickLargest {
    #[inline(always)]
    unsafe fn run(p: &MessageParams, _: Maps) {
        let unit = warp_number();
        let chunks = p.features.div_ceil(MESSAGE_FEATURES);
        // The host guarantees a nonzero divisor. `checked_div` avoids a panic, which device code must not have.
        let item = unit.checked_div(chunks).unwrap_or(0);
        let f = (unit - item * chunks) * MESSAGE_FEATURES + gpu::thread() % 32;
        if item >= p.count || f >= p.features {
            return;
        }
        let [source, start, len, slot] = p.items().at(item).ld();
        let sum =
            if p.join != 0 { joined::<E>(p, start, len, f) } else { picked::<E>(p, start, len, f) };
        if slot == MESSAGE_WHOLE {
            let row = p.out::<E>().row(source, p.out_bytes);
            row.bytes(f * E::BYTES).st_rounded(&[sum]);
        } else {
            let at = slot as u64 * p.features as u64 + f as u64;
            p.partial::<E>().at(at).st(sum);
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
        let [targets, _, slots] = lists(p, at);
        let won = won(p, [targets, slots], f, |u| (start..end).contains(&(at + u)));
        let (mut weight, mut dy) = ([E::ZERO; ENTRIES], [E::ZERO; ENTRIES]);
        unroll!(u < 4, {
            weight[u] = value::<E>(p, slots[u], won[u]);
            dy[u] = element::<E>(p.dy(), targets[u], p.dy_bytes, f, won[u]);
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
        sum = E::add(sum, p.partial::<E>().at(at).ld());
        slot += 1;
    }
    sum
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, MessageParams> for LargestWeights {
    #[inline(always)]
    unsafe fn run(p: &MessageParams, _: Maps) {
        let at = warp_number() * MESSAGE_ENTRIES;
        // Uniform over the warp, whose lanes exchange their sums.
        if at >= p.count {
            return;
        }
        let [targets, sources, slots] = lists(p, at);
        let lane = gpu::thread() % 32;
        let mut sums = [E::ZERO; ENTRIES];
        let mut f = lane;
        while f < p.features {
            let won = won(p, [targets, slots], f, |u| at + u < p.count);
            unroll!(u < 4, {
                let x = element::<E>(p.x(), sources[u], p.x_bytes, f, won[u]);
                let dy = element::<E>(p.dy(), targets[u], p.dy_bytes, f, won[u]);
                if won[u] {
                    sums[u] = E::fma(x, dy, sums[u]);
                }
            });
            f += 32;
        }
        unroll!(u < 4, {
            let sum = lanes::sum_of::<E>(sums[u], DOWN, 1..32);
            if lane == u as u32 && at + (u as u32) < p.count {
                p.out::<E>().at(slots[u]).st_rounded(&[sum]);
            }
        });
    }
}
