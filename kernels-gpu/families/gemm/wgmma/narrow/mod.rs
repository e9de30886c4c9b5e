//! The module `narrow`: 8-bit operands, A in pieces and B as `[n, k]`, both contiguous along k, which is all that
//! `wgmma` takes of them. Copies, records and barriers are those of `wgmma`; the sums and the types of C differ.

mod consumer;
mod out;

use crate::device::prelude::*;
use crate::families::gemm::abi::*;

/// An element type of 8 bits with a `wgmma` atom.
pub trait NarrowElem: ElemInfo {
    /// The Tensor Core keeps fewer bits of a sum than f32 has: sums over a stage are added to f32 registers of their
    /// own.
    const PROMOTED: bool;
    /// Accumulators are i32, in f32 registers.
    const WHOLE: bool;
    /// `D = A B`, or `D += A B` where `onto`, 32 bytes deep.
    fn mma<const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool);
}

macro_rules! narrow {
    ($($name:ident: $mma:ident, promoted $promoted:literal, whole $whole:literal;)+) => {$(
        impl NarrowElem for $name {
            const PROMOTED: bool = $promoted;
            const WHOLE: bool = $whole;
            #[inline(always)]
            fn mma<const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool) {
                acc.$mma(a, b, onto)
            }
        }
    )+};
}

narrow! {
    E4m3: mma_e4m3, promoted true, whole false;
    E5m2: mma_e5m2, promoted true, whole false;
    Int8: mma_s8, promoted false, whole true;
}

impl<
    W: WalkInfo,
    E: NarrowElem,
    const PM: usize,
    const PK: usize,
    const CHUNKS: usize,
    const ORDER: u32,
> Kernel<W, E, WgmmaParams> for Panel<PM, PK, CHUNKS, ORDER, 1>
{
    #[inline(always)]
    unsafe fn run(p: &WgmmaParams, at: u64) {
        const { assert!(ORDER == B_COLUMNS, "8-bit operands lie along k") };
        Self::set_up(at);
        roles!(Self::produce(p, at), Self::consume_narrow::<E>(p));
    }
}
