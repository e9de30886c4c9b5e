//! The products of family `spmm` for a batch: blockIdx.z says which, and its operands lie at equal distances.

use super::elem::Elem;
use super::walk::Walk;
use super::{gpu, spmm};
use crate::abi::*;

/// The body, generic over walk and element; the tile is the implementor.
pub trait Body: Tile {
    /// # Safety
    /// `p` describes live device memory and the launch has this tile's geometry.
    unsafe fn run<W: Walk, E: Elem>(p: &BatchedParams, _at: u64);
}

impl<T: spmm::Body> Body for T {
    #[inline(always)]
    unsafe fn run<W: Walk, E: Elem>(p: &BatchedParams, at: u64) {
        let product = p.item(gpu::block_z());
        // SAFETY: the caller's promise, for one of the batch.
        unsafe { <T as spmm::Body>::run::<W, E>(&product, at) }
    }
}
