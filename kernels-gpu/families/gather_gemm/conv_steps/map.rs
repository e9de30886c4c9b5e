//! Kernel maps, with the same bits as the host's `kernel_map/build.rs`: the table is filled in any order, but look-ups
//! do not depend on that order.

use super::item;
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

/// Loads a voxel's four words.
#[inline(always)]
fn voxel(at: u64, i: u32) -> [u32; 4] {
    global::ld_nc_v4(at + i as u64 * 16, true)
}

/// Returns the index of the voxel at a position according to the table, or [`CONV_ABSENT`].
#[inline(always)]
fn find(p: &ConvStepParams, wanted: [u32; 4]) -> u32 {
    let mut slot = voxel_hash(wanted) & p.last;
    // The table has at least twice as many slots as voxels: an empty slot ends the search.
    let mut looks = 0;
    while looks <= p.last {
        let held = global::ld_nc_b32(p.table + slot as u64 * 4, true);
        if held == CONV_ABSENT || voxel(p.source, held) == wanted {
            return held;
        }
        slot = (slot + 1) & p.last;
        looks += 1;
    }
    CONV_ABSENT
}

/// Inserts the voxels of `source` into the table; of voxels at one position the first is kept.
#[inline(always)]
pub fn insert(p: &ConvStepParams) {
    let i = item();
    if i >= p.rows {
        return;
    }
    let own = voxel(p.source, i);
    if own[0] == CONV_NOWHERE {
        return;
    }
    let mut slot = voxel_hash(own) & p.last;
    let mut looks = 0;
    while looks <= p.last {
        let at = p.table + slot as u64 * 4;
        let held = global::atom_cas(at, CONV_ABSENT, i);
        if held == CONV_ABSENT {
            return;
        }
        // The position of an occupied slot is final: only an earlier voxel of the same position replaces its entry.
        if voxel(p.source, held) == own {
            global::red_min(at, i);
            return;
        }
        slot = (slot + 1) & p.last;
        looks += 1;
    }
}

/// Returns the address of the neighbour of row `o` at offset `t`.
#[inline(always)]
fn raw(p: &ConvStepParams, t: u32, o: u32) -> u64 {
    p.raw + (t as u64 * p.rows as u64 + o as u64) * 4
}

/// Stores the key of row `o`, computed from its neighbours at every offset.
#[inline(always)]
fn store_key(p: &ConvStepParams, o: u32, mut neighbour: impl FnMut(u32) -> u32) {
    let ranks = p.offsets + p.volume as u64 * 12;
    let mut key = 0;
    let mut t = 0;
    while t < p.volume {
        let found = neighbour(t);
        let rank = global::ld_nc_b32(ranks + t as u64 * 4, true);
        if found != CONV_ABSENT && rank < 32 {
            key |= 1 << rank;
        }
        t += 1;
    }
    global::st_b32(p.keys + o as u64 * 4, gray_rank(key));
}

/// Finds the neighbours of an output voxel at every offset, and stores the key of its row.
#[inline(always)]
pub fn neighbours(p: &ConvStepParams) {
    let o = item();
    if o >= p.rows {
        return;
    }
    let [batch, x, y, z] = voxel(p.out, o);
    let [sx, sy, sz] = p.strides;
    let corner = [x.wrapping_mul(sx), y.wrapping_mul(sy), z.wrapping_mul(sz)];
    store_key(p, o, |t| {
        let word = |i: u32| global::ld_nc_b32(p.offsets + (t * 3 + i) as u64 * 4, true);
        let at = [0, 1, 2].map(|i| corner[i as usize].wrapping_add(word(i)));
        let found = match batch {
            CONV_NOWHERE => CONV_ABSENT,
            _ => find(p, [batch, at[0], at[1], at[2]]),
        };
        global::st_b32(raw(p, t, o), found);
        found
    });
}

/// Stores the keys of rows whose neighbours are stored.
#[inline(always)]
pub fn keys(p: &ConvStepParams) {
    let o = item();
    if o < p.rows {
        store_key(p, o, |t| global::ld_nc_b32(raw(p, t, o), true));
    }
}

