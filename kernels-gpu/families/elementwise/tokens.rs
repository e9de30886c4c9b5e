//! Token look-up in a table, and the number of the largest logit, so that a generation step does not involve the host.

use super::element::{element, own_vector};
use crate::device::lanes::{DOWN, reduce};
use crate::device::prelude::*;
use crate::families::elementwise::abi::*;

const THREADS: u32 = ELEMENTWISE_THREADS;

buffers! {
    // `nn::embedding` checks the shapes of the operands. `TokensLaunch` sets `ELEMENTWISE_VECTORS`
    // if rows are whole aligned vectors.
    unsafe TokensParams {
        table<E: Elem>: E, ReadWrite;
        tokens: u32, Fresh;
        /// Features of the look-up, or lengths.
        out: u8, ReadWrite;
    }
}

by_vectors! {
    TokensParams EmbedTile: embed;
}

/// Looks up the features of tokens; a token without a row gets zeros.
#[inline(always)]
fn embed<E: Elem<Acc = f32>, const V: usize>(p: &TokensParams) {
    let columns = p.flags & ELEMENTWISE_COLUMNS != 0;
    let [rows, across] = if columns { [p.width, p.count] } else { [p.count, p.width / V as u32] };
    let Some([far, near]) = own_vector(rows, across) else {
        return;
    };
    let (token, feature) = if columns { (near, far) } else { (far, near * V as u64) };
    let number = p.tokens().at(token).ld();
    let from = p.table::<E>().row(number, p.table_row).at(feature);
    let raw = from.ld_raw::<V>(number < p.vocabulary);
    let [row, column] = if columns { [feature, token] } else { [token, feature] };
    let to = p.out().bytes(row * p.out_row as u64).cast::<E>().at(column);
    if V == 1 {
        to.st_raw(raw);
    } else {
        to.cast::<[u32; 4]>().st(raw);
    }
}

/// Largest logit so far, and its index.
#[derive(Clone, Copy)]
struct Largest {
    value: f32,
    at: u32,
}

impl Largest {
    /// Returns the larger one; of equal values the first. NaN is ignored.
    #[inline(always)]
    fn or(self, value: f32, at: u32) -> Largest {
        let better = value > self.value || (value == self.value && at < self.at);
        if better { Largest { value, at } } else { self }
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, TokensParams> for GreedyTile {
    #[inline(always)]
    unsafe fn run(p: &TokensParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let none = Largest { value: f32::NEG_INFINITY, at: 0 };
        let mut largest = match (p.flags & ELEMENTWISE_VECTORS != 0, E::BYTES) {
            (true, 4) => scan::<E, 4>(p, none),
            (true, _) => scan::<E, 8>(p, none),
            (false, _) => scan::<E, 1>(p, none),
        };
        largest = reduce(largest, DOWN, 1..32, |x, distance| {
            x.or(F32::shfl_xor(x.value, distance), warp::shfl_xor(x.at, distance))
        });
        // SAFETY: `GreedyTile::SHARED_BYTES` includes two words for each warp.
        let of_warp = |warp: u32| unsafe { Shared::<[u32; 2]>::dynamic(warp * 8) };
        if gpu::thread().is_multiple_of(32) {
            of_warp(gpu::thread() / 32).st([largest.value.to_bits(), largest.at]);
        }
        gpu::sync_threads();
        if gpu::thread() != 0 {
            return;
        }
        let mut all = none;
        let mut warp = 0;
        while warp < THREADS / 32 {
            let [value, at] = of_warp(warp).ld();
            all = all.or(f32::from_bits(value), at);
            warp += 1;
        }
        p.tokens().at(gpu::block_x()).st(all.at);
        if p.out != 0 {
            let length = p.out().cast::<u32>().at(gpu::block_x());
            length.st(length.ld().wrapping_add(1));
        }
    }
}

#[inline(always)]
fn scan<E: Elem<Acc = f32>, const V: usize>(p: &TokensParams, none: Largest) -> Largest {
    let token = gpu::block_x();
    let mut largest = none;
    let mut first = gpu::thread() * V as u32;
    while first < p.vocabulary {
        let columns = p.flags & ELEMENTWISE_COLUMNS != 0;
        let at = if columns { [first, token] } else { [token, first] };
        let raw = element(p.table::<E>(), p.table_row, at).ld_raw::<V>(true);
        unroll!(i < V, { largest = largest.or(E::get(&raw, i), first + i as u32) });
        first += THREADS * V as u32;
    }
    largest
}
