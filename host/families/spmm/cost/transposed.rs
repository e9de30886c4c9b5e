//! What the transpose of a matrix of entries costs a product. Measured on one H200, benches/NOTES.md,
//! "batched: products with the transpose".

use einsparse_kernels::abi::WalkKind;
use einsparse_kernels::table::Row;

use crate::cost::{LAUNCH_US, Machine, Work};

/// Bytes of L2, and of device memory, that one value read through a permutation costs inside a product, per column
/// tile.
const APART: [f64; 2] = [90.0, 130.0];
/// What rows that are computed together save of it, where neighbours among the values are theirs: from this density on
/// all of it.
const BESIDE: f64 = 0.65;
const BESIDE_DENSITY: f64 = 0.042;
/// The same in a pass of its own.
const AHEAD: [f64; 2] = [52.0, 45.0];
/// Two passes over tiles: what they take whatever they move, microseconds (8 are measured; with 4 the choice is better,
/// as products above 30 us are priced high, and what is beside them with them); bytes of places for an entry; what they
/// reach of the rate of L2 and of device memory.
const PASSES_US: f64 = 4.0;
const PLACES: f64 = 4.0;
const SHARE: [f64; 2] = [0.7, 0.68];

/// From so many values on two launches cost less than a sector for each value.
const LEAST: usize = 1 << 18;
/// Values of a tile, as a power of two, up to so many values: a tile of the source has a run for each of the target,
/// and runs should be lines. Tiles of 128 KB would leave a multiprocessor one thread block.
const TILES: [(u32, usize); 2] = [(13, 4 << 20), (14, 32 << 20)];
const TILES_OF_8_BYTES: [(u32, usize); 1] = [(13, 8 << 20)];

/// Values of a tile, as a power of two, for so many of so many bytes; `None` where they go one by one.
pub(crate) fn tile_of(count: usize, element: usize) -> Option<u32> {
    let tiles: &[_] = if element == 8 { &TILES_OF_8_BYTES } else { &TILES };
    let fits = tiles.iter().find(|(_, most)| count <= *most);
    fits.filter(|_| count >= LEAST).map(|&(log, _)| log)
}

/// What the transpose costs beside A as it is, microseconds: values read through the permutation, in every column tile
/// or once ahead of it.
pub fn transposed_us(row: &Row, work: &Work, machine: &Machine) -> f64 {
    let (entries, element) = (work.entries as f64, row.dtype.bytes() as f64);
    let resident = entries * element < 0.5 * machine.l2_bytes as f64;
    let each = |[l2, hbm]: [f64; 2]| {
        if resident { l2 / machine.l2 } else { hbm / machine.hbm }
    };
    let count = work.entries as usize;
    let padded = work.index_slots > work.entries;
    let tiled = !padded && tile_of(count, row.dtype.bytes()).is_some();
    let seconds = match row.walk {
        WalkKind::Permuted => {
            let tiles = work.n.div_ceil(row.columns as usize).max(1) * work.items;
            let density = entries / (work.m as f64 * work.k as f64).max(1.0);
            let beside = BESIDE * (density / BESIDE_DENSITY).min(1.0);
            entries * tiles as f64 * each(APART) * (1.0 - beside)
        }
        _ if tiled => {
            let bytes = 4.0 * element + PLACES;
            PASSES_US / 1e6 + entries * each(SHARE.map(|share| bytes / share))
        }
        _ => LAUNCH_US / 1e6 + entries * ((4.0 + 2.0 * element) / machine.hbm + each(AHEAD)),
    };
    seconds * 1e6
}
