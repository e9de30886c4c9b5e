//! Sliced ELLPACK out of CSR on a GPU: rows in order, chunks counted, slices filled. The host adds the counts up, because
//! it needs to know how much memory to ask for.

use einsparse_kernels::abi::{
    Operation, SLICE, SLICING_COUNT, SLICING_FILL, SLICING_ORDER, SlicingParams,
};
use einsparse_kernels::table::{Row, kernels};

use super::{MAX_GRID_X, config, within};
use crate::device::Device;
use crate::driver::RawStream;
use crate::error::{Error, Result};

/// The kernel of a step, for elements of this many bytes.
fn step(step: u32, bytes: usize) -> Result<&'static Row> {
    let fits = |row: &&Row| {
        let any = step != SLICING_FILL || row.dtype.bytes() == bytes;
        row.operation == Operation::Slicing && row.step == step && any
    };
    kernels().iter().find(fits).ok_or_else(|| Error::Operand {
        name: "sparse".into(),
        reason: format!("elements of {bytes} bytes are not sliced on a GPU"),
    })
}

/// Queues one step.
///
/// # Safety
/// The addresses that the step reads and writes hold what [`SlicingParams`] says until the work is done.
unsafe fn queue(
    device: &Device,
    row: &'static Row,
    params: &SlicingParams,
    stream: RawStream<'_>,
) -> Result<()> {
    let of_block = row.items as usize;
    let items = match row.step {
        SLICING_ORDER => params.slices as usize * SLICE,
        _ => params.slices as usize,
    };
    let blocks = within("thread blocks", items.div_ceil(of_block), MAX_GRID_X)?;
    if blocks == 0 {
        return Ok(());
    }
    let function = device
        .modules()
        .function(row.family, row.name, row.shared_bytes)?;
    function.context().set_current()?;
    // SAFETY: the params are those of the family; the caller's promise.
    unsafe { function.launch(&config(row, [blocks, 1, 1]), stream, params) }
}

/// Queues the order of the rows and the chunks of each slice.
///
/// # Safety
/// The CSR arrays are there until the work is done, `order` has a word for every lane and `counts` for every slice.
pub(crate) unsafe fn survey_slices(
    device: &Device,
    params: &SlicingParams,
    stream: RawStream<'_>,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        queue(device, step(SLICING_ORDER, 0)?, params, stream)?;
        queue(device, step(SLICING_COUNT, 0)?, params, stream)
    }
}

/// Queues windows, columns and values, of elements of `bytes` bytes.
///
/// # Safety
/// As [`survey_slices`], which ran with the same order; the outputs have room for the chunks that `starts` ends with.
pub(crate) unsafe fn fill_slices(
    device: &Device,
    params: &SlicingParams,
    bytes: usize,
    stream: RawStream<'_>,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { queue(device, step(SLICING_FILL, bytes)?, params, stream) }
}
