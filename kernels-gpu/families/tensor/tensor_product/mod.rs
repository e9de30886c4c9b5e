//! A small sparse tensor of order 3 times operands that share a batch of items: the equivariant tensor product, its
//! gradients, and other expressions of this structure.

mod items;
mod own;
mod rows;
mod stage;
mod tiles;
mod traces;

use crate::device::epilogue::store_or_add;
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

buffers! {
    // `AnyPlan::check` (`host/core/plan/any.rs`) checks the shapes of all operands. `check` in
    // `host/core/families/tensor/offers/tensor_product/entries.rs` checks that every index of the lists
    // is below the extent of its axis. `CouplingLaunch` allocates a slot of sums for each thread
    // block and a counter for each part.
    unsafe TensorProductParams {
        values<E: Elem>: E, ReadOnly;
        lists: u32, ReadOnly;
        a<E: Elem>: E, ReadOnly;
        y<E: Elem>: E, ReadOnly;
        d<E: Elem>: E, ReadOnly;
        f<E: Elem>: E, ReadOnly;
        out<E: Elem>: E, ReadWrite;
        sums<E: Elem>: E::Acc, Fresh;
        counters: u32, Fresh;
    }
}

impl<W: WalkInfo, E: Elem, T: Tile> Kernel<W, E, TensorProductParams> for T {
    #[inline(always)]
    unsafe fn run(p: &TensorProductParams, _: Maps) {
        match T::STEP {
            STEP_TENSOR_ITEMS => items::run::<E, T>(p),
            STEP_TENSOR_CHANNELS | STEP_TENSOR_SUMS => rows::run::<E, T>(p),
            STEP_TENSOR_CONNECTED | STEP_TENSOR_WEIGHTS => tiles::run::<E, T>(p),
            STEP_TENSOR_TRACES => traces::run::<E, T>(p),
            _ => own::run::<E, T>(p),
        }
    }
}

/// Areas of shared memory.
impl TensorShared {
    #[inline(always)]
    fn area<T>(offset: u32) -> Shared<T> {
        // SAFETY: the host launches with the bytes of this layout, and all offsets of the lists are below their counts.
        unsafe { Shared::dynamic(offset) }
    }

    #[inline(always)]
    fn segments(&self) -> Shared<[u32; 4]> {
        Self::area(self.segments)
    }

    /// Pairs: two words each, four for `sums`.
    #[inline(always)]
    fn pairs<T>(&self) -> Shared<T> {
        Self::area(self.pairs)
    }

    #[inline(always)]
    fn codes(&self) -> Shared<u32> {
        Self::area(self.codes)
    }

    #[inline(always)]
    fn values<E: Elem>(&self) -> Shared<E::Acc> {
        Self::area(self.values)
    }

    /// Private memory of a warp, or that of the thread block.
    #[inline(always)]
    fn own<E: Elem>(&self, warp: u32) -> Shared<E::Acc> {
        Self::area(self.own + warp * self.own_bytes)
    }
}

/// Loads four accumulators from shared memory, 16-byte aligned.
#[inline(always)]
fn load_four<E: Elem>(from: Shared<E::Acc>) -> [E::Acc; 4] {
    let from = from.cast::<[u32; 4]>();
    let low = from.ld();
    if E::ACC_BYTES == 8 {
        let high = from.at(1).ld();
        let pair = |w: [u32; 4], i: usize| E::from_words([w[2 * i], w[2 * i + 1]]);
        [pair(low, 0), pair(low, 1), pair(high, 0), pair(high, 1)]
    } else {
        let one = |i: usize| E::from_words([low[i], 0]);
        [one(0), one(1), one(2), one(3)]
    }
}

/// Loads eight accumulators from shared memory, 16-byte aligned.
#[inline(always)]
fn load_eight<E: Elem>(from: Shared<E::Acc>) -> [E::Acc; 8] {
    let [a, b, c, d] = load_four::<E>(from);
    let [e, f, g, h] = load_four::<E>(from.at(4));
    [a, b, c, d, e, f, g, h]
}

/// Stores `count` zeros to shared memory, by one warp.
#[inline(always)]
fn clear<E: Elem>(to: Shared<E::Acc>, count: u32) {
    let mut at = gpu::thread() % 32;
    while at < count {
        warp::nounroll();
        to.at(at).st(E::ZERO);
        at += 32;
    }
}

/// Sums coefficients of entries times their elements at `from`. `UNROLL`: ptxas may unroll the loop.
#[inline(always)]
fn terms<E: Elem, const UNROLL: bool>(
    s: &TensorShared,
    [mut at, count]: [u32; 2],
    from: Shared<E::Acc>,
) -> E::Acc {
    let end = at + count;
    let mut sum = E::ZERO;
    while at < end {
        if !UNROLL {
            warp::nounroll();
        }
        let code = s.codes().at(at).ld();
        let value = s.values::<E>().at(at).ld();
        sum = E::fma(value, from.bytes(code).ld(), sum);
        at += 1;
    }
    sum
}

/// Sum over the four warps in order; their elements are `bytes` apart.
#[inline(always)]
fn over_warps<E: Elem>(from: Shared<E::Acc>, bytes: u32) -> E::Acc {
    let mut sum = from.ld();
    unroll!(i < 3, {
        sum = E::add(sum, from.bytes((i as u32 + 1) * bytes).ld());
    });
    sum
}

/// Stores an element of the output, or adds it to the stored one.
#[inline(always)]
fn put<E: Elem>(p: &TensorProductParams, to: Global<E, ReadWrite>, value: E::Acc, ok: bool) {
    store_or_add::<E>(to, value, p.flags & FLAG_ACCUMULATE != 0, ok);
}

/// Stores the output of a tile of items at `from`, item by item. That of `traces` is the sum over the warps.
#[inline(always)]
fn put_items<E: Elem, T: Tile>(p: &TensorProductParams, s: &TensorShared, from: Shared<E::Acc>) {
    let (warp, lane) = (gpu::thread() / 32, gpu::thread() % 32);
    let first = gpu::block_x() * TENSOR_ITEMS;
    let mut item = warp;
    while item < TENSOR_ITEMS && first + item < p.items {
        let mut row = lane;
        while row < p.rows[4] {
            let value = if T::STEP == STEP_TENSOR_ITEMS {
                from.at(item * (p.rows[4] | 1) + row).ld()
            } else {
                over_warps::<E>(from.at(row * TENSOR_STRIDE + item), s.own_bytes)
            };
            let place = (first + item) as u64 * p.item_strides[4] + row as u64;
            put::<E>(p, p.out().at(place), value, true);
            row += 32;
        }
        item += T::THREADS / 32;
    }
}
