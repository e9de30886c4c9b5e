//! Cost model of the general Einsum kernels. Each step of the iteration space reads every factor. Along a dense index,
//! lanes read vectors, otherwise sectors. The model includes the instructions for dynamic indices.

use einsparse_kernels::table::Row;

use crate::cost::{Cost, ISSUE_SHARE, LAUNCH_US};
use crate::cpu::{AIM, LEAST_CUT};
use crate::machine::Machine;

/// Properties of an indirect Einsum that determine its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Steps {
    /// Steps of the iteration space: slots of the sparse operand times the extents of all other loops.
    pub(crate) all: f64,
    /// Extent of the index that lanes iterate over.
    pub(crate) along: f64,
    /// Number of factors without this index.
    pub(crate) fixed: usize,
    /// Number of factors with this index, or outputs, that are not contiguous along it. If lanes iterate over terms:
    /// factors that are not contiguous along the terms.
    pub(crate) strided: usize,
    /// Elements of the output, and whether the output is also read.
    pub(crate) out: f64,
    pub(crate) accumulate: bool,
    /// Bytes of all operands.
    pub(crate) operands: f64,
}

/// Bytes that the load of one isolated element moves.
const SECTOR: f64 = 32.0;
/// Effective bytes of such a load, because adjacent lanes reuse the sector: of a factor that is constant over the
/// lanes, of one that is strided over the lanes, and of one that is not contiguous along the terms of the lanes.
const STILL: f64 = 7.9;
const STRIDED: f64 = 23.0;
const APART: f64 = 18.7;
/// Cost of a factor that is contiguous along the terms, divided by its bytes.
const ALONG: f64 = 1.33;
/// Instructions of a lane per factor of a term: index, table, address, load.
const FACTOR: f64 = 8.0;
/// Additional instructions per term.
const TERM: f64 = 6.0;
/// Share of the L2 rate that loads through index tables reach.
const GATHER_SHARE: f64 = 0.7;
/// Microseconds to read descriptions and store sums, and of the second kernel if sums were cut.
const ENDS_US: f64 = 3.5;
const CUT_US: f64 = 6.0;
/// Measured time divided by the time to move each byte once.
const HBM: f64 = 3.6;

/// Measured time divided by the time that bytes and instructions predict, microseconds to start and end a warp, and
/// microseconds of a step in the chain of a lane. The entries of [`WAITS`] are for lanes over terms, elements and
/// vectors. Fitted to the times of every row on an H200 (`bench --rows`, operations einsum, dense and block_spmm).
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

/// Predicts the cost of one variant.
pub(crate) fn predict(row: &Row, steps: &Steps, machine: &Machine) -> Cost {
    let element = row.dtype.bytes() as f64;
    let factors = f64::from(row.items);
    let (vector, along) = (f64::from(row.vector), steps.along.max(1.0));
    let waits = &WAITS[row.columns as usize];
    let moving = factors - steps.fixed as f64;
    let still = steps.fixed as f64 * STILL / along;
    let near = element.max(SECTOR / along);
    // Bytes per step, and the number of steps of the lanes.
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

/// Distribution of the steps over lanes.
struct Walk {
    /// Sequential steps of one lane.
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
