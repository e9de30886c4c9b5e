//! The same product for a convolution, module `dense_conv`: the copy engine finds the rows of A, which are positions of
//! an image moved by a tap (`im2col`), so that nothing is laid out beforehand.

use super::{DenseElem, DenseTile, Spot};
use crate::device::prelude::*;
use crate::families::gemm::abi::*;

/// A tile of positions and filters.
#[derive(Clone, Copy)]
struct Window<'p> {
    p: &'p DenseConvParams,
    down: u32,
    /// What the first tap meets at the tile's first position: along x, along y, the image.
    first: [u32; 3],
}

impl<'p> Window<'p> {
    #[inline(always)]
    fn of(p: &'p DenseConvParams, down: u32, top: u32) -> Self {
        let (image, place) = p.image.of(top);
        let (x, y) = p.row.of(place);
        let first = |axis: usize, at: u32| (at * p.stride[axis]).wrapping_sub(p.padding[axis]);
        Window { p, down, first: [first(0, x), first(1, y), image] }
    }

    /// Tap and first channel of the stage that begins `k` deep.
    #[inline(always)]
    fn tap(self, k: u32) -> [u32; 2] {
        let deep = DenseTile::<1, 1, 1>::DEPTH as u32;
        let (tap, within) = self.p.tap.of(k / deep);
        [tap, within * deep]
    }
}

impl Spot for Window<'_> {
    #[inline(always)]
    fn down(self) -> u32 {
        self.down
    }
    /// The engine counts on from the first position, over rows and images, and fills in what lies outside.
    #[inline(always)]
    fn bring_a(self, to: u32, map: u64, [k, _]: [u32; 2], full: u32) {
        let p = self.p;
        let [tap, channel] = self.tap(k);
        let (i, j) = p.window.of(tap);
        let offset = [i * p.dilation[0], j * p.dilation[1]];
        let [x, y, image] = self.first;
        bulk::tma_load_pixels(to, map, [channel, y, x, image], offset, full);
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
        if CUT == 1 {
            Self::tiles::<E>(p, at);
        } else {
            let down = gpu::block_y();
            let top = down * DenseTile::<GROUPS, CHUNKS, CUT>::ROWS as u32;
            let spot = Window::of(p, down, top);
            DenseTile::<GROUPS, CHUNKS, CUT>::tile::<E>(&p.product, at, spot);
        }
    }
}

impl<const GROUPS: usize, const CHUNKS: usize, const CUT: usize> ConvTile<GROUPS, CHUNKS, CUT> {
    /// Tiles a grid apart, without a break: the stages of the next are on their way while this one is stored.
    #[inline(always)]
    fn tiles<E: DenseElem>(p: &DenseConvParams, at: u64) {
        let warp = warp::shuffle::<32>(gpu::thread() / 32, 0, u32::MAX);
        let copies = warp >= DenseTile::<GROUPS, CHUNKS, CUT>::WARPS as u32;
        if copies && warp::elected() {
            DenseTile::<GROUPS, CHUNKS, CUT>::set_up(at, 1);
        }
        warp::sync_lanes(u32::MAX);
        gpu::sync_threads();
        grid::wait_dependency();
        let high = DenseTile::<GROUPS, CHUNKS, CUT>::ROWS as u32;
        let inside = |down: u32| down * high < p.product.m;
        if !copies {
            // Nothing is copied by these, so where the first tap meets A does not matter.
            let spot = |down| Window { p, down, first: [0; 3] };
            DenseTile::<GROUPS, CHUNKS, CUT>::multiply_all::<E, _>(&p.product, inside, spot);
        } else if warp::elected() {
            let spot = |down| Window::of(p, down, down * high);
            DenseTile::<GROUPS, CHUNKS, CUT>::copy_all(&p.product, at, 0, inside, spot);
        }
    }
}
