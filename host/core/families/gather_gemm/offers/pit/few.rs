//! Plans whose kernel itself finds the empty columns of a dynamic operand of few rows.

use std::fmt;
use std::sync::Arc;

use einsparse_kernels::table::Row;

use super::PitForm;
use super::bound::Bound;
use crate::device::Device;
use crate::error::Result;
use crate::families::gather_gemm::cost::pit::finds_columns;
use crate::families::gather_gemm::found::above;
use crate::families::gather_gemm::{PitFewLaunch, few_row};
use crate::machine::Machine;
use crate::offer::{AnyOut, Executable, Run, write_kernel};

/// Returns whether a row of the table is offered for these extents. Of this family, only the best row is offered, and a
/// requested one if it supports the extents.
pub(super) fn is_offered(
    row: &Row,
    extents: [usize; 3],
    wanted: Option<&str>,
    machine: &Machine,
) -> bool {
    if !finds_columns(row) {
        return true;
    }
    let best = few_row(row.dtype, extents, machine);
    let named = wanted == Some(row.name) && extents[0] <= row.block.0 as usize;
    named || best.is_some_and(|best| best.name == row.name)
}

/// Product with the selected kernel.
#[derive(Debug)]
pub(super) struct PitFewProduct {
    row: &'static Row,
    launch: PitFewLaunch,
    bound: Bound,
}

impl PitFewProduct {
    pub(super) fn new(device: &Arc<Device>, row: &'static Row, pit: &PitForm) -> Result<Self> {
        let above = above(row.dtype, pit.dynamic.threshold);
        Ok(PitFewProduct {
            row,
            launch: PitFewLaunch::new(device, row, pit.extents, above)?,
            bound: Bound::new(pit),
        })
    }
}

impl Executable for PitFewProduct {
    fn variant(&self) -> &'static str {
        self.row.name
    }

    fn bytes(&self) -> usize {
        self.launch.bytes()
    }

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.dense(out)?;
        let queue = run.queue(out)?;
        let all = self.bound.matrices(run, out)?;
        self.launch.run(all, queue)
    }
}

impl fmt::Display for PitFewProduct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_kernel(
            f,
            self.row,
            format_args!("columns found by itself, {} parts along k", self.launch.parts()),
        )
    }
}
