//! The same product for a convolution, module `dense_conv`: the copy engine finds the rows of A, which are positions of
//! an image moved by a tap (`im2col`), so that nothing is laid out beforehand.

use super::{DenseElem, DenseTile, Spot};
use crate::device::prelude::*;
use crate::families::gemm::abi::*;

/// A thread block for each tile of positions and filters.
#[derive(Clone, Copy)]
struct Window<'p>(&'p DenseConvParams);

impl Window<'_> {
    /// Tap and first channel of the stage that begins `k` deep.
    #[inline(always)]
    fn tap(self, k: u32) -> [u32; 2] {
        let deep = DenseTile::<1, 1, 1>::DEPTH as u32;
        let (tap, within) = self.0.tap.of(k / deep);
        [tap, within * deep]
    }
}

impl Spot for Window<'_> {
    const BIASES: Option<usize> = None;
    #[inline(always)]
    fn down(self) -> u32 {
        gpu::block_y()
    }
    #[inline(always)]
    fn begun(self) -> bool {
        false
    }
    /// The engine counts on from the first position, over rows and images, and fills in what lies outside.
    #[inline(always)]
    fn bring_a(self, to: u32, map: u64, [k, top]: [u32; 2], full: u32) {
        let p = self.0;
        let (image, place) = p.image.of(top);
        let (x, y) = p.row.of(place);
        let first = |axis: usize, at: u32| (at * p.stride[axis]).wrapping_sub(p.padding[axis]);
        let [tap, channel] = self.tap(k);
        let (i, j) = p.window.of(tap);
        let offset = [i * p.dilation[0], j * p.dilation[1]];
        let corner = [channel, first(1, y), first(0, x), image];
        bulk::tma_load_pixels(to, map, corner, offset, full);
    }
    #[inline(always)]
    fn bring_b(self, to: u32, map: u64, [left, k]: [u32; 2], full: u32) {
        let [tap, channel] = self.tap(k);
        bulk::tma_load_3d(to, map, [left, channel, tap], full);
    }
}

impl<W: WalkInfo, E: DenseElem, const GROUPS: usize, const CHUNKS: usize, const CUT: usize>
    Kernel<W, E, DenseConvParams> for ConvTile<GROUPS, CHUNKS, CUT>
{
    #[inline(always)]
    unsafe fn run(p: &DenseConvParams, at: u64) {
        grid::launch_dependents();
        DenseTile::<GROUPS, CHUNKS, CUT>::tile::<E>(&p.product, at, Window(p));
    }
}
