//! Unstructured formats created on the device of a context: from a dense matrix, between CSR, COO, GroupCOO and ELL,
//! and transposed. Patterns that the GPU creates are validated on the GPU. These conversions allocate and copy patterns
//! to the host, where plans read them; [`Converter`](crate::Converter) does neither.

mod check;
mod tensors;

use crate::context::Context;
use crate::driver::RawStream;
use crate::error::Result;
use crate::families::convert::Steps;
use crate::kernel::Queue;

pub use crate::families::convert::Order;

/// Orders the rows of CSR matrices by length on a GPU: `order[i]` is the row at position i.
#[derive(Debug)]
pub struct RowSorter {
    steps: Steps,
    sort: crate::families::convert::Sort,
    order: Order,
    k: usize,
}

impl RowSorter {
    /// Creates a sorter for matrices of `m` x `k`.
    ///
    /// # Errors
    /// In a CPU context, or if a size is too large.
    pub fn new(context: &Context, [m, k]: [usize; 2], order: Order) -> Result<Self> {
        let device = context.expect_device()?;
        Ok(RowSorter {
            steps: Steps::new(device, crate::registry::Dtype::F32)?,
            sort: order.sort(device, m, k)?,
            order,
            k,
        })
    }

    /// Queues one sort of the rows with offsets `offsets` into `out`, `u32[m]`.
    ///
    /// # Safety
    /// Until the work is done, `offsets` holds m + 1 ascending words and `out` has space for m words. Runs must not
    /// overlap. The stream belongs to the GPU's primary context.
    ///
    /// # Errors
    /// If the driver refuses a launch.
    pub unsafe fn run_raw(&self, offsets: u64, out: u64, stream: RawStream<'_>) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        let queue = unsafe { Queue::new(stream) };
        self.sort.rows(&self.steps, self.order, self.k, [offsets, out], queue)
    }
}
