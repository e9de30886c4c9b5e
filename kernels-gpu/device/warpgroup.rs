//! Warpgroups: their element types, and the roles of producer and consumer.

use super::elem::Elem;
use super::multiply::StepElem;
use super::ptx::wgmma::Acc;
use crate::abi::{Bf16, F16};

/// Element type with a `wgmma` atom.
pub trait WgmmaElem: Elem<Acc = f32> + StepElem {
    /// `D += A B`, 32 bytes deep. `TA`, `TB` 1: the operand is contiguous along m, n instead of k.
    fn mma<const C: usize, const TA: i32, const TB: i32>(acc: &mut Acc<C>, a: u64, b: u64);
    /// [`Self::mma`] with A in registers.
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

/// Registers per thread of the producer warpgroup and of the two consumer warpgroups after `setmaxnreg`: 56 + 2 x 224
/// is three times the 168 with which they start.
pub const REGISTERS: [u32; 2] = [56, 224];
/// Number of consumer warps.
pub const CONSUMER_WARPS: u32 = 8;
/// Number of producer threads.
pub const PRODUCER_THREADS: u32 = 128;

/// Splits a thread block by role: the last warpgroup releases registers and runs the producer, the others run the
/// consumer. The first arguments are the atom, and registers other than [`REGISTERS`]. It is a macro, because
/// accumulators captured by closures may be stored in local memory.
macro_rules! roles {
    ($($atom:ident)::+: $copy:expr, $multiply:expr $(,)?) => {
        $crate::device::warpgroup::roles!(
            $($atom)::+: $crate::device::warpgroup::REGISTERS,
            $copy,
            $multiply
        )
    };
    ($($atom:ident)::+: $registers:expr, $copy:expr, $multiply:expr $(,)?) => {
        if $crate::device::gpu::thread() >= $crate::device::warpgroup::CONSUMER_WARPS * 32 {
            $($atom)::+::setmaxnreg_dec::<{ $registers[0] }>();
            $copy
        } else {
            $($atom)::+::setmaxnreg_inc::<{ $registers[1] }>();
            $multiply
        }
    };
    ($copy:expr, $multiply:expr $(,)?) => {
        $crate::device::warpgroup::roles!(Wgmma: $copy, $multiply)
    };
    ($registers:expr, $copy:expr, $multiply:expr $(,)?) => {
        $crate::device::warpgroup::roles!(Wgmma: $registers, $copy, $multiply)
    };
}

pub(crate) use roles;
