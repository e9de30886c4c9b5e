//! Kernel maps on the CPU. The kernels of device module `conv_steps` compute the same bits.

use einsparse_formats::allocate;
use rayon::prelude::*;

use super::geometry::LIMIT;
use super::{ABSENT, ConvGeometry, HALF, MapArrays, ROWS};
use crate::error::{Error, Result};

/// Open-addressing hash table of voxel indices.
struct Table<'v> {
    voxels: &'v [[i32; 4]],
    slots: Vec<u32>,
}

/// Returns the hash of a voxel, which is the start of its search.
fn hash(voxel: [i32; 4]) -> u32 {
    einsparse_kernels::families::voxel_hash(voxel.map(|x| x as u32))
}

impl<'v> Table<'v> {
    /// Creates the table, or returns the indices of two equal voxels.
    fn new(voxels: &'v [[i32; 4]]) -> std::result::Result<Self, [usize; 2]> {
        let mut table =
            Table { voxels, slots: vec![ABSENT; (2 * voxels.len()).next_power_of_two().max(2)] };
        for (i, &voxel) in voxels.iter().enumerate() {
            let slot = table.slot(voxel);
            if table.slots[slot] != ABSENT {
                return Err([table.slots[slot] as usize, i]);
            }
            table.slots[slot] = i as u32;
        }
        Ok(table)
    }

    /// Creates the table without validation. Batch `i32::MIN` marks padding. Of equal voxels, the first is stored.
    fn of_any(voxels: &'v [[i32; 4]]) -> Self {
        let mut table =
            Table { voxels, slots: vec![ABSENT; (2 * voxels.len()).next_power_of_two().max(2)] };
        for (i, &voxel) in voxels.iter().enumerate().filter(|(_, v)| v[0] != i32::MIN) {
            let slot = table.slot(voxel);
            if table.slots[slot] == ABSENT {
                table.slots[slot] = i as u32;
            }
        }
        table
    }

    /// Returns the slot of the voxel, or the empty slot where it would be inserted.
    fn slot(&self, voxel: [i32; 4]) -> usize {
        let last = self.slots.len() - 1;
        let mut slot = hash(voxel) as usize & last;
        while self.slots[slot] != ABSENT && self.voxels[self.slots[slot] as usize] != voxel {
            slot = (slot + 1) & last;
        }
        slot
    }
}

fn refused(reason: String) -> Error {
    Error::operand("voxels", reason)
}

/// Returns the output voxel of an input voxel.
fn strided(voxel: [i32; 4], geometry: &ConvGeometry) -> [i32; 4] {
    let [x, y, z] = geometry.stride();
    let down = |v: i32, s: usize| v.div_euclid(s as i32);
    [voxel[0], down(voxel[1], x), down(voxel[2], y), down(voxel[3], z)]
}

/// Validates the number of voxels and the range of their coordinates.
pub(super) fn check(voxels: &[[i32; 4]]) -> Result<()> {
    if voxels.len() >= LIMIT as usize {
        return Err(Error::Overflow {
            what: "voxels".into(),
            value: voxels.len() as u128,
            limit: LIMIT as u128 - 1,
        });
    }
    let beyond = |v: &[i32; 4]| v.iter().any(|&x| x.unsigned_abs() >= LIMIT as u32);
    if let Some(at) = voxels.par_iter().position_first(beyond) {
        let voxel = voxels[at];
        return Err(refused(format!("voxel {at} is {voxel:?}, beyond 2^30")));
    }
    Ok(())
}

/// Returns an error that names two equal voxels, if any are equal.
pub(super) fn distinct(voxels: &[[i32; 4]]) -> Result<()> {
    Table::new(voxels).map(drop).map_err(|at| twice(voxels, at))
}

fn twice(voxels: &[[i32; 4]], [a, b]: [usize; 2]) -> Error {
    let voxel = voxels[a];
    refused(format!("voxels {a} and {b} are both {voxel:?}"))
}

pub(super) fn outputs(voxels: &[[i32; 4]], geometry: &ConvGeometry) -> Vec<[i32; 4]> {
    if geometry.is_submanifold() {
        return voxels.to_vec();
    }
    let all: Vec<[i32; 4]> = voxels.par_iter().map(|&v| strided(v, geometry)).collect();
    let mut out = Vec::new();
    let mut table =
        Table { voxels: &all, slots: vec![ABSENT; (2 * all.len()).next_power_of_two().max(2)] };
    for (i, &voxel) in all.iter().enumerate() {
        let slot = table.slot(voxel);
        if table.slots[slot] == ABSENT {
            table.slots[slot] = i as u32;
            out.push(voxel);
        }
    }
    out
}

/// Returns the input voxel of each output voxel and offset, or [`ABSENT`].
pub(super) fn neighbours(
    voxels: &[[i32; 4]],
    out: &[[i32; 4]],
    geometry: &ConvGeometry,
) -> Result<Vec<u32>> {
    let table = Table::new(voxels).map_err(|at| twice(voxels, at))?;
    neighbours_in(&table, out, geometry)
}

