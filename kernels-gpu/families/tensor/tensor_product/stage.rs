//! Copies of lists and rows to shared memory.

use crate::device::prelude::*;
use crate::families::tensor::abi::*;

/// Copies the segments of the lists at `lists`, 16 bytes each. Their rows of D become offsets for rows of `row` bytes.
#[inline(always)]
pub fn segments(p: &TensorProductParams, lists: u64, to: u32, row: u32, threads: u32) {
    let mut at = gpu::thread();
    while at < p.counts[0] {
        warp::nounroll();
        let mut words = global::ld_nc_v4(lists + at as u64 * 16, true);
        if row != 1 && words[2] != TENSOR_NONE {
            words[2] *= row;
        }
        copy::st_shared_v4(to + at * 16, words);
        at += threads;
    }
}

/// Copies the pairs: the offset of A's row for rows of `row` bytes, the first entry, and the number of entries.
#[inline(always)]
pub fn pairs(p: &TensorProductParams, s: &TensorShared, lists: u64, row: u32, threads: u32) {
    let list = lists + p.counts[0] as u64 * 16;
    let mut at = gpu::thread();
    while at < p.counts[1] {
        warp::nounroll();
        let [a, _, first, count] = global::ld_nc_v4(list + at as u64 * 16, true);
        let to = copy::dynamic_shared() + s.pairs + at * 8;
        copy::st_shared_v2(to, [a * row, first | count << 16]);
        at += threads;
    }
}

/// Copies the entries: their two 16-bit indices times `low` and `high` bytes, and their coefficients. Entries without a
/// coefficient index become zero and are not used.
#[inline(always)]
pub fn entries<E: Elem>(
    p: &TensorProductParams,
    s: &TensorShared,
    lists: u64,
    [low, high]: [u32; 2],
    threads: u32,
) {
    let list = lists + (p.counts[0] as u64 + p.counts[1] as u64) * 16;
    let smem = copy::dynamic_shared();
    let alpha = E::scalar(p.alpha);
    let mut at = gpu::thread();
    // Prefetches lines of coefficients while the list with their indices is loaded.
    if at as u64 * 128 < p.slots as u64 * E::BYTES as u64 {
        global::ld_global_b16(p.values + at as u64 * 128, true);
    }
    while at < p.counts[2] {
        warp::nounroll();
        // Four entries at once: single loads would wait for memory once per entry.
        let mut codes = [0; 4];
        let mut places = [TENSOR_NONE; 4];
        let mut raw = [[0; 4]; 4];
        unroll!(i < 4, {
            let own = at + i as u32 * threads;
            let valid = own < p.counts[2];
            let [code, place] = global::ld_nc_v2(list + own as u64 * 8, valid);
            codes[i] = ((code & 0xffff) * low) | (((code >> 16) * high) << 16);
            places[i] = if valid { place } else { TENSOR_NONE };
        });
        unroll!(i < 4, {
            let from = p.values + places[i] as u64 * E::BYTES as u64;
            raw[i] = E::ld_nc::<1>(from, places[i] != TENSOR_NONE);
        });
        unroll!(i < 4, {
            let own = at + i as u32 * threads;
            if own < p.counts[2] {
                copy::st_shared_b32(smem + s.codes + own * 4, codes[i]);
                let value = E::mul(E::get(&raw[i], 0), alpha);
                E::st_shared(smem + s.values + own * E::ACC_BYTES, value);
            }
        });
        at += 4 * threads;
    }
}

/// Copies rows of an item, 32 channels from `from` (the address for lane 0) on, by one warp. Channels from `left` on
/// are zeros.
#[inline(always)]
pub fn rows<E: Elem>(to: u32, from: u64, row_stride: u64, [rows, left]: [u32; 2], wide: bool) {
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
            let source = from + row as u64 * row_stride * 4;
            // A copy of 0 bytes still requires a valid address.
            let source = source + if bytes > 0 { channel as u64 * 4 } else { 0 };
            copy::cp_async_16(to + (row * 32 + channel) * 4, source, bytes);
            row += 4;
        }
        return;
    }
    let inside = lane < left;
    let from = from + lane as u64 * E::BYTES as u64;
    let mut row = 0;
    while row < rows {
        let mut raw = [[0; 4]; 4];
        unroll!(i < 4, {
            let at = row + i as u32;
            let source = from + at as u64 * row_stride * E::BYTES as u64;
            raw[i] = E::ld_nc::<1>(source, inside && at < rows);
        });
        unroll!(i < 4, {
            let at = row + i as u32;
            if at < rows {
                E::st_shared(to + (at * 32 + lane) * E::ACC_BYTES, E::get(&raw[i], 0));
            }
        });
        row += 4;
    }
}

/// Copies rows of a tile of 32 items, one lane per item, `TENSOR_STRIDE` apart; this is warp `number` of `warps`. Items
/// past the last are zeros. Lanes read along the rows, so that loads cover whole lines.
#[inline(always)]
pub fn tile<E: Elem>(
    to: u32,
    from: u64,
    item_stride: u64,
    [rows, left]: [u32; 2],
    [number, warps]: [u32; 2],
) {
    let lane = gpu::thread() % 32;
    let mut row = lane;
    while row < rows {
        warp::nounroll();
        let mut item = number;
        while item < TENSOR_ITEMS {
            warp::nounroll();
            let mut raw = [[0; 4]; 4];
            unroll!(i < 4, {
                let at = item + i as u32 * warps;
                let source = from + (at as u64 * item_stride + row as u64) * E::BYTES as u64;
                raw[i] = E::ld_nc::<1>(source, at < left);
            });
            unroll!(i < 4, {
                let at = item + i as u32 * warps;
                let place = (row * TENSOR_STRIDE + at) * E::ACC_BYTES;
                E::st_shared(to + place, E::get(&raw[i], 0));
            });
            item += 4 * warps;
        }
        row += 32;
    }
}

/// Prefetches lines for later loads: rows of A of the tile's items (at most 8 lines an item), and the first lines of D,
/// one a thread.
#[inline(always)]
pub fn ahead<E: Elem>(p: &TensorProductParams, threads: u32) {
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
        let from = p.a + item as u64 * p.item_strides[0] * bytes + line as u64 * 128;
        global::ld_global_b16(from, item < p.items);
        at += threads;
    }
    let from = p.d + gpu::thread() as u64 * 128;
    let all = p.rows[2] as u64 * p.item_strides[2] * bytes;
    global::ld_global_b16(from, gpu::thread() as u64 * 128 < all.min(threads as u64 * 128));
}
