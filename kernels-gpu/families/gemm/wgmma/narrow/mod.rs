//! The module `narrow`: 8-bit operands, A in pieces and B as `[n, k]`. Both are contiguous along k, the only order that
//! `wgmma` supports for them. Copies, records and barriers are those of `wgmma`; the sums and the types of C differ.

mod consumer;
mod out;

use crate::device::prelude::*;
use crate::families::gemm::abi::*;

impl<
    W: WalkInfo,
    E: BytesElem,
    const CHUNKS: usize,
    const PM: usize,
    const PK: usize,
    const ORDER: u32,
    A: Multiply,
    L: Loader,
> Kernel<W, E, WgmmaParams> for Panel<CHUNKS, PanelOf<PM, PK, ORDER, 1, A, L>>
{
    #[inline(always)]
    unsafe fn run(p: &WgmmaParams, at: Maps) {
        const { assert!(ORDER == B_COLUMNS, "8-bit operands lie along k") };
        Self::set_up(at);
        roles!(A: Self::produce(p, at), Self::consume_narrow::<E>(p));
    }
}
