//! Matrices that all items share. `connected`: `Out[b,o,w] = C[a,y,o] * A[b,a,u] * Y[b,y] * D[d,u,w]`. A warp has 32
//! items, a row of the output and 32 of its channels. `weights`, the gradient of a matrix:
//! `Out[o,u,w] = C[a,y,f,o] * A[b,a,u] * Y[b,y] * F[b,f,w]`. A warp has a row of the output, 32 x 32 of its channels, and
//! a strided subset of the tiles of 32 items. The thread blocks of a row store partial sums, and the last one to arrive
//! adds them in order. In each segment the sum over pairs is the left operand of a product with D or F. It is in shared
//! memory, like Y and the lists; products are in registers. Loads of the next rows of D overlap a multiplication.

use super::{load_eight, load_four, over_warps, put, stage, terms};
use crate::device::memory::Access;
use crate::device::prelude::*;
use crate::device::split_k::block_arrives_last;
use crate::families::tensor::abi::*;

/// Sums of a lane. `connected` and `traces`: items `lane / 8 + 4 i`, channels `lane % 8 * 4 + j`. `weights`: channels
/// `lane / 8 * 8 + i` of A and `lane % 8 * 4 + j` of F.
pub type Sums<E> = [[<E as Elem>::Acc; 4]; 8];

#[inline(always)]
pub fn run<E: Elem, T: Tile>(p: &TensorProductParams) {
    let s = &p.layout(T::STEP, E::ACC_BYTES, T::THREADS);
    let (warp, lane, warps) = (gpu::thread() / 32, gpu::thread() % 32, T::THREADS / 32);
    let own = s.own::<E>(warp);
    let mut sums: Sums<E> = [[E::ZERO; 4]; 8];
    if T::STEP == STEP_TENSOR_CONNECTED {
        let y = s.own::<E>(0);
        let row = gpu::block_y() * warps + warp;
        let first = gpu::block_x() * TENSOR_ITEMS;
        stage::ahead::<E, T>(p);
        stage::tile::<E>(p, 1, y, first, [warp, warps]);
        let ends = lists::<E, T>(p, s);
        gpu::sync_threads();
        // No thread block barrier follows, so warps without a row are done.
        if row < p.rows[4] {
            segments::<E, T>(p, s, [own.bytes(s.parts[0]), y], first, ends, &mut sums);
            store::<E>(p, row, &sums);
        }
        return;
    }
    let ends = lists::<E, T>(p, s);
    gpu::sync_threads();
    let tiles = p.items.div_ceil(TENSOR_ITEMS);
    let mut tile = gpu::block_x() * warps + warp;
    while tile < tiles {
        let (first, y) = (tile * TENSOR_ITEMS, own.bytes(s.parts[0]));
        warp::sync(u32::MAX);
        stage::tile::<E>(p, 1, y, first, [0, 1]);
        warp::sync(u32::MAX);
        segments::<E, T>(p, s, [own, y], first, ends, &mut sums);
        tile += gpu::grid_x() * warps;
    }
    // The left operands are no longer needed: their memory now has 32 x 32 sums of each warp.
    warp::sync(u32::MAX);
    unroll!(i < 8, {
        unroll!(j < 4, {
            let at = (lane / 8 * 8 + i as u32) * TENSOR_LEFT + lane % 8 * 4 + j as u32;
            own.at(at).st(sums[i][j]);
        });
    });
    gpu::sync_threads();
    add_up::<E, T>(p, s, s.own::<E>(0));
    finish::<E, T>(p, s.segments().cast());
}

/// Copies this thread block's piece of the lists to shared memory. Returns the first segment and the end of this warp's
/// row.
#[inline(always)]
fn lists<E: Elem, T: Tile>(p: &TensorProductParams, s: &TensorShared) -> [u32; 2] {
    let rows = rows_of_piece(T::STEP, T::THREADS);
    let [words, starts] = piece_words(p.counts, rows);
    let piece = p.lists().at(gpu::block_y() as u64 * words as u64);
    stage::lists::<E, T>(p, s, piece);
    let own = piece.at(starts + gpu::thread() / 32 % rows);
    [own.ld(), own.at(1u32).ld()]
}

