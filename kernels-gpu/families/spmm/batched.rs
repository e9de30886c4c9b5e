//! Products of the module `spmm` for a batch. blockIdx.z is the index in the batch; operands have constant strides.

use crate::device::prelude::*;
use crate::device::walk::Walk;
use crate::families::spmm::abi::*;

impl<W: Walk, E: Elem, T: Kernel<W, E, SpmmParams>> Kernel<W, E, BatchedParams> for T {
    #[inline(always)]
    unsafe fn run(p: &BatchedParams, at: Maps) {
        let product = p.item(gpu::block_z());
        // SAFETY: the caller's promise, for one of the batch.
        unsafe { <T as Kernel<W, E, SpmmParams>>::run(&product, at) }
    }
}
