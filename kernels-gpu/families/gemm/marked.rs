//! A product of dense matrices that says which micro-tiles of its result are not empty (`wgmma::marked`).

use crate::device::prelude::*;
use crate::families::gemm::abi::*;

impl<W: WalkInfo, E: WgmmaElem, const CHUNKS: usize> Kernel<W, E, MarkedParams>
    for MarkedPanel<CHUNKS>
{
    #[inline(always)]
    unsafe fn run(p: &MarkedParams, at: u64) {
        // The product's parameters come first, so its tensor maps lie where that looks for them.
        const { assert!(core::mem::offset_of!(MarkedParams, product) == 0) };
        Panel::<64, 64, CHUNKS, PLAIN>::set_up(at);
        roles!(
            Panel::<64, 64, CHUNKS, PLAIN>::produce(&p.product, at),
            Panel::<64, 64, CHUNKS, PLAIN>::consume::<E, _>(p)
        );
    }
}
