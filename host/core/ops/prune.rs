//! Magnitude pruning to 2:4.

use std::sync::Arc;

use einsparse_formats::{NmPattern, convert};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::families::convert::{prune, pruner};
use crate::kernel::Queue;
use crate::operator::run_alone;
use crate::registry::Scalar;
use crate::tensor::{DenseMatrix, DeviceArrays, SparseTensor, Tensor, VECTOR_ENTRIES};

/// Converts a dense matrix `[m,k]` to `nm:2:4` in its context. Of every 4 adjacent elements of a row, the 2 of largest
/// magnitude are kept (Mishra et al., arXiv 2104.08378, section 4). Of equal magnitudes, the lower column is kept; NaN
/// counts as the largest. The result is bitwise equal to that of [`convert::prune_to_nm`]. On a GPU, a kernel prunes
/// f16, bf16 and `i8`; other element types are pruned on the host. The kernel path copies only the positions to the
/// host, for plans. The call waits for all work on the GPU.
///
/// ```
/// use einsparse::{Context, ops};
/// use einsparse::formats::Dense;
/// let ctx = Context::new();
/// let dense = ctx.upload_dense(&Dense::new([1, 4], vec![1.0f32, -3.0, 2.0, 2.0])?)?;
/// let pruned = ops::prune_to_nm(&ctx, &dense)?;
/// assert_eq!(pruned.to_host()?.to_dense()?.values(), [0.0, -3.0, 2.0, 0.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
///
/// # Errors
/// [`Error::Format`] if the tensor is not a matrix or its slots do not fit u32; [`Error::OtherContext`] if it belongs
/// to another context.
pub fn prune_to_nm<T: Scalar>(context: &Context, dense: &Tensor<T>) -> Result<SparseTensor<T>> {
    if !context.holds(dense.device()) {
        return Err(Error::elsewhere("dense"));
    }
    let on_host = || context.upload(convert::prune_to_nm(&dense.to_dense()?)?);
    let (Some(row), &[rows, columns]) = (pruner(T::DTYPE), dense.shape()) else {
        return on_host();
    };
    let device = context.planned_on()?;
    let matrix = DenseMatrix { address: dense.place(), rows, columns, leading: dense.leading() };
    let prune = |queue: Queue<'_>| prune(device, row, matrix, VECTOR_ENTRIES, queue);
    let [meta, values] = run_alone(device, prune)?;
    if device.is_absent() {
        return on_host();
    }
    let words = rows * columns.div_ceil(32);
    let mut positions = vec![0u32; words];
    device.read(&meta, &mut positions)?;
    let pattern = NmPattern::new(rows, columns, positions)?;
    let arrays = DeviceArrays { columns: meta.into(), values, device: Arc::clone(device) };
    SparseTensor::made(pattern, arrays)
}
