//! Formats of single entries made where the context works: from a dense matrix, between CSR, COO, GroupCOO and ELL, and
//! transposed; patterns that the GPU made, checked there. What a conversion allocates and reads back is for the
//! plans, which keep the pattern on the host; [`Converter`](crate::Converter) does neither.

mod check;
mod tensors;

use crate::context::Context;
use crate::driver::RawStream;
use crate::error::Result;
use crate::families::convert::Steps;
use crate::kernel::Queue;

pub use crate::families::convert::Order;

/// Orders the rows of CSR matrices by length on a GPU: `order[i]` is the row that comes at place i.
#[derive(Debug)]
pub struct RowSorter {
    steps: Steps,
    sort: crate::families::convert::Sort,
    order: Order,
    k: usize,
}

impl RowSorter {
    /// For matrices of `m` x `k`.
    ///
    /// # Errors
    /// In a CPU context, and where a size does not fit.
    pub fn new(context: &Context, (m, k): (usize, usize), order: Order) -> Result<Self> {
        let device = context.expect_device()?;
        Ok(RowSorter {
            steps: Steps::new(device, crate::registry::Dtype::F32)?,
            sort: order.sort(device, m, k)?,
            order,
            k,
        })
    }

    /// Queues one sort of the rows that `offsets` are of into `out`, `u32[m]`.
    ///
    /// # Safety
    /// `offsets` holds m + 1 words that ascend and `out` has room for m until the work is done. Runs must not overlap.
    /// The stream belongs to the GPU's primary context.
    ///
    /// # Errors
    /// If the driver refuses a launch.
    pub unsafe fn run_raw(&self, offsets: u64, out: u64, stream: RawStream<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        let queue = unsafe { Queue::new(stream) };
        self.sort.rows(&self.steps, self.order, self.k, [offsets, out], queue)
    }
}
