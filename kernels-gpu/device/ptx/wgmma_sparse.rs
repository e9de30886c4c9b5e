//! Sparse warpgroup matrix multiply (`wgmma.mma_async.sp`): A stores two of four elements along k. PTX 8.2.
//! Metadata: `crate::frag::metadata`.

use super::wgmma::{Acc, tied};
use super::{instructions, ptx};

/// `D += A B` for one element type and each number of chunks. Both operands are in shared memory, B contiguous along n.
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

/// `D += A B` of 8-bit integers. Both operands are contiguous along k; the instruction has no factors and no
/// transposition.
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
        /// 8-bit integers, depth 64, of which A stores 32. Accumulators are i32, stored in the f32 registers. Metadata:
        /// `crate::frag::metadata_narrow`.
        mma_sparse_s8,
        "wgmma.mma_async.sp.sync.aligned.m64n128k64.s32.s8.s8 {{",
        "wgmma.mma_async.sp.sync.aligned.m64n192k64.s32.s8.s8 {{",
        "wgmma.mma_async.sp.sync.aligned.m64n256k64.s32.s8.s8 {{"
    }
    mma! {
        /// f16, depth 32, of which A stores 16. `SELECTOR`: the lanes whose metadata is used.
        mma_sparse_f16,
        "wgmma.mma_async.sp.sync.aligned.m64n128k32.f32.f16.f16 {{",
        "wgmma.mma_async.sp.sync.aligned.m64n192k32.f32.f16.f16 {{",
        "wgmma.mma_async.sp.sync.aligned.m64n256k32.f32.f16.f16 {{"
    }
    mma! {
        /// bf16, depth 32, of which A stores 16. `SELECTOR`: the lanes whose metadata is used.
        mma_sparse_bf16,
        "wgmma.mma_async.sp.sync.aligned.m64n128k32.f32.bf16.bf16 {{",
        "wgmma.mma_async.sp.sync.aligned.m64n192k32.f32.bf16.bf16 {{",
        "wgmma.mma_async.sp.sync.aligned.m64n256k32.f32.bf16.bf16 {{"
    }
}

/// Moves `meta` into exactly the register of `into`. LLVM copies variables that are carried through a loop; then
/// [`keep`] would name another register than `wgmma`. `zero` must be zero, and unknown to the compiler: otherwise ptxas
/// makes a copy as well.
#[inline(always)]
pub fn take(into: &mut u32, meta: u32, zero: u32) {
    ptx!(
        "or.b32 {into}, {meta}, {zero};",
        into = inout(reg32) *into, meta = in(reg32) meta, zero = in(reg32) zero, options(nostack)
    );
}

instructions! {
    /// Keeps the register of `meta` alive up to here. `wgmma` reads metadata when it runs, but ptxas reuses the
    /// register as soon as the instruction is issued. This stores it to shared address `at` if `never` is not zero.
    /// `never` is always zero, but only the caller knows that; and ptxas does not move a shared store before a wait for
    /// `wgmma`.
    pub keep(meta: u32, at: u32, never: u32):
        "{{ .reg .pred p; setp.ne.u32 p, {never}, 0; @p st.shared.u32 [{at}], {meta}; }}", in(reg32 never at meta);
}
