//! Kernels of the steps of a conversion to blocks.

use einsparse_formats::convert::BlockChoice;
use einsparse_kernels::families::{
    ConvertParams, STEP_FILL_CSR, STEP_FILL_DENSE, STEP_MARK, STEP_SCORE, STEP_SELECT, STEP_TALLY,
};
use einsparse_kernels::table::{Row, rows_of};

use super::Request;
use crate::device::Device;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::registry::Dtype;

/// Returns the type of the scores of blocks. Those of integers are f32.
fn score(dtype: Dtype) -> Dtype {
    match dtype.accumulator() {
        Dtype::Int32 => Dtype::F32,
        own => own,
    }
}

/// Loads the kernels that a conversion requires.
pub(crate) fn steps(device: &Device, request: &Request) -> Result<Vec<Kernel<ConvertParams>>> {
    let needed = rows_of::<ConvertParams>().filter(|row| needs(row, request));
    needed.map(|row| Kernel::load(device, row)).collect()
}

/// Whether a row of the table is a step of this conversion. Copies depend only on the element size, and sums on the
/// accumulator type.
fn needs(row: &Row, request: &Request) -> bool {
    let (dtype, dense) = (request.dtype, request.choice.is_some());
    let top = matches!(request.choice, Some(BlockChoice::Top(_) | BlockChoice::TopPerRow(_)));
    match row.step {
        STEP_SCORE => dense && row.dtype == dtype,
        STEP_SELECT => top && row.dtype == score(dtype),
        STEP_TALLY => row.dtype == score(dtype),
        STEP_FILL_DENSE => dense && row.dtype.bytes() == dtype.bytes(),
        STEP_FILL_CSR => !dense && row.dtype.bytes() == dtype.bytes(),
        STEP_MARK => !dense,
        _ => true,
    }
}
