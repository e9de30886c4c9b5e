//! Cost model of the spmm kernels.

mod bitmap;
pub(crate) mod gather;
mod sell;
pub(crate) mod staged;
pub(crate) mod transposed;
mod vectors;

use einsparse_kernels::abi::WalkKind;
use einsparse_kernels::families::SellParams;
use einsparse_kernels::table::Row;

use crate::cost::{Cost, Machine};
use crate::offer::Problem;

/// Predicts the cost of one kernel.
pub(crate) fn predict(row: &Row, problem: &Problem, machine: &Machine) -> Cost {
    let work = &problem.work;
    let mut cost = match row.walk {
        WalkKind::Bitmap => bitmap::predict(row, work, machine),
        WalkKind::Bytemap => bitmap::predict_bytes(row, work, machine),
        WalkKind::Vector => vectors::predict(row, work, machine),
        WalkKind::SlicedEll if row.takes::<SellParams>() => sell::predict(row, work, machine),
        WalkKind::SlicedEll => staged::predict(row, work, machine),
        _ => gather::predict_gather(row, work, machine),
    };
    // Constant values are put in order only once.
    let once = problem.kept && row.walk != WalkKind::Permuted;
    if problem.order.transposed && !once {
        cost.us += transposed::transposed_us(row, work, machine);
    }
    cost
}
