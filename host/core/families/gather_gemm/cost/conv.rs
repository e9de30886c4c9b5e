//! Predictions for convolutions with a kernel map: rows multiplied for the pairs, rows and matrices read through L2.

use einsparse_kernels::abi::Dtype;
use einsparse_kernels::families::CONV_ROWS;
use einsparse_kernels::table::Row;

use crate::cost::{Cost, LAUNCH_US};
use crate::machine::Machine;

/// Factor of kernels that load single elements instead of vectors, if both multiply as much. It breaks ties; not
/// measured.
const SINGLE: f64 = 1.05;

/// Quantities that determine the cost of a convolution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gathers {
    /// Gathered input rows, multiplied output rows, and pairs of a tile of 128 rows and an offset.
    pub(crate) pairs: usize,
    pub(crate) multiplied: usize,
    pub(crate) stages: usize,
    /// Channels of the input and of the output.
    pub(crate) channels: [usize; 2],
    /// Bytes of the operands, the output and the map.
    pub(crate) bytes: f64,
    /// Whether the matrices are transposed first.
    pub(crate) turns: bool,
}

/// Fractions of peak that these kernels reach.
const TENSOR_SHARE: f64 = 0.5;
const CORE_SHARE: f64 = 0.6;
/// Latency of a tile before its first and after its last product.
const TILE_US: f64 = 4.0;

/// Predicts the cost of one kernel.
pub(crate) fn predict_convolution(row: &Row, work: &Gathers, machine: &Machine) -> Cost {
    let [c, n] = work.channels;
    let columns = n.next_multiple_of(row.columns as usize) as f64;
    let depth = c.next_multiple_of(row.block.1 as usize) as f64;
    let flops = 2.0 * work.multiplied as f64 * depth * columns;
    let peak = match row.dtype {
        _ if row.module == "conv_simt" => machine.issue * 64.0 * CORE_SHARE,
        Dtype::Tf32 => machine.products(row) / 2.0 * TENSOR_SHARE,
        _ => machine.products(row) * TENSOR_SHARE,
    };
    let element = row.dtype.bytes() as f64;
    let across = columns / f64::from(row.columns);
    let tiles = work.stages as f64 * CONV_ROWS as f64 / f64::from(row.items * row.parts);
    let gathered = (work.pairs as f64 * across + tiles * columns) * depth * element;
    let hbm_us = work.bytes / machine.hbm * 1e6;
    let gather_us = gathered / (machine.l2 * 0.7) * 1e6;
    // A machine without the instruction has peak 0; the time of its products is then not predicted.
    let compute_us = if peak > 0.0 { flops / peak * 1e6 } else { 0.0 };
    let compute_us = compute_us * if row.vector == 1 { SINGLE } else { 1.0 };
    let cubes = [hbm_us, gather_us, compute_us].map(|t| t.powi(3));
    let turned = if work.turns { LAUNCH_US } else { 0.0 };
    Cost {
        us: LAUNCH_US + TILE_US + turned + cubes.iter().sum::<f64>().cbrt(),
        hbm_us,
        gather_us,
        compute_us,
        latency_us: TILE_US,
    }
}
