//! Plans whose kernel itself finds the empty columns of a dynamic operand of few rows.

use std::fmt;
use std::sync::Arc;

use einsparse_kernels::table::Row;

use super::Asked;
use super::bound::Bound;
use crate::device::Device;
use crate::error::Result;
use crate::families::gather_gemm::cost::pit::finds_columns;
use crate::families::gather_gemm::found::above;
use crate::families::gather_gemm::{PitFewLaunch, few_row};
use crate::machine::Machine;
use crate::offer::{Compiled, Run, write_kernel};
use crate::tensor::AnyTensor;

/// Returns whether a row of the table is offered for these extents. Of this family, only the best row is offered, and a
/// requested one if it supports the extents.
pub(super) fn is_offered(
    row: &Row,
    extents: [usize; 3],
    asked: Option<&str>,
    machine: &Machine,
) -> bool {
    if !finds_columns(row) {
        return true;
    }
    let best = few_row(row.dtype, extents, machine);
    let named = asked == Some(row.name) && extents[0] <= row.block.0 as usize;
    named || best.is_some_and(|best| best.name == row.name)
}

/// Product with the selected kernel.
#[derive(Debug)]
pub(super) struct Made {
    row: &'static Row,
    launch: PitFewLaunch,
    bound: Bound,
}

impl Made {
    pub(super) fn new(device: &Arc<Device>, row: &'static Row, asked: &Asked) -> Result<Self> {
        let above = above(row.dtype, asked.dynamic.threshold);
        Ok(Made {
            row,
            launch: PitFewLaunch::new(device, row, asked.extents, above)?,
            bound: Bound::new(asked),
        })
    }
}

impl Compiled for Made {
    fn variant(&self) -> &'static str {
        self.row.name
    }

    fn bytes(&self) -> usize {
        self.launch.bytes()
    }

    fn run(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        let queue = run.queue(out)?;
        let all = self.bound.matrices(run, out)?;
        self.launch.run(all, queue)
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_kernel(
            f,
            self.row,
            format_args!("columns found by itself, {} parts along k", self.launch.parts()),
        )
    }
}
