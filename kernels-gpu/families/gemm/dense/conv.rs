//! Dense product for a convolution: module `dense_conv`. The copy engine finds the rows of A, which are image positions
//! shifted by a tap (`im2col`), so no im2col matrix is stored.

use super::{DenseElem, DenseTile, Spot};
use crate::device::prelude::*;
use crate::families::gemm::abi::*;

/// Tile of output positions and filters.
#[derive(Clone, Copy)]
struct Window<'p> {
    p: &'p DenseConvParams,
    down: u32,
    /// Input position of the first tap at the tile's first output position: x, y, image.
    first: [u32; 3],
}

impl<'p> Window<'p> {
    #[inline(always)]
    fn of(p: &'p DenseConvParams, down: u32, top: u32) -> Self {
        Window { p, down, first: Self::met(p, top) }
    }

    /// Input position of the first tap at an output position.
    #[inline(always)]
    fn met(p: &DenseConvParams, position: u32) -> [u32; 3] {
        let (image, place) = p.image.of(position);
        let (x, y) = p.row.of(place);
        let first = |axis: usize, at: u32| (at * p.stride[axis]).wrapping_sub(p.padding[axis]);
        [first(0, x), first(1, y), image]
    }

    /// Tap and first channel of the stage that begins at depth `k`.
    #[inline(always)]
    fn tap(self, k: u32) -> [u32; 2] {
        let deep = DenseTile::<1, DenseOf<1, 1>>::DEPTH as u32;
        let (tap, within) = self.p.tap.of(k / deep);
        [tap, within * deep]
    }
}

impl Spot for Window<'_> {
    #[inline(always)]
    fn down(self) -> u32 {
        self.down
    }
    /// The copy engine advances from the first position over rows and images, and zero-fills positions outside.
    #[inline(always)]
    fn bring_a<L: Loader>(
        self,
        team: Team,
        to: Shared<u8>,
        map: (TensorMap, &MapWords),
        [k, top]: [u32; 2],
        shape: Shape,
        full: Shared<Mbarrier>,
    ) {
        let p = self.p;
        let [tap, channel] = self.tap(k);
        let (i, j) = p.window.of(tap);
        let offset = [i * p.dilation[0], j * p.dilation[1]];
        let [x, y, image] = self.first;
        let place = [channel, y, x, image];
        L::pixels(team, to, map, (place, offset), shape, full, |row| {
            // `opaque` hides from ptxas that this value grows linearly over the rows. ptxas would move the high half of
            // a product out of the loop as if that were linear.
            let [x, y, image] = Self::met(p, warp::opaque(top + row));
            [y, x, image]
        });
    }
    #[inline(always)]
    fn bring_b<L: Loader>(
        self,
        team: Team,
        to: Shared<u8>,
        map: (TensorMap, &MapWords),
        [left, k]: [u32; 2],
        shape: Shape,
        full: Shared<Mbarrier>,
    ) {
        let [tap, channel] = self.tap(k);
        L::tile(team, to, map, [left, channel, tap], shape, full);
    }
}

impl<W: WalkInfo, E: DenseElem, const CHUNKS: usize, F: DenseForm<A: Multiply, L: Loader>>
    Kernel<W, E, DenseConvParams> for ConvTile<CHUNKS, F>
{
    #[inline(always)]
    unsafe fn run(p: &DenseConvParams, at: Maps) {
        grid::launch_dependents();
        DenseTile::<CHUNKS, F>::convolve::<E>(p, at);
    }
}

impl<const CHUNKS: usize, F: DenseForm<A: Multiply, L: Loader>> DenseTile<CHUNKS, F> {
    #[inline(always)]
    fn convolve<E: DenseElem>(p: &DenseConvParams, at: Maps) {
        let spot = |down| Window::of(p, down, down * Self::ROWS as u32);
        if F::CUT == 1 {
            let inside = |down: u32| down * (Self::ROWS as u32) < p.product.m;
            Self::tiles::<E, _>(&p.product, at, inside, spot);
        } else {
            Self::tile::<E>(&p.product, at, spot(gpu::block_y()));
        }
    }
}
