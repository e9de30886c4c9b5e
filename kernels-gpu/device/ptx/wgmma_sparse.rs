//! Sparse warpgroup matrix multiply (`wgmma.mma_async.sp`): A keeps two of four along k. PTX 8.2.
//! Metadata: `crate::frag::metadata`.

use super::wgmma::{Acc, tied};
use super::{instructions, ptx};

/// `D += A B` with operands of one type, per number of chunks; both from shared memory, B contiguous along n.
macro_rules! mma {
    ($(#[$doc:meta])* $name:ident, $n2:literal, $n3:literal, $n4:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name<const SELECTOR: i32>(&mut self, a: u64, b: u64, meta: u32) {
            const { assert!(C >= 2 && C <= 4, "128, 192 or 256 columns") };
            let d = &mut self.0;
            match C {
                2 => tied!(d [0 1] $n2 "}}, {a}, {b}, {meta}, {s}, 1, 1, 1, 0, 1;",
                    a = in(reg64) a, b = in(reg64) b, meta = in(reg32) meta, s = const SELECTOR),
                3 => tied!(d [0 1 2] $n3 "}}, {a}, {b}, {meta}, {s}, 1, 1, 1, 0, 1;",
                    a = in(reg64) a, b = in(reg64) b, meta = in(reg32) meta, s = const SELECTOR),
                _ => tied!(d [0 1 2 3] $n4 "}}, {a}, {b}, {meta}, {s}, 1, 1, 1, 0, 1;",
                    a = in(reg64) a, b = in(reg64) b, meta = in(reg32) meta, s = const SELECTOR),
            }
        }
    };
}

/// The same of 8-bit integers, which have neither factors nor orders: both operands lie along k.
macro_rules! mma_k_major {
    ($(#[$doc:meta])* $name:ident, $n2:literal, $n3:literal, $n4:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(&mut self, a: u64, b: u64, meta: u32) {
            const { assert!(C >= 2 && C <= 4, "128, 192 or 256 columns") };
            let d = &mut self.0;
            match C {
                2 => tied!(d [0 1] $n2 "}}, {a}, {b}, {meta}, 0, 1;",
                    a = in(reg64) a, b = in(reg64) b, meta = in(reg32) meta),
                3 => tied!(d [0 1 2] $n3 "}}, {a}, {b}, {meta}, 0, 1;",
                    a = in(reg64) a, b = in(reg64) b, meta = in(reg32) meta),
                _ => tied!(d [0 1 2 3] $n4 "}}, {a}, {b}, {meta}, 0, 1;",
                    a = in(reg64) a, b = in(reg64) b, meta = in(reg32) meta),
            }
        }
    };
}

impl<const C: usize> Acc<C> {
    mma_k_major! {
        /// 8-bit integers, 64 deep, of which A holds 32; the accumulators are i32 in these registers. Metadata:
        /// `crate::frag::metadata_narrow`.
        mma_sparse_s8,
        "wgmma.mma_async.sp.sync.aligned.m64n128k64.s32.s8.s8 {{",
        "wgmma.mma_async.sp.sync.aligned.m64n192k64.s32.s8.s8 {{",
        "wgmma.mma_async.sp.sync.aligned.m64n256k64.s32.s8.s8 {{"
    }
    mma! {
        /// f16, 32 deep, of which A holds 16. `SELECTOR`: which lanes' metadata counts.
        mma_sparse_f16,
        "wgmma.mma_async.sp.sync.aligned.m64n128k32.f32.f16.f16 {{",
        "wgmma.mma_async.sp.sync.aligned.m64n192k32.f32.f16.f16 {{",
        "wgmma.mma_async.sp.sync.aligned.m64n256k32.f32.f16.f16 {{"
    }
    mma! {
        /// bf16, 32 deep, of which A holds 16. `SELECTOR`: which lanes' metadata counts.
        mma_sparse_bf16,
        "wgmma.mma_async.sp.sync.aligned.m64n128k32.f32.bf16.bf16 {{",
        "wgmma.mma_async.sp.sync.aligned.m64n192k32.f32.bf16.bf16 {{",
        "wgmma.mma_async.sp.sync.aligned.m64n256k32.f32.bf16.bf16 {{"
    }
}

/// Puts `meta` into the register of `into` and no other: a copy, as LLVM would make one of a variable carried through a
/// loop, leaves [`keep`] with another register than `wgmma`. `zero` is zero, which the compiler does not know, or ptxas
/// would copy too.
#[inline(always)]
pub fn take(into: &mut u32, meta: u32, zero: u32) {
    ptx!(
        "or.b32 {into}, {meta}, {zero};",
        into = inout(reg32) *into, meta = in(reg32) meta, zero = in(reg32) zero, options(nostack)
    );
}

instructions! {
    /// Keeps the register that holds `meta` until here. `wgmma` reads metadata when it runs, but ptxas takes the
    /// register for free once the instruction is issued. So it is stored to shared `at` if `never` is not zero, which
    /// only the caller knows it is: no store to shared memory goes in front of a wait for `wgmma`.
    pub keep(meta: u32, at: u32, never: u32):
        "{{ .reg .pred p; setp.ne.u32 p, {never}, 0; @p st.shared.u32 [{at}], {meta}; }}", in(reg32 never at meta);
}
