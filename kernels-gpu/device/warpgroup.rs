//! Warpgroups: element types that they multiply, and the roles that they take.

use super::elem::Elem;
use super::ptx::wgmma::Acc;
use crate::abi::{Bf16, F16};

/// An element type with a `wgmma` atom.
pub trait WgmmaElem: Elem<Acc = f32> {
    /// `D += A B`, 32 bytes deep.
    fn mma<const C: usize, const TA: i32, const TB: i32>(acc: &mut Acc<C>, a: u64, b: u64);
    /// The same with A in registers.
    fn mma_registers<const C: usize, const TB: i32>(acc: &mut Acc<C>, a: [u32; 4], b: u64);
}

macro_rules! wgmma_elem {
    ($elem:ident, $mma:ident, $registers:ident) => {
        impl WgmmaElem for $elem {
            #[inline(always)]
            fn mma<const C: usize, const TA: i32, const TB: i32>(acc: &mut Acc<C>, a: u64, b: u64) {
                acc.$mma::<TA, TB>(a, b)
            }
            #[inline(always)]
            fn mma_registers<const C: usize, const TB: i32>(acc: &mut Acc<C>, a: [u32; 4], b: u64) {
                acc.$registers::<TB>(a, b)
            }
        }
    };
}

wgmma_elem!(F16, mma_f16, mma_f16_registers);
wgmma_elem!(Bf16, mma_bf16, mma_bf16_registers);

/// Registers a thread of the copying warpgroup keeps, and one of the multiplying ones gets: 56 + 2 x 224 is three times
/// the 168 they start with.
pub const PRODUCER_REGISTERS: u32 = 56;
pub const CONSUMER_REGISTERS: u32 = 224;
/// Warps that multiply.
pub const CONSUMERS: u32 = 8;
/// Threads that copy.
pub const COPIERS: u32 = 128;
