//! Prunes a dense matrix to 2:4 by magnitude: the two largest of every four neighbors are kept, in column order. The
//! rule, NaN and ties included, is that of the host's `prune_to_nm`, bit for bit.

use crate::device::prelude::*;
use crate::families::convert::abi::*;

buffers! {
    // `prune` in `host/core/families/convert/prune.rs` allocates the words and the values of all rows.
    // `host/core/ops/prune.rs` takes rows, columns and leading dimension from the dense tensor.
    unsafe PruneParams {
        dense: u8, ReadOnly;
        values: [u32; 4], ReadWrite;
        meta: u32, ReadWrite;
    }
}

/// Magnitude of an element as an integer in the same order. NaN is above infinity and made quiet, as the conversion to
/// f64 does.
#[inline(always)]
fn magnitude<E: ElemInfo>(bits: u32) -> i32 {
    let (infinity, quiet) = match E::DTYPE {
        // The magnitude of -128 does not fit in i8.
        Dtype::Int8 => return i32::from(bits as u8 as i8).abs(),
        Dtype::F16 => (0x7c00, 0x0200),
        _ => (0x7f80, 0x0040),
    };
    let size = bits & 0x7fff;
    (if size > infinity { size | quiet } else { size }) as i32
}

/// Returns the two largest of four elements and their positions, 2 bits each; the first `inside` elements belong to the
/// matrix. Among equal elements the lower position wins; elements outside are below all others.
#[inline(always)]
fn largest<E: ElemInfo>(four: u64, inside: u32) -> (u32, u32) {
    let bits = E::DTYPE.bytes() as u32 * 8;
    let element = |i: u32| (four >> (bits * i)) as u32 & ((1 << bits) - 1);
    let key = |i: u32| {
        if i < inside { magnitude::<E>(element(i)) } else { -1 }
    };
    let above = |best: u32, i: u32| if key(i) > key(best) { i } else { best };
    let first = above(above(above(0, 1), 2), 3);
    let other = |best: u32, i: u32| if i == first { best } else { above(best, i) };
    let lowest = u32::from(first == 0);
    let second = other(other(other(lowest, 1), 2), 3);
    let (low, high) = (first.min(second), first.max(second));
    (element(low) | element(high) << bits, low | high << 2)
}

/// Loads 16 bytes of elements from column `column` of the row at `row`; zeros past the last column.
#[inline(always)]
fn chunk<E: ElemInfo>(p: &PruneParams, row: Global<E, ReadOnly>, column: u32) -> [u32; 4] {
    let bytes = E::DTYPE.bytes();
    let from = row.at(column);
    if p.vectors != 0 {
        return from.cast::<[u32; 4]>().ld_if(column < p.columns);
    }
    let mut words = [0; 4];
    unroll!(i < 4, {
        unroll!(j < 4, {
            if j * bytes < 4 {
                let element = (i * 4 / bytes + j) as u32;
                let (at, inside) = (from.at(element), column + element < p.columns);
                let loaded = if bytes == 1 {
                    at.cast::<u8>().ld_if(inside)
                } else {
                    at.cast::<u16>().ld_if(inside)
                };
                words[i] |= loaded << (8 * bytes * j);
            }
        });
    });
    words
}

/// Prunes 16 bytes of elements from `column` on: returns half as many bytes, and the positions, 4 bits a group.
#[inline(always)]
fn pruned<E: ElemInfo>(p: &PruneParams, row: Global<E, ReadOnly>, column: u32) -> ([u32; 2], u32) {
    let words = chunk::<E>(p, row, column);
    let (mut kept, mut meta) = ([0; 2], 0);
    if E::DTYPE.bytes() == 1 {
        unroll!(g < 4, {
            let inside = p.columns.saturating_sub(column + 4 * g as u32);
            let (pair, places) = largest::<E>(words[g] as u64, inside);
            kept[g / 2] |= pair << (16 * (g % 2));
            meta |= places << (4 * g);
        });
    } else {
        unroll!(g < 2, {
            let inside = p.columns.saturating_sub(column + 4 * g as u32);
            let four = (words[2 * g + 1] as u64) << 32 | words[2 * g] as u64;
            let (pair, places) = largest::<E>(four, inside);
            kept[g] = pair;
            meta |= places << (4 * g);
        });
    }
    (kept, meta)
}

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, PruneParams> for Word32 {
    #[inline(always)]
    unsafe fn run(p: &PruneParams, _: Maps) {
        let word = gpu::block_x() * Self::THREADS + gpu::thread();
        if word >= p.total {
            return;
        }
        let row = word.checked_div(p.words).unwrap_or(0);
        let first = (word - row * p.words) * 32;
        let from = p.dense().row(row, p.leading_bytes).cast::<E>();
        let bytes = E::DTYPE.bytes();
        let columns = 16 / bytes as u32;
        let mut meta = 0;
        // Each half of a round gives 8 of the 16 bytes of a store.
        unroll!(round < 2, {
            if round < bytes {
                let column = first + 2 * round as u32 * columns;
                let (low, places) = pruned::<E>(p, from, column);
                let (high, others) = pruned::<E>(p, from, column + columns);
                meta |= (places | others << columns) << (2 * round as u32 * columns);
                let to = p.values().at(word as u64 * bytes as u64).at(round as u64);
                to.st([low[0], low[1], high[0], high[1]]);
            }
        });
        p.meta().at(word).st(meta);
    }
}
