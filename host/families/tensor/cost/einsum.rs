//! What the general family costs: every step of the iteration space reads each factor, lanes along a dense index by
//! vectors, else by sectors, with the instructions that places as data take.

use einsparse_kernels::table::Row;

use crate::cost::{Cost, ISSUE_SHARE, LAUNCH_US};
use crate::cpu::{AIM, LEAST_CUT};
use crate::machine::Machine;

/// An indirect Einsum by the numbers that decide its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Steps {
    /// Steps of the whole iteration space: slots of the sparse operand times the extents of all other loops.
    pub(crate) all: f64,
    /// Extent of the index that lanes run along.
    pub(crate) along: f64,
    /// Factors without it.
    pub(crate) fixed: usize,
    /// Factors with it, or the output, that are not contiguous along it; where lanes run along terms, factors that are
    /// not contiguous along those.
    pub(crate) strided: usize,
    /// Elements of the output, and whether they are read too.
    pub(crate) out: f64,
    pub(crate) accumulate: bool,
    /// Bytes of all operands.
    pub(crate) operands: f64,
}

/// Bytes that a load of one element out of the way moves.
const SECTOR: f64 = 32.0;
/// Of those, what counts: neighbours find the rest of a sector near. Of a factor that stands still while lanes run, of
/// one that strides under them, and of one that lies apart from the terms that lanes run along.
const STILL: f64 = 7.9;
const STRIDED: f64 = 23.0;
const APART: f64 = 18.7;
/// What a factor that lies along the terms costs over its bytes.
const ALONG: f64 = 1.33;
/// Instructions of a lane for each factor of a term: place, table, address, load.
const FACTOR: f64 = 8.0;
/// And for each term.
const TERM: f64 = 6.0;
/// Share of L2's rate that loads behind tables reach.
const GATHER_SHARE: f64 = 0.7;
/// Descriptions read and sums stored; a second kernel where sums were cut.
const ENDS_US: f64 = 3.5;
const CUT_US: f64 = 6.0;
/// What is measured over what bytes once tell.
const HBM: f64 = 3.6;

/// What is measured over what bytes and instructions tell, the microseconds of a warp's beginning and end, and of a
/// step in a lane's chain: where lanes run along terms, elements and vectors. Fitted to the times of every row on an
/// H200 (`bench --rows`, operations einsum, dense and block_spmm).
struct Waits {
    gather: f64,
    compute: f64,
    warp_us: f64,
    step_us: f64,
}

const WAITS: [Waits; 3] = [
    Waits { gather: 1.14, compute: 1.2, warp_us: 0.0008, step_us: 0.02 },
    Waits { gather: 1.07, compute: 1.4, warp_us: 0.0008, step_us: 0.164 },
    Waits { gather: 0.3, compute: 1.3, warp_us: 0.0003, step_us: 0.26 },
];

/// Predicts one variant.
pub(crate) fn predict(row: &Row, steps: &Steps, machine: &Machine) -> Cost {
    let element = row.dtype.bytes() as f64;
    let factors = f64::from(row.items);
    let (vector, along) = (f64::from(row.vector), steps.along.max(1.0));
    let waits = &WAITS[row.columns as usize];
    let moving = factors - steps.fixed as f64;
    let still = steps.fixed as f64 * STILL / along;
    let near = element.max(SECTOR / along);
    // Bytes and instructions of a lane's step.
    let (each, lane_steps) = match row.columns {
        2 => (moving * near + still, steps.all / vector),
        1 => {
            let far = (steps.strided as f64).min(moving);
            ((moving - far) * near + far * STRIDED + still, steps.all)
        }
        _ => {
            let far = steps.strided as f64;
            ((factors - far) * element * ALONG + far * APART, steps.all)
        }
    };
    let walk = Walk::new(row.columns, vector, steps);
    let instructions = lane_steps / 32.0 * (factors * FACTOR + TERM + factors * vector);
    let moved = steps.operands + steps.out * element * if steps.accumulate { 2.0 } else { 1.0 };
    let hbm_us = moved / machine.hbm * 1e6;
    let gather_us = steps.all * each / (machine.l2 * GATHER_SHARE) * 1e6;
    let compute_us = instructions / (machine.issue * ISSUE_SHARE) * 1e6;
    let latency_us = waits.step_us * walk.chain;
    let limits = [
        HBM * hbm_us,
        waits.gather * gather_us,
        waits.compute * compute_us + waits.warp_us * walk.warps,
        latency_us,
    ];
    let cubes = limits.map(|t| t.powi(3));
    let ends_us = ENDS_US + if walk.is_cut { CUT_US } else { 0.0 };
    Cost {
        us: LAUNCH_US + ends_us + cubes.iter().sum::<f64>().cbrt(),
        hbm_us,
        gather_us,
        compute_us,
        latency_us,
    }
}

/// How a listing shares the steps among lanes.
struct Walk {
    /// Steps that one lane takes one after the other.
    chain: f64,
    warps: f64,
    is_cut: bool,
}

impl Walk {
    fn new(columns: u32, vector: f64, steps: &Steps) -> Self {
        let terms = steps.all / steps.out.max(1.0);
        let over_terms = columns == 0;
        let run = match over_terms {
            true => terms / 2.0,
            false => steps.along.max(1.0) / if columns == 2 { vector } else { 1.0 },
        };
        let lanes = run.clamp(1.0, 32.0).log2().ceil().exp2();
        let wide = match over_terms {
            true => 1.0,
            false => steps.along.max(1.0).min(lanes * if columns == 2 { vector } else { 1.0 }),
        };
        let units = steps.out / wide;
        let piece = terms.min((LEAST_CUT as f64).max(units * terms / AIM as f64));
        let pieces = (terms / piece.max(1.0)).max(1.0);
        Walk {
            chain: if over_terms { piece / lanes } else { piece },
            warps: units * pieces * lanes / 32.0,
            is_cut: pieces > 1.0,
        }
    }
}
