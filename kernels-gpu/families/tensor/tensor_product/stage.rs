//! The tasks of a warp, and copies of lists and rows to shared memory.

use crate::device::prelude::*;
use crate::families::tensor::abi::*;

/// Factors that turn numbers of the lists into offsets in shared memory: rows of D; rows of A and F; the two indices of
/// entries.
const fn factors(step: u32, acc: u32) -> [u32; 4] {
    let (row, tall) = (32 * acc, TENSOR_STRIDE * acc);
    match step {
        STEP_TENSOR_ITEMS => [1, 1, tall, tall],
        STEP_TENSOR_CONNECTED | STEP_TENSOR_WEIGHTS => [1, 1, tall, 0],
        STEP_TENSOR_CHANNELS => [row, row, acc, 0],
        _ => [1, row, acc, 0],
    }
}

/// Copies the lists at `from` to shared memory.
#[inline(always)]
pub fn lists<E: Elem, T: Tile>(
    p: &TensorProductParams,
    s: &TensorShared,
    from: Global<u32, ReadOnly>,
) {
    segments::<E, T>(p, s, from);
    entries::<E, T>(p, s, from);
    if T::STEP != STEP_TENSOR_ITEMS {
        pairs::<E, T>(p, s, from);
    }
}

/// Copies the segments, 16 bytes each.
#[inline(always)]
fn segments<E: Elem, T: Tile>(
    p: &TensorProductParams,
    s: &TensorShared,
    lists: Global<u32, ReadOnly>,
) {
    let [of_d, ..] = factors(T::STEP, E::ACC_BYTES);
    let mut at = gpu::thread();
    while at < p.counts[0] {
        warp::nounroll();
        let mut words = lists.cast::<[u32; 4]>().at(at).ld();
        if of_d != 1 && words[2] != TENSOR_NONE {
            words[2] *= of_d;
        }
        s.segments().at(at).st(words);
        at += T::THREADS;
    }
}

/// Copies the pairs: A's row, the first entry, and the number of entries; for `sums` rows of A, D and F.
#[inline(always)]
fn pairs<E: Elem, T: Tile>(
    p: &TensorProductParams,
    s: &TensorShared,
    lists: Global<u32, ReadOnly>,
) {
    let [_, row, ..] = factors(T::STEP, E::ACC_BYTES);
    let list = lists.cast::<[u32; 4]>().at(p.counts[0]);
    let mut at = gpu::thread();
    while at < p.counts[1] {
        warp::nounroll();
        let [a, f, first, count] = list.at(at).ld();
        if T::STEP == STEP_TENSOR_SUMS {
            let f = if f == TENSOR_NONE { f } else { f * row };
            s.pairs::<[u32; 4]>().at(at).st([a * row, f, first * row, 0]);
        } else {
            s.pairs::<[u32; 2]>().at(at).st([a * row, first | count << 16]);
        }
        at += T::THREADS;
    }
}

/// Copies the entries: their two 16-bit indices and their coefficients. Entries without a coefficient index become zero
/// and are not used.
#[inline(always)]
fn entries<E: Elem, T: Tile>(
    p: &TensorProductParams,
    s: &TensorShared,
    lists: Global<u32, ReadOnly>,
) {
    let [_, _, low, high] = factors(T::STEP, E::ACC_BYTES);
    let before = p.counts[0] as u64 + p.counts[1] as u64;
    let list = lists.cast::<[u32; 4]>().at(before).cast::<[u32; 2]>();
    let alpha = E::scalar(p.alpha);
    let mut at = gpu::thread();
    // Prefetches lines of coefficients while the list with their indices is loaded.
    if at as u64 * 128 < p.slots as u64 * E::BYTES as u64 {
        touch(p.values::<E>().bytes(at as u64 * 128), true);
    }
    while at < p.counts[2] {
        warp::nounroll();
        // Four entries at once: single loads would wait for memory once per entry.
        let mut codes = [0; 4];
        let mut places = [TENSOR_NONE; 4];
        let mut raw = [[0; 4]; 4];
        unroll!(i < 4, {
            let own = at + i as u32 * T::THREADS;
            let valid = own < p.counts[2];
            let [code, place] = list.at(own).ld_if(valid);
            codes[i] = ((code & 0xffff) * low) | (((code >> 16) * high) << 16);
            places[i] = if valid { place } else { TENSOR_NONE };
        });
        unroll!(i < 4, {
            let from = p.values::<E>().at(places[i]);
            raw[i] = from.ld_raw::<1>(places[i] != TENSOR_NONE);
        });
        unroll!(i < 4, {
            let own = at + i as u32 * T::THREADS;
            if own < p.counts[2] {
                s.codes().at(own).st(codes[i]);
                s.values::<E>().at(own).st(E::mul(E::get(&raw[i], 0), alpha));
            }
        });
        at += 4 * T::THREADS;
    }
}

