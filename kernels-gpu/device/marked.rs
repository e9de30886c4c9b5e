//! A product of dense matrices that says which micro-tiles of its result are not empty (`wgmma::marked`).

use super::gpu;
use super::ptx::barrier;
use super::wgmma::{self, WgmmaElem};
use crate::abi::*;

/// The body, generic over the element; the tile is the implementor.
pub trait Body: Tile {
    /// # Safety
    /// `p` describes live device memory, lies at the generic address `at`, and the launch has this tile's geometry.
    unsafe fn run<W: WalkInfo, E: WgmmaElem>(p: &MarkedParams, at: u64);
}

impl<const CHUNKS: usize> Body for MarkedPanel<CHUNKS> {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: WgmmaElem>(p: &MarkedParams, at: u64) {
        // The product's parameters come first, so its tensor maps lie where that looks for them.
        const { assert!(core::mem::offset_of!(MarkedParams, product) == 0) };
        Panel::<64, 64, CHUNKS, PLAIN>::set_up(at);
        if gpu::thread() >= wgmma::CONSUMERS * 32 {
            barrier::registers_down::<{ wgmma::FEW }>();
            Panel::<64, 64, CHUNKS, PLAIN>::produce(&p.product, at);
        } else {
            barrier::registers_up::<{ wgmma::MANY }>();
            Panel::<64, 64, CHUNKS, PLAIN>::consume::<E, _>(p);
        }
    }
}