/// First channels of the left and the right operand in this thread block's part of the output. `connected` sums over
/// those of the left one.
#[inline(always)]
fn corner<T: Tile>(p: &TensorProductParams) -> [u32; 2] {
    let z = gpu::block_z();
    if T::STEP == STEP_TENSOR_CONNECTED {
        return [0, z * 32];
    }
    let across = p.out_width.div_ceil(32);
    // The host guarantees a nonzero divisor. `checked_div` avoids a panic, which device code must not have.
    let row = z.checked_div(across).unwrap_or(0);
    [row * 32, (z - row * across) * 32]
}

/// Adds the products of segments for the tile of items from `tile` on. `own`: this warp's memory; `y`: the tile of Y.
#[inline(always)]
fn segments<E: Elem, T: Tile>(
    p: &TensorProductParams,
    s: &TensorShared,
    [own, y]: [Shared<E::Acc>; 2],
    tile: u32,
    [mut segment, end]: [u32; 2],
    sums: &mut Sums<E>,
) {
    let coefficients = own.bytes(s.parts[3]);
    let [first, column] = corner::<T>(p);
    let connected = T::STEP == STEP_TENSOR_CONNECTED;
    while segment < end {
        let [begin, count, right, _] = s.segments().at(segment).ld();
        pairs::<E>(s, y, coefficients, begin, count);
        // A row without terms has one segment without pairs; its right operand does not exist.
        let mut channel = if connected && count == 0 { p.width } else { first };
        while if connected { channel < p.width } else { count > 0 && channel == first } {
            // All lanes have read the previous left operand, and written their coefficients.
            warp::sync(u32::MAX);
            left_side::<E>(p, s, own, coefficients, [begin, count], [tile, channel]);
            warp::sync(u32::MAX);
            if connected {
                let extents = [p.width, p.out_width];
                multiply::<E>(p, own, right, [channel, column], extents, sums);
            } else {
                let at = tile as u64 * p.item_strides[3] + right as u64 * p.row_strides[2];
                let lane = gpu::thread() % 32;
                let from = p.f().at(at + (column + lane % 8 * 4) as u64);
                outer::<E>(p, own, from, [tile, column], sums);
            }
            channel += 32;
        }
        segment += 1;
        warp::sync(u32::MAX);
    }
}

/// Computes the coefficients of pairs, one lane per item.
#[inline(always)]
fn pairs<E: Elem>(s: &TensorShared, y: Shared<E::Acc>, to: Shared<E::Acc>, first: u32, count: u32) {
    let lane = gpu::thread() % 32;
    let y = y.at(lane);
    let mut pair = 0;
    while pair < count {
        warp::nounroll();
        let [_, entries] = s.pairs::<[u32; 2]>().at(first + pair).ld();
        let sum = terms::<E, false>(s, [entries & 0xffff, entries >> 16], y);
        to.at(pair * 32 + lane).st(sum);
        pair += 1;
    }
}

/// Computes the left operand, the sums over pairs: items from `tile` on by 32 channels of A, one lane per channel.
#[inline(always)]
fn left_side<E: Elem>(
    p: &TensorProductParams,
    s: &TensorShared,
    to: Shared<E::Acc>,
    coefficients: Shared<E::Acc>,
    [first, count]: [u32; 2],
    [tile, channel]: [u32; 2],
) {
    let lane = gpu::thread() % 32;
    let inside = channel + lane < p.width;
    let stride = p.item_strides[0] * E::BYTES as u64;
    let from = p.a::<E>().row(tile, stride).at(channel + lane);
    let left = p.items - tile;
    let mut sums = [[E::ZERO; 8]; 4];
    let mut pair = 0;
    while pair < count {
        warp::nounroll();
        let a = s.pairs::<[u32; 2]>().at(first + pair).cast::<u32>().ld();
        let mut from = from.at(a as u64 * p.row_strides[0]);
        // All 32 loads are in flight at once: a warp has little other work while it waits.
        let mut raw = [[[0; 4]; 8]; 4];
        unroll!(i < 4, {
            unroll!(j < 8, {
                raw[i][j] = from.ld_raw::<1>(inside && ((i * 8 + j) as u32) < left);
                from = from.bytes(stride);
            });
        });
        let at = coefficients.at(pair * 32);
        unroll!(i < 4, {
            let c = load_eight::<E>(at.at(i as u32 * 8));
            unroll!(j < 8, { sums[i][j] = E::fma(c[j], E::get(&raw[i][j], 0), sums[i][j]) });
        });
        pair += 1;
    }
    unroll!(i < 4, {
        unroll!(j < 8, {
            to.at((i * 8 + j) as u32 * TENSOR_LEFT + lane).st(sums[i][j]);
        });
    });
}