/// Calls `each` for the tasks of this warp, after copies of the lists: with the layout of shared memory, the address of
/// the warp's part, the item, and the first of 32 channels. An item has `chunks` tasks.
#[inline(always)]
pub fn tasks<E: Elem, T: Tile>(
    p: &TensorProductParams,
    chunks: u32,
    mut each: impl FnMut(&TensorShared, Shared<E::Acc>, u64, u32),
) {
    let s = &p.layout(T::STEP, E::ACC_BYTES, T::THREADS);
    let own = s.own::<E>(gpu::thread() / 32);
    lists::<E, T>(p, s, p.lists());
    gpu::sync_threads();
    let warps = T::THREADS as u64 / 32;
    let mut task = gpu::block_x() as u64 * warps + gpu::thread() as u64 / 32;
    while task < p.items as u64 * chunks as u64 {
        warp::nounroll();
        // The host guarantees a nonzero divisor. `checked_div` avoids a panic, which device code must not have.
        let item = task.checked_div(chunks as u64).unwrap_or(0);
        each(s, own, item, (task - item * chunks as u64) as u32 * 32);
        // All lanes have read the part that the next task overwrites.
        warp::sync(u32::MAX);
        task += gpu::grid_x() as u64 * warps;
    }
}

/// Copies the row of Y of an item, by one warp.
#[inline(always)]
pub fn row_of_y<E: Elem>(p: &TensorProductParams, to: Shared<E::Acc>, item: u64) {
    let mut row = gpu::thread() % 32;
    while row < p.rows[1] {
        warp::nounroll();
        let from = p.y::<E>().at(item * p.item_strides[1] + row as u64);
        to.at(row).st(E::get(&from.ld_raw::<1>(true), 0));
        row += 32;
    }
}

/// Copies `N` elements to shared memory. All loads precede the stores. `from` and `to`: address of an element, and
/// whether it is loaded (otherwise it is zero) and stored.
#[inline(always)]
pub fn elements<E: Elem, const N: usize>(
    from: impl Fn(u32) -> (Global<E, ReadOnly>, bool),
    to: impl Fn(u32) -> (Shared<E::Acc>, bool),
) {
    let mut raw = [[0; 4]; N];
    unroll!(i < N, {
        let (from, ok) = from(i as u32);
        raw[i] = from.ld_raw::<1>(ok);
    });
    unroll!(i < N, {
        let (to, ok) = to(i as u32);
        if ok {
            to.st(E::get(&raw[i], 0));
        }
    });
}

