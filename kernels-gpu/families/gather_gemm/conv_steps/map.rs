//! Kernel maps, with the same bits as the host's `kernel_map/build.rs`: the table is filled in any order, but look-ups
//! do not depend on that order.

use super::item;
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

/// Loads a voxel's four words.
#[inline(always)]
fn voxel(voxels: Global<u8, ReadOnly>, i: u32) -> [u32; 4] {
    voxels.cast::<[u32; 4]>().at(i).ld()
}

/// Returns the index of the voxel at a position according to the table, or [`CONV_ABSENT`].
#[inline(always)]
fn find(p: &ConvStepParams, wanted: [u32; 4]) -> u32 {
    // SAFETY: only `insert` writes the table, in an earlier launch.
    let table = unsafe { p.table().with::<ReadOnly>() };
    let mut slot = voxel_hash(wanted) & p.last;
    // The table has at least twice as many slots as voxels: an empty slot ends the search.
    let mut looks = 0;
    while looks <= p.last {
        let held = table.at(slot).ld();
        if held == CONV_ABSENT || voxel(p.source(), held) == wanted {
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
    let own = voxel(p.source(), i);
    if own[0] == CONV_NOWHERE {
        return;
    }
    let mut slot = voxel_hash(own) & p.last;
    let mut looks = 0;
    while looks <= p.last {
        let at = p.table().at(slot);
        let held = at.atom_cas(CONV_ABSENT, i);
        if held == CONV_ABSENT {
            return;
        }
        // The position of an occupied slot is final: only an earlier voxel of the same position replaces its entry.
        if voxel(p.source(), held) == own {
            at.red_min(i);
            return;
        }
        slot = (slot + 1) & p.last;
        looks += 1;
    }
}

/// Returns the address of the neighbour of row `o` at offset `t`.
#[inline(always)]
fn raw(p: &ConvStepParams, t: u32, o: u32) -> Global<u32, ReadWrite> {
    p.raw().at(t as u64 * p.rows as u64 + o as u64)
}

/// Stores the key of row `o`, computed from its neighbours at every offset.
#[inline(always)]
fn store_key(p: &ConvStepParams, o: u32, mut neighbour: impl FnMut(u32) -> u32) {
    let ranks = p.offsets().at(p.volume as u64 * 3);
    let mut key = 0;
    let mut t = 0;
    while t < p.volume {
        let found = neighbour(t);
        let rank = ranks.at(t).ld();
        if found != CONV_ABSENT && rank < 32 {
            key |= 1 << rank;
        }
        t += 1;
    }
    p.keys().at(o).st(gray_rank(key));
}

/// Finds the neighbours of an output voxel at every offset, and stores the key of its row.
#[inline(always)]
pub fn neighbours(p: &ConvStepParams) {
    let o = item();
    if o >= p.rows {
        return;
    }
    // SAFETY: the launch that wrote the voxels is complete, and this step only reads them.
    let [batch, x, y, z] = voxel(unsafe { p.out().with() }, o);
    let [sx, sy, sz] = p.strides;
    let corner = [x.wrapping_mul(sx), y.wrapping_mul(sy), z.wrapping_mul(sz)];
    store_key(p, o, |t| {
        let word = |i: u32| p.offsets().at(t * 3 + i).ld();
        let at = [0, 1, 2].map(|i| corner[i as usize].wrapping_add(word(i)));
        let found = match batch {
            CONV_NOWHERE => CONV_ABSENT,
            _ => find(p, [batch, at[0], at[1], at[2]]),
        };
        raw(p, t, o).st(found);
        found
    });
}

/// Stores the keys of rows whose neighbours are stored.
#[inline(always)]
pub fn keys(p: &ConvStepParams) {
    let o = item();
    if o < p.rows {
        // SAFETY: `transpose` wrote the neighbours in an earlier launch. This step reads them.
        store_key(p, o, |t| unsafe { raw(p, t, o).with::<ReadOnly>() }.ld());
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
    let at = p.order().at(position);
    let row = at.ld_if(valid);
    let mask = p.masks().at((position / CONV_HALF as u32) as u64 * p.words as u64);
    let mut bits = 0;
    let mut t = 0;
    while t < p.volume {
        // SAFETY: earlier launches wrote the neighbours, and this step only reads them.
        let found = unsafe { raw(p, t, row).with::<ReadOnly>() }.ld_if(valid);
        let found = if valid { found } else { CONV_ABSENT };
        p.neighbours().at(t as u64 * p.stride as u64 + position as u64).st(found);
        let any = warp::ballot(found != CONV_ABSENT);
        bits |= ((any != 0) as u32) << (t % 32);
        t += 1;
        if t % 32 == 0 || t == p.volume {
            if gpu::opaque_thread() % 32 == 0 {
                mask.at((t - 1) / 32).red_or(bits);
            }
            bits = 0;
        }
    }
    if !valid {
        at.st(CONV_ABSENT);
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
    // SAFETY: `arrange` wrote the masks in an earlier launch, and this step only reads them.
    let masks = unsafe { p.masks().with::<ReadOnly>() };
    let at = masks.at((tile / 2) as u64 * 4 * p.words as u64);
    let mut count = 0;
    let mut word = 0;
    while word < p.words {
        let half = |h: u32| at.at(h * p.words + word).ld_if(both);
        count += (half(0) | half(1) | half(2) | half(3)).count_ones();
        word += 1;
    }
    p.keys().at(tile).st(p.volume - count);
}

/// Stores the output voxel that contains each input voxel.
#[inline(always)]
pub fn stride(p: &ConvStepParams) {
    let i = item();
    if i >= p.rows {
        return;
    }
    let [batch, x, y, z] = voxel(p.source(), i);
    let down = |v: u32, s: u32| {
        let (v, s) = (v as i32, s as i32);
        let quotient = v.checked_div(s).unwrap_or(0);
        // Rounds toward minus infinity.
        (quotient - (quotient * s > v) as i32) as u32
    };
    let [sx, sy, sz] = p.strides;
    let out = [batch, down(x, sx), down(y, sy), down(z, sz)];
    p.out().cast::<[u32; 4]>().at(i).st(out);
}

/// Marks the first voxel of each position, and counts the positions.
#[inline(always)]
pub fn first(p: &ConvStepParams) {
    let i = item();
    let valid = i < p.rows;
    let mut is_first = false;
    if valid {
        is_first = find(p, voxel(p.source(), i)) == i;
        p.keys().at(i).st(!is_first as u32);
    }
    let all = warp::ballot(is_first);
    if gpu::opaque_thread() % 32 == 0 && all != 0 {
        p.count().atom_add(all.count_ones());
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
    // SAFETY: earlier launches wrote the number and the order, and this step only reads them.
    let (count, order) = unsafe { (p.count().with::<ReadOnly>(), p.order().with::<ReadOnly>()) };
    if i < count.ld() {
        own = voxel(p.source(), order.at(i).ld());
    }
    p.out().cast::<[u32; 4]>().at(i).st(own);
}

/// Stores the output row that each input row meets at each offset; `raw` holds [`CONV_ABSENT`] before.
#[inline(always)]
pub fn transpose(p: &ConvStepParams) {
    let position = item();
    if position >= p.stride {
        return;
    }
    // SAFETY: earlier launches wrote the map, and this step only reads it.
    let (order, neighbours) =
        unsafe { (p.order().with::<ReadOnly>(), p.neighbours().with::<ReadOnly>()) };
    let row = order.at(position).ld();
    let mut t = 0;
    while t < p.volume {
        let input = neighbours.at(t as u64 * p.stride as u64 + position as u64).ld();
        if input != CONV_ABSENT {
            raw(p, t, input).st(row);
        }
        t += 1;
    }
}