/// Adds the left operand times 32 rows and columns of a matrix, from a corner on; `extents`: rows and columns of the
/// matrix.
#[inline(always)]
pub fn multiply<E: Elem>(
    p: &TensorProductParams,
    left: Shared<E::Acc>,
    matrix: u32,
    [channel, column]: [u32; 2],
    [rows, columns]: [u32; 2],
    sums: &mut Sums<E>,
) {
    let lane = gpu::thread() % 32;
    let left = left.at(lane / 8 * TENSOR_LEFT);
    let column = column + lane % 8 * 4;
    let from = p.d().at(matrix as u64 * p.item_strides[2]);
    let ends = [rows.min(channel + 32), columns];
    let mut next = corner_of::<E>(p, from, [channel, column], ends);
    let mut step = 0;
    while step < 32 && channel + step < rows {
        warp::nounroll();
        let right = next;
        // Prefetches the next rows during the multiplication.
        next = corner_of::<E>(p, from, [channel + step + 4, column], ends);
        unroll!(i < 8, {
            let x = load_four::<E>(left.at(i as u32 * 4 * TENSOR_LEFT + step));
            unroll!(k < 4, {
                unroll!(j < 4, {
                    sums[i][j] = E::fma(x[k], right[k][j], sums[i][j]);
                });
            });
        });
        step += 4;
    }
}

/// Loads four rows and columns of a matrix at `from`, zeros past the ends.
#[inline(always)]
fn corner_of<E: Elem>(
    p: &TensorProductParams,
    from: Global<E, ReadOnly>,
    [row, column]: [u32; 2],
    [rows, columns]: [u32; 2],
) -> [[E::Acc; 4]; 4] {
    // Transposed: rows in memory are columns of the product.
    let transposed = p.flags & FLAG_TRANSPOSED != 0;
    let (down, along, ends) =
        if transposed { (column, row, [columns, rows]) } else { (row, column, [rows, columns]) };
    let mut found = [[E::ZERO; 4]; 4];
    unroll!(i < 4, {
        let at = down + i as u32;
        let from = from.at(at as u64 * p.row_strides[1] + along as u64);
        let inside = if at < ends[0] { ends[1] - along.min(ends[1]) } else { 0 };
        found[i] = four::<E>(from, inside, p.flags & FLAG_WIDE != 0);
    });
    if transposed {
        let r = found;
        unroll!(i < 4, { found[i] = [r[0][i], r[1][i], r[2][i], r[3][i]] });
    }
    found
}

/// Loads four neighboring elements, zeros from `inside` on.
#[inline(always)]
pub fn four<E: Elem>(from: Global<E, impl Access>, inside: u32, wide: bool) -> [E::Acc; 4] {
    if wide && E::BYTES <= 4 {
        // Widths are multiples of four.
        let raw = from.ld_raw::<4>(inside > 0);
        let get = |i: usize| E::get(&raw, i);
        return [get(0), get(1), get(2), get(3)];
    }
    let mut out = [E::ZERO; 4];
    unroll!(i < 4, {
        out[i] = E::get(&from.at(i as u64).ld_raw::<1>((i as u32) < inside), 0);
    });
    out
}

