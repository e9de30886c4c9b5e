//! What the general family costs: every step of the iteration space reads each factor, lanes along a dense index by vectors,
//! else by sectors, with the instructions that places as data take.

use einsparse_kernels::table::Row;

use super::{Cost, ISSUE_SHARE, LAUNCH_US, Machine};

/// An indirect Einsum by the numbers that decide its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Steps {
    /// Steps of the whole iteration space: slots of the sparse operand times the extents of all other loops.
    pub(crate) all: f64,
    /// Extent of the index that lanes run along.
    pub(crate) along: f64,
    /// Factors without it.
    pub(crate) fixed: usize,
    /// Factors with it, or the output, that are not contiguous along it.
    pub(crate) strided: usize,
    /// Elements of the output, and whether they are read too.
    pub(crate) out: f64,
    pub(crate) accumulate: bool,
    /// Bytes of all operands.
    pub(crate) operands: f64,
}

/// Bytes that a load of one element out of the way moves.
const SECTOR: f64 = 32.0;
/// Instructions of a lane for each factor of a term: place, table, address, load.
const FACTOR: f64 = 8.0;
/// And for each term.
const TERM: f64 = 6.0;
/// Share of L2's rate that loads behind tables reach.
const GATHER_SHARE: f64 = 0.7;
/// What is measured over what bytes and instructions tell, where lanes run along terms, elements and vectors: places are waited
/// for before what lies there (SpMM on R-MAT 17 and uniform graphs, N = 32 and 128).
const WAITS: [f64; 3] = [4.0, 2.1, 1.7];
/// Descriptions read, sums stored, and a second kernel where sums were cut.
const ENDS_US: f64 = 3.0;

/// Predicts one variant.
pub(crate) fn predict(row: &Row, steps: &Steps, machine: &Machine) -> Cost {
    let element = row.dtype.bytes() as f64;
    let factors = f64::from(row.items);
    let (vector, along) = (f64::from(row.vector), steps.along.max(1.0));
    // Bytes and instructions of a lane's step.
    let (bytes, lane_steps) = match row.columns {
        2 => {
            let moving = factors - steps.fixed as f64;
            let each = moving * element.max(SECTOR / along) + steps.fixed as f64 * SECTOR / along;
            (steps.all * each, steps.all / vector)
        }
        1 => {
            let moving = factors - steps.fixed as f64;
            let far = (steps.strided as f64).min(moving);
            let near = (moving - far) * element.max(SECTOR / along) + far * SECTOR;
            let each = near + steps.fixed as f64 * SECTOR / along;
            (steps.all * each, steps.all)
        }
        // The first factor lies as the terms do, the others anywhere.
        _ => {
            let each = element + (factors - 1.0) * SECTOR;
            (steps.all * each, steps.all)
        }
    };
    let instructions = lane_steps / 32.0 * (factors * FACTOR + TERM + factors * vector);
    let moved = steps.operands + steps.out * element * if steps.accumulate { 2.0 } else { 1.0 };
    let hbm_us = moved / machine.hbm * 1e6;
    let gather_us = bytes / (machine.l2 * GATHER_SHARE) * 1e6;
    let compute_us = instructions / (machine.issue * ISSUE_SHARE) * 1e6;
    let cubes = [hbm_us, gather_us, compute_us].map(|t| t.powi(3));
    Cost {
        us: LAUNCH_US + ENDS_US + WAITS[row.columns as usize] * cubes.iter().sum::<f64>().cbrt(),
        hbm_us,
        gather_us,
        compute_us,
        latency_us: ENDS_US,
    }
}
