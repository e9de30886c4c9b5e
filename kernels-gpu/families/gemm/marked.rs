//! Product of dense matrices that marks the nonempty micro-tiles of its result (`wgmma::marked`).

use crate::device::prelude::*;
use crate::families::gemm::abi::*;

impl<W: WalkInfo, E: WgmmaElem, const CHUNKS: usize, A: Multiply, L: Loader>
    Kernel<W, E, MarkedParams> for MarkedPanel<CHUNKS, A, L>
{
    #[inline(always)]
    unsafe fn run(p: &MarkedParams, at: u64) {
        // The product's parameters come first, so its tensor maps are at the offsets that `Panel` reads.
        const { assert!(core::mem::offset_of!(MarkedParams, product) == 0) };
        Panel::<64, 64, CHUNKS, PLAIN, 2, A, L>::set_up(at);
        roles!(
            A:
            Panel::<64, 64, CHUNKS, PLAIN, 2, A, L>::produce(&p.product, at),
            Panel::<64, 64, CHUNKS, PLAIN, 2, A, L>::consume::<E, _>(p)
        );
    }
}