/// Stores a row of the output for the items of the tile.
#[inline(always)]
fn store<E: Elem>(p: &TensorProductParams, row: u32, sums: &Sums<E>) {
    let lane = gpu::thread() % 32;
    let column = gpu::block_z() * 32 + lane % 8 * 4;
    let first = gpu::block_x() * TENSOR_ITEMS + lane / 8;
    let inside = p.out_width - column.min(p.out_width);
    unroll!(i < 8, {
        let item = first + i as u32 * 4;
        if item < p.items {
            let at =
                item as u64 * p.item_strides[4] + row as u64 * p.row_strides[3] + column as u64;
            let to = p.out::<E>().at(at);
            let mut values = sums[i];
            let wide = p.flags & FLAG_WIDE != 0;
            if p.flags & FLAG_ACCUMULATE != 0 {
                let old = four::<E>(to, inside, wide);
                unroll!(j < 4, { values[j] = E::add(values[j], old[j]) });
            }
            if E::BYTES <= 4 && wide {
                if inside > 0 {
                    to.st_rounded(&values);
                }
            } else {
                unroll!(j < 4, {
                    if (j as u32) < inside {
                        to.at(j as u64).st_rounded(&[values[j]]);
                    }
                });
            }
        }
    });
}

/// Adds the left operand's transpose times a row of F of each item.
#[inline(always)]
fn outer<E: Elem>(
    p: &TensorProductParams,
    left: Shared<E::Acc>,
    from: Global<E, ReadOnly>,
    [first, column]: [u32; 2],
    sums: &mut Sums<E>,
) {
    let lane = gpu::thread() % 32;
    let channel = column + lane % 8 * 4;
    let inside = p.out_width - channel.min(p.out_width);
    let stride = p.item_strides[3] * E::BYTES as u64;
    let left = left.at(lane / 8 * 8);
    let mut item = 0;
    while item < TENSOR_ITEMS && first + item < p.items {
        let mut right = [[E::ZERO; 4]; 4];
        unroll!(k < 4, {
            let at = item + k as u32;
            let valid = if first + at < p.items { inside } else { 0 };
            right[k] = four::<E>(from.row(at, stride), valid, p.flags & FLAG_WIDE != 0);
        });
        unroll!(k < 4, {
            let left = load_eight::<E>(left.at((item + k as u32) * TENSOR_LEFT));
            unroll!(i < 8, {
                unroll!(j < 4, { sums[i][j] = E::fma(left[i], right[k][j], sums[i][j]) });
            });
        });
        item += 4;
    }
}

/// Address of the sums of a thread block of the same part of the output.
#[inline(always)]
fn slot<E: Elem>(p: &TensorProductParams, block: u32) -> Global<E::Acc, Fresh> {
    let part = gpu::block_z() as u64 * p.rows[4] as u64 + gpu::block_y() as u64;
    let at = part * gpu::grid_x() as u64 + block as u64;
    p.sums::<E>().at(at * 1024)
}

/// Adds the sums of the warps in order into this thread block's slot.
#[inline(always)]
fn add_up<E: Elem, T: Tile>(p: &TensorProductParams, s: &TensorShared, own: Shared<E::Acc>) {
    let to = slot::<E>(p, gpu::block_x());
    let mut at = gpu::thread();
    while at < 1024 {
        let from = own.at(at / 32 * TENSOR_LEFT + at % 32);
        let sum = over_warps::<E>(from, s.own_bytes);
        to.at(at).st(sum);
        at += T::THREADS;
    }
}

/// The thread block that arrives last at the part's counter adds all slots in order and resets the counter to zero.
#[inline(always)]
fn finish<E: Elem, T: Tile>(p: &TensorProductParams, told: Shared<u32>) {
    let part = gpu::block_z() * p.rows[4] + gpu::block_y();
    if !block_arrives_last(p.counters().at(part), gpu::grid_x(), told) {
        return;
    }
    let [channel, column] = corner::<T>(p);
    let mut at = gpu::thread();
    while at < 1024 {
        let mut sum = E::ZERO;
        let mut block = 0;
        while block < gpu::grid_x() {
            let mut parts = [E::ZERO; 8];
            unroll!(i < 8, {
                let from = slot::<E>(p, block + i as u32).at(at);
                parts[i] = from.ld_if(block + (i as u32) < gpu::grid_x());
            });
            unroll!(i < 8, {
                sum = E::add(sum, parts[i]);
            });
            block += 8;
        }
        let (row, across) = (channel + at / 32, column + at % 32);
        if row < p.width && across < p.out_width {
            let place = gpu::block_y() as u64 * p.item_strides[4]
                + row as u64 * p.row_strides[3]
                + across as u64;
            put::<E>(p, p.out().at(place), sum, true);
        }
        at += T::THREADS;
    }
}
