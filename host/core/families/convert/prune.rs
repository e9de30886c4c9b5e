//! Magnitude pruning of a dense matrix on a GPU.

use einsparse_kernels::families::PruneParams;
use einsparse_kernels::table::{Row, rows_of};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{small, within};
use crate::registry::Dtype;
use crate::tensor::DenseMatrix;

/// Columns of a word of positions, and the number of values that are kept of them.
const WORD: usize = 32;
const KEPT: usize = 16;

/// Returns the kernel for an element type.
pub(crate) fn pruner(dtype: Dtype) -> Option<&'static Row> {
    rows_of::<PruneParams>().find(|row| row.dtype == dtype)
}

/// Queues the pruning of `matrix` to 2:4. Returns the words of positions and the values, each followed by `room`
/// elements of zero padding. The elements of `matrix` must have the type of the row.
pub(crate) fn prune(
    device: &Device,
    row: &'static Row,
    matrix: DenseMatrix,
    room: usize,
    queue: Queue<'_>,
) -> Result<[DeviceMemory; 2]> {
    let element = row.dtype.bytes();
    let words = matrix.columns.div_ceil(WORD);
    let total = matrix.rows.saturating_mul(words);
    within("slots", total.saturating_mul(KEPT), u32::MAX as usize)?;
    let kernel = Kernel::load(device, row)?;
    let meta = device.zeros((total + room) * 4)?;
    let values = device.zeros((total * KEPT + room) * element)?;
    let bytes = matrix.leading.saturating_mul(element);
    let whole = [matrix.columns * element, bytes, (matrix.address % 16) as usize]
        .iter()
        .all(|x| x.is_multiple_of(16));
    let params = PruneParams {
        dense: matrix.address,
        values: values.address(),
        meta: meta.address(),
        total: small("words of positions", total)?,
        words: small("words of a row", words)?,
        columns: small("columns", matrix.columns)?,
        leading_bytes: small("bytes of a row", bytes)?,
        vectors: u32::from(whole),
        reserved: 0,
    };
    let grid = Grid::of([params.total.div_ceil(row.threads), 1, 1]);
    queue.launch(&kernel, grid, &params)?;
    Ok([meta, values])
}
