//! Predictions for products of varlen rows, whose number is known on the device only (`dense_live`).

use einsparse_kernels::abi::WGMMA;
use einsparse_kernels::table::Row;

use crate::families::gemm::cost::dense::shared_clocks;

/// Clocks of a tile in addition to its stages, and of a cluster that reduces its parts.
const TILE_CLOCKS: usize = 2500;
const CLUSTER_CLOCKS: usize = 1000;
/// Bytes of sums per clock that a thread block sends to the others of its cluster.
const JOINED_BYTES: usize = 25;

/// Returns the clocks of a product of `expected` rows by this row of the table alone, in whole waves. Rates: Tensor
/// Cores at seven eighths of 2048 products per clock, half of that with `mma.sync`; L2 at 45 bytes per clock and
/// multiprocessor.
pub(crate) fn clocks(row: &Row, [expected, k, n]: [usize; 3], multiprocessors: usize) -> usize {
    let [high, wide] = [row.block.0 as usize, row.columns as usize];
    let (deep, parts) = (row.block.1 as usize, row.parts as usize);
    let blocks = expected.div_ceil(high) * n.div_ceil(wide) * parts;
    let rate = if row.needs & WGMMA == 0 { 1024 } else { 2048 };
    let products = high * wide * deep / rate;
    let bytes = ((high + wide) * deep * 2 / 45).max(shared_clocks(row) as usize);
    let stage = (products + products / 7).max(bytes);
    let joined = match parts {
        1 => 0,
        _ => CLUSTER_CLOCKS + high * wide * 4 / parts * (parts - 1) / JOINED_BYTES,
    };
    let tile = k.div_ceil(deep).div_ceil(parts) * stage + TILE_CLOCKS + joined;
    blocks.div_ceil(multiprocessors.max(1)) * tile
}
