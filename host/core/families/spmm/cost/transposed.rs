//! Cost of the transpose of an unstructured matrix in a product. Measured on one H200: benches/NOTES.md, "batched:
//! products with the transpose".

use einsparse_kernels::abi::WalkKind;
use einsparse_kernels::table::Row;

use crate::cost::permutation_tile;
use crate::cost::{LAUNCH_US, Machine, Work};

/// Bytes of L2, and of device memory, that a value read through a permutation costs in a product, per column tile.
const APART: [f64; 2] = [90.0, 130.0];
/// Share of this cost that is saved if rows that run together own adjacent values, and the density from which on all of
/// this share is saved.
const BESIDE: f64 = 0.65;
const BESIDE_DENSITY: f64 = 0.042;
/// Bytes that a value costs in a separate pass.
const AHEAD: [f64; 2] = [52.0, 45.0];
/// Two passes over tiles. `PASSES_US`: constant time in microseconds. 8 was measured; 4 gives better choices, because
/// predictions of products above 30 us are too high. `PLACES`: bytes of positions for a nonzero. `SHARE`: share of the
/// rate of L2 and of device memory.
const PASSES_US: f64 = 4.0;
const PLACES: f64 = 4.0;
const SHARE: [f64; 2] = [0.7, 0.68];

/// Extra time of the transpose, in microseconds: values are read through the permutation in every column tile, or once
/// before the product.
pub fn transposed_us(row: &Row, work: &Work, machine: &Machine) -> f64 {
    let (entries, element) = (work.entries as f64, row.dtype.bytes() as f64);
    let resident = entries * element < 0.5 * machine.l2_bytes as f64;
    let each = |[l2, hbm]: [f64; 2]| {
        if resident { l2 / machine.l2 } else { hbm / machine.hbm }
    };
    let count = work.entries as usize;
    let padded = work.index_slots > work.entries;
    let tiled = !padded && permutation_tile(count, row.dtype.bytes()).is_some();
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