/// Writes neighbours and masks in sorted order, a thread for each position. Masks are zero before. Positions past the
/// last row are padding.
#[inline(always)]
pub fn arrange(p: &ConvStepParams) {
    let position = item();
    // Whole warps continue: the number of positions is a multiple of 128.
    if position >= p.stride {
        return;
    }
    let valid = position < p.rows;
    let at = p.order + position as u64 * 4;
    let row = global::ld_global_b32(at, valid);
    let mask = p.masks + (position / CONV_HALF as u32) as u64 * p.words as u64 * 4;
    let mut bits = 0;
    let mut t = 0;
    while t < p.volume {
        let found = global::ld_nc_b32(raw(p, t, row), valid);
        let found = if valid { found } else { CONV_ABSENT };
        let to = p.neighbours + (t as u64 * p.stride as u64 + position as u64) * 4;
        global::st_b32(to, found);
        let any = warp::ballot(found != CONV_ABSENT);
        bits |= ((any != 0) as u32) << (t % 32);
        t += 1;
        if t % 32 == 0 || t == p.volume {
            if gpu::opaque_thread() % 32 == 0 {
                global::red_or(mask + ((t - 1) / 32) as u64 * 4, bits);
            }
            bits = 0;
        }
    }
    if !valid {
        global::st_b32(at, CONV_ABSENT);
    }
}

/// Stores the key of a tile: the number of offsets that neither it nor the other tile of its 256 positions has. A tile
/// without another one comes last.
#[inline(always)]
pub fn schedule(p: &ConvStepParams) {
    let tile = item();
    if tile >= p.rows {
        return;
    }
    let both = (tile ^ 1) < p.rows;
    let at = p.masks + (tile / 2) as u64 * 4 * p.words as u64 * 4;
    let mut count = 0;
    let mut word = 0;
    while word < p.words {
        let half = |h: u32| global::ld_nc_b32(at + (h * p.words + word) as u64 * 4, both);
        count += (half(0) | half(1) | half(2) | half(3)).count_ones();
        word += 1;
    }
    global::st_b32(p.keys + tile as u64 * 4, p.volume - count);
}

/// Stores the output voxel that contains each input voxel.
#[inline(always)]
pub fn stride(p: &ConvStepParams) {
    let i = item();
    if i >= p.rows {
        return;
    }
    let [batch, x, y, z] = voxel(p.source, i);
    let down = |v: u32, s: u32| {
        let (v, s) = (v as i32, s as i32);
        let quotient = v.checked_div(s).unwrap_or(0);
        // Rounds toward minus infinity.
        (quotient - (quotient * s > v) as i32) as u32
    };
    let [sx, sy, sz] = p.strides;
    let out = [batch, down(x, sx), down(y, sy), down(z, sz)];
    global::st_v4(p.out + i as u64 * 16, out);
}

/// Marks the first voxel of each position, and counts the positions.
#[inline(always)]
pub fn first(p: &ConvStepParams) {
    let i = item();
    let valid = i < p.rows;
    let mut is_first = false;
    if valid {
        is_first = find(p, voxel(p.source, i)) == i;
        global::st_b32(p.keys + i as u64 * 4, !is_first as u32);
    }
    let all = warp::ballot(is_first);
    if gpu::opaque_thread() % 32 == 0 && all != 0 {
        global::atom_add(p.count, all.count_ones());
    }
}

/// Permutes voxels by an order, and pads after the last one.
#[inline(always)]
pub fn take(p: &ConvStepParams) {
    let i = item();
    if i >= p.rows {
        return;
    }
    let mut own = [CONV_NOWHERE, 0, 0, 0];
    if i < global::ld_nc_b32(p.count, true) {
        own = voxel(p.source, global::ld_nc_b32(p.order + i as u64 * 4, true));
    }
    global::st_v4(p.out + i as u64 * 16, own);
}

/// Stores the output row that each input row meets at each offset; `raw` holds [`CONV_ABSENT`] before.
#[inline(always)]
pub fn transpose(p: &ConvStepParams) {
    let position = item();
    if position >= p.stride {
        return;
    }
    let row = global::ld_nc_b32(p.order + position as u64 * 4, true);
    let mut t = 0;
    while t < p.volume {
        let at = p.neighbours + (t as u64 * p.stride as u64 + position as u64) * 4;
        let input = global::ld_nc_b32(at, true);
        if input != CONV_ABSENT {
            global::st_b32(p.raw + (t as u64 * p.rows as u64 + input as u64) * 4, row);
        }
        t += 1;
    }
}