/// Computes [`neighbours`] without validation of the voxels.
pub(super) fn neighbours_of_any(
    voxels: &[[i32; 4]],
    out: &[[i32; 4]],
    geometry: &ConvGeometry,
) -> Result<Vec<u32>> {
    neighbours_in(&Table::of_any(voxels), out, geometry)
}

/// Returns the output voxels without validation of the voxels: at most `count`, then padding.
pub(super) fn outputs_of_any(
    voxels: &[[i32; 4]],
    count: usize,
    geometry: &ConvGeometry,
) -> Vec<[i32; 4]> {
    let own = voxels.iter().copied().filter(|v| v[0] != i32::MIN);
    let mut out = outputs(&own.collect::<Vec<_>>(), geometry);
    out.resize(count, [i32::MIN, 0, 0, 0]);
    out
}

fn neighbours_in(table: &Table<'_>, out: &[[i32; 4]], geometry: &ConvGeometry) -> Result<Vec<u32>> {
    let offsets = geometry.offsets();
    let stride = geometry.stride().map(|s| s as i64);
    // Rows are padded to tiles, and a second array holds all of them in order.
    let count = out.len().next_multiple_of(ROWS) as u128 * offsets.len() as u128;
    allocate::terms("neighbours of voxels", count, 12, 16 * out.len() as u64)?;
    let len = out.len() * offsets.len();
    let mut raw = allocate::filled("neighbours of voxels", len, ABSENT)?;
    raw.par_chunks_mut(offsets.len()).zip(out).for_each(|(row, voxel)| {
        for (to, offset) in row.iter_mut().zip(&offsets) {
            let mut at = *voxel;
            for axis in 0..3 {
                let x = i64::from(voxel[axis + 1]) * stride[axis] + i64::from(offset[axis]);
                // No voxel has a coordinate beyond the limit.
                at[axis + 1] = i32::try_from(x).unwrap_or(i32::MAX);
            }
            *to = table.slots[table.slot(at)];
        }
    });
    Ok(raw)
}

/// Returns the sort key of a row: the rank in a Gray code of its set of offsets.
fn key(row: &[u32], ranks: &[u32]) -> u32 {
    let mut key = 0u32;
    for (&neighbour, &rank) in row.iter().zip(ranks) {
        if neighbour != ABSENT && rank < 32 {
            key |= 1 << rank;
        }
    }
    einsparse_kernels::families::gray_rank(key)
}

/// Sorts the rows, and computes the masks and the schedule of their tiles.
pub(super) fn arrange(raw: &[u32], outputs: usize, ranks: &[u32]) -> MapArrays<Vec<u32>> {
    let volume = ranks.len();
    let row = |o: u32| &raw[o as usize * volume..][..volume];
    let mut keys: Vec<(u32, u32)> =
        (0..outputs as u32).into_par_iter().map(|o| (key(row(o), ranks), o)).collect();
    keys.par_sort_unstable();
    let stride = outputs.next_multiple_of(ROWS);
    let mut order = vec![ABSENT; stride];
    for (to, (_, o)) in order.iter_mut().zip(&keys) {
        *to = *o;
    }
    let mut neighbours = vec![ABSENT; stride * volume];
    if stride > 0 {
        let lines = neighbours.par_chunks_mut(stride).enumerate();
        lines.for_each(|(t, line)| {
            for (to, (_, o)) in line.iter_mut().zip(&keys) {
                *to = row(*o)[t];
            }
        });
    }
    let words = volume.div_ceil(32);
    let mut masks = vec![0u32; stride / HALF * words];
    for (position, (_, o)) in keys.iter().enumerate() {
        let mask = &mut masks[position / HALF * words..][..words];
        for (t, &neighbour) in row(*o).iter().enumerate() {
            mask[t / 32] |= u32::from(neighbour != ABSENT) << (t % 32);
        }
    }
    let schedule = schedule(&masks, words, stride / ROWS);
    MapArrays { neighbours, order, masks, schedule }
}

/// Returns the tiles, sorted by decreasing number of offsets. Two tiles of the same 256 positions have the same key. A
/// single last tile comes last.
fn schedule(masks: &[u32], words: usize, tiles: usize) -> Vec<u32> {
    let offsets = |tile: u32| -> u32 {
        let quarter = |q: usize| masks.get((tile as usize / 2 * 4 + q) * words..)?.get(..words);
        let [Some(a), Some(b), Some(c), Some(d)] = [0, 1, 2, 3].map(quarter) else {
            return 0;
        };
        let all = (0..words).map(|w| a[w] | b[w] | c[w] | d[w]);
        all.map(u32::count_ones).sum()
    };
    let mut all: Vec<u32> = (0..tiles as u32).collect();
    all.sort_by_key(|&tile| (std::cmp::Reverse(offsets(tile)), tile));
    all
}

/// Returns neighbours by input row and offset: the output row of the pair.
pub(super) fn transpose(map: &MapArrays<Vec<u32>>, inputs: usize, volume: usize) -> Vec<u32> {
    let mut raw = vec![ABSENT; inputs * volume];
    let stride = map.order.len();
    for t in 0..volume {
        for (&neighbour, &o) in map.neighbours[t * stride..].iter().zip(&map.order) {
            if neighbour != ABSENT {
                raw[neighbour as usize * volume + t] = o;
            }
        }
    }
    raw
}