/// Copies 32 channels of all rows of an item of A (0), D (2) or F (3), by one warp. Channels past `width` are zeros.
#[inline(always)]
pub fn rows<E: Elem>(
    p: &TensorProductParams,
    which: usize,
    to: Shared<E::Acc>,
    item: u64,
    [channel, width]: [u32; 2],
) {
    let [a, d, f, _] = p.row_strides;
    let (operand, row_stride) = [(p.a::<E>(), a), (p.y(), 0), (p.d(), d), (p.f(), f)][which];
    let from = operand.at(item * p.item_strides[which] + channel as u64);
    let (rows, left) = (p.rows[which], width - channel);
    let wide = p.flags & FLAG_WIDE != 0;
    let lane = gpu::thread() % 32;
    if E::ACC_BYTES == E::BYTES && E::BYTES == 4 && wide {
        let channel = lane % 8 * 4;
        let bytes = if left <= channel {
            0
        } else if left - channel >= 4 {
            16
        } else {
            (left - channel) * 4
        };
        let mut row = lane / 8;
        while row < rows {
            let source = from.at(row as u64 * row_stride);
            // A copy of 0 bytes still requires a valid address.
            let source = source.bytes(if bytes > 0 { channel as u64 * 4 } else { 0 });
            source.cp_async_16(to.at(row * 32 + channel), bytes);
            row += 4;
        }
        return;
    }
    let inside = lane < left;
    let from = from.at(lane);
    let mut row = 0;
    while row < rows {
        let from = |i| (from.at((row + i) as u64 * row_stride), inside && row + i < rows);
        let to = |i| (to.at((row + i) * 32 + lane), row + i < rows);
        elements::<E, 4>(from, to);
        row += 4;
    }
}

/// Copies the rows of A (0) or Y (1) of 32 items, one lane per item, `TENSOR_STRIDE` apart; this is warp `number` of
/// `warps`. Items past the last are zeros. Lanes read along the rows, so that loads cover whole lines.
#[inline(always)]
pub fn tile<E: Elem>(
    p: &TensorProductParams,
    which: usize,
    to: Shared<E::Acc>,
    first: u32,
    [number, warps]: [u32; 2],
) {
    let (rows, left, item_stride) = (p.rows[which], p.items - first, p.item_strides[which]);
    let from = [p.a::<E>(), p.y()][which].at(first as u64 * item_stride);
    let lane = gpu::thread() % 32;
    let mut row = lane;
    while row < rows {
        warp::nounroll();
        let mut item = number;
        while item < TENSOR_ITEMS {
            warp::nounroll();
            let at = |i| item + i * warps;
            let from = |i| (from.at(at(i) as u64 * item_stride + row as u64), at(i) < left);
            let to = |i| (to.at(row * TENSOR_STRIDE + at(i)), true);
            elements::<E, 4>(from, to);
            item += 4 * warps;
        }
        row += 32;
    }
}

/// Prefetches a line if `ok`. The load is an ordinary one: the compiler would remove a [`ReadOnly`]
/// load without a use.
#[inline(always)]
fn touch<E>(line: Global<E, ReadOnly>, ok: bool) {
    // SAFETY: the address is valid for the stronger access, and nothing is stored.
    unsafe { line.with::<ReadWrite>() }.cast::<u16>().ld_if(ok);
}

/// Prefetches lines for later loads: rows of A of the tile's items (at most 8 lines an item), and the first lines of D,
/// one a thread.
#[inline(always)]
pub fn ahead<E: Elem, T: Tile>(p: &TensorProductParams) {
    let bytes = E::BYTES as u64;
    let lines = |rows: u32, stride: u64, width: u32| {
        let extent = (rows.max(1) - 1) as u64 * stride + width as u64;
        (extent * bytes).div_ceil(128) as u32
    };
    let own = lines(p.rows[0], p.row_strides[0], p.width).min(8);
    let first = gpu::block_x() * TENSOR_ITEMS;
    let mut at = gpu::thread();
    while at < TENSOR_ITEMS * own {
        warp::nounroll();
        let (item, line) = (at % TENSOR_ITEMS + first, at / TENSOR_ITEMS);
        let from = p.a::<E>().at(item as u64 * p.item_strides[0]).bytes(line as u64 * 128);
        touch(from, item < p.items);
        at += T::THREADS;
    }
    let from = p.d::<E>().bytes(gpu::thread() as u64 * 128);
    let all = p.rows[2] as u64 * p.item_strides[2] * bytes;
    touch(from, gpu::thread() as u64 * 128 < all.min(T::THREADS as u64 * 128));
}
