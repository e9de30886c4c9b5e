//! Kernel maps. The host's `kernel_map/build.rs` does the same, to the same bits: the table is filled in any order, but
//! what is found there does not depend on it.

use super::item;
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

/// A voxel's four words.
#[inline(always)]
fn voxel(at: u64, i: u32) -> [u32; 4] {
    global::ld_nc_v4(at + i as u64 * 16, true)
}

/// The position in the table of the voxel, or [`CONV_ABSENT`].
#[inline(always)]
fn find(p: &ConvStepParams, wanted: [u32; 4]) -> u32 {
    let mut slot = voxel_hash(wanted) & p.last;
    // The table has room for twice as many: an empty slot ends the way.
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

/// Voxels of `source` to the table: of those at one place the first stays.
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
        let held = gather::atom_cas(at, CONV_ABSENT, i);
        if held == CONV_ABSENT {
            return;
        }
        // Whoever holds the slot, it is a voxel of this place, or of another for good.
        if voxel(p.source, held) == own {
            global::red_min(at, i);
            return;
        }
        slot = (slot + 1) & p.last;
        looks += 1;
    }
}

/// Where the neighbour of row `o` at offset `t` stands.
#[inline(always)]
fn raw(p: &ConvStepParams, t: u32, o: u32) -> u64 {
    p.raw + (t as u64 * p.rows as u64 + o as u64) * 4
}

/// The key of row `o`, from its neighbours at every offset.
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

/// Neighbours of a voxel of the output at every offset, and the key of its row.
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

/// Keys of rows whose neighbours are known.
#[inline(always)]
pub fn keys(p: &ConvStepParams) {
    let o = item();
    if o < p.rows {
        store_key(p, o, |t| global::ld_nc_b32(raw(p, t, o), true));
    }
}

/// Neighbours in order, and masks, which are zero before. A thread for each position; those behind the last row pad.
#[inline(always)]
pub fn arrange(p: &ConvStepParams) {
    let position = item();
    // Whole warps: there are a multiple of 128 positions.
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

/// Keys of tiles: how many offsets the fullest could have beyond those of this one and the one that it shares 256
/// positions with; a single one comes last.
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

/// The voxel of the output that each of the input lies in.
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
        // Towards minus infinity.
        (quotient - (quotient * s > v) as i32) as u32
    };
    let [sx, sy, sz] = p.strides;
    let out = [batch, down(x, sx), down(y, sy), down(z, sz)];
    global::st_v4(p.out + i as u64 * 16, out);
}

/// Which voxels are the first of their place, and how many there are.
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

/// Voxels through an order; behind the last there is none.
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

/// For each offset and input row the output row that it meets; `raw` holds [`CONV_ABSENT`] before.
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
