//! Cost model of tensor products with a small sparse tensor: bytes of the operands, and instructions per nonzero.

use crate::cost::{Cost, LAUNCH_US};
use crate::indirect::TensorProductKind;
use crate::machine::Machine;

/// Properties of a tensor product that determine its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Couplings {
    pub(crate) kind: TensorProductKind,
    /// Whether each item has its own matrices.
    pub(crate) own: bool,
    pub(crate) items: usize,
    /// Channels of A and of the output.
    pub(crate) widths: (usize, usize),
    /// Segments, pairs and nonzeros of the lists.
    pub(crate) counts: [u32; 3],
    /// Bytes of the operands and of the output.
    pub(crate) bytes: f64,
}

/// Microseconds of a thread block that loads its lists, then its operands, and then stores.
const BLOCK_US: f64 = 2.5;
/// Warp instructions per nonzero, per pair and per segment.
const ENTRY: f64 = 5.0;
const PAIR: f64 = 5.0;
const SEGMENT: f64 = 24.0;
/// Share of the issue slots that these kernels reach.
const SHARE: f64 = 0.4;

/// Predicts the cost of one kernel.
pub(crate) fn predict_couplings(work: &Couplings, machine: &Machine) -> Cost {
    let [segments, pairs, entries] = work.counts.map(f64::from);
    let items = work.items as f64;
    let tiles = (items / 32.0).ceil();
    let chunks = |width: usize| (width as f64 / 32.0).ceil();
    let (inside, outside) = (chunks(work.widths.0), chunks(work.widths.1));
    let instructions = match work.kind {
        TensorProductKind::Items => tiles * (segments * SEGMENT + entries * ENTRY),
        // Coefficients are computed for 32 pairs at a time, one pair per lane.
        TensorProductKind::Channels => {
            items * inside * (segments * SEGMENT + pairs * PAIR + entries * ENTRY / 16.0)
        }
        // 32 channels for each of 32 pairs.
        TensorProductKind::Sums => items * (inside * pairs * 5.0 + entries * ENTRY / 16.0),
        // Each lane computes one column and multiplies 32 of its elements at once.
        _ if work.own => {
            items * outside * inside * (segments * 80.0 + pairs * PAIR * 2.0 + entries / 2.0)
        }
        TensorProductKind::Connected | TensorProductKind::Traces | TensorProductKind::Weights => {
            let product = 32.0 * 32.0 * 1.2;
            tiles * outside * inside * (segments * product + pairs * 32.0 * 2.5)
        }
    };
    let hbm_us = work.bytes / machine.hbm * 1e6;
    let compute_us = instructions / (machine.issue * SHARE) * 1e6;
    let cubes = [hbm_us, compute_us, BLOCK_US].map(|t| t.powi(3));
    Cost {
        us: LAUNCH_US + cubes.iter().sum::<f64>().cbrt(),
        hbm_us,
        gather_us: 0.0,
        compute_us,
        latency_us: BLOCK_US,
    }
}
