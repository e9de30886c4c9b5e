//! Warpgroup matrix multiply (`wgmma`): a warpgroup has 64 x (64 `C`) accumulators; operands are in shared memory.
//! `wgmma` is asynchronous. Fence, mma and wait name every accumulator register, so that neither LLVM nor ptxas moves
//! an access across them. Descriptors: `crate::frag`.

use super::{instructions, ptx};

/// Accumulators of one lane: `C` chunks of 64 columns, 32 registers each. Layout: `crate::frag::accumulator` of the
/// warp's 16 rows, one atom after the other.
#[derive(Clone, Copy)]
pub struct Acc<const C: usize>(pub [[f32; 32]; C]);

/// One instruction with all registers of the chunks `$c` as in-out operands.
macro_rules! tied {
    ($d:ident [$($c:tt)+] $head:literal $tail:literal $(, $name:ident = $($rest:tt)*)?) => {
        ptx!(
            concat!($head, $(tied!(@ $c),)+ $tail),
            $(
                inout(reg32) $d[$c][0], inout(reg32) $d[$c][1], inout(reg32) $d[$c][2], inout(reg32) $d[$c][3],
                inout(reg32) $d[$c][4], inout(reg32) $d[$c][5], inout(reg32) $d[$c][6], inout(reg32) $d[$c][7],
                inout(reg32) $d[$c][8], inout(reg32) $d[$c][9], inout(reg32) $d[$c][10], inout(reg32) $d[$c][11],
                inout(reg32) $d[$c][12], inout(reg32) $d[$c][13], inout(reg32) $d[$c][14], inout(reg32) $d[$c][15],
                inout(reg32) $d[$c][16], inout(reg32) $d[$c][17], inout(reg32) $d[$c][18], inout(reg32) $d[$c][19],
                inout(reg32) $d[$c][20], inout(reg32) $d[$c][21], inout(reg32) $d[$c][22], inout(reg32) $d[$c][23],
                inout(reg32) $d[$c][24], inout(reg32) $d[$c][25], inout(reg32) $d[$c][26], inout(reg32) $d[$c][27],
                inout(reg32) $d[$c][28], inout(reg32) $d[$c][29], inout(reg32) $d[$c][30], inout(reg32) $d[$c][31],
            )+
            $($name = $($rest)*,)?
            options(nostack)
        )
    };
    (@ 0) => { tied!(@ text "") };
    (@ $c:tt) => { tied!(@ text ", ") };
    (@ text $comma:literal) => {
        concat!($comma, "{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, ",
            "{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}")
    };
}

pub(super) use tied;
/// No instruction; all registers of the chunks `$c` are its results.
macro_rules! uninit {
    ($d:ident $($c:tt)+) => {
        ptx!(
            concat!("//", $(tied!(@ $c)),+),
            $(
                out(reg32) $d[$c][0], out(reg32) $d[$c][1], out(reg32) $d[$c][2], out(reg32) $d[$c][3],
                out(reg32) $d[$c][4], out(reg32) $d[$c][5], out(reg32) $d[$c][6], out(reg32) $d[$c][7],
                out(reg32) $d[$c][8], out(reg32) $d[$c][9], out(reg32) $d[$c][10], out(reg32) $d[$c][11],
                out(reg32) $d[$c][12], out(reg32) $d[$c][13], out(reg32) $d[$c][14], out(reg32) $d[$c][15],
                out(reg32) $d[$c][16], out(reg32) $d[$c][17], out(reg32) $d[$c][18], out(reg32) $d[$c][19],
                out(reg32) $d[$c][20], out(reg32) $d[$c][21], out(reg32) $d[$c][22], out(reg32) $d[$c][23],
                out(reg32) $d[$c][24], out(reg32) $d[$c][25], out(reg32) $d[$c][26], out(reg32) $d[$c][27],
                out(reg32) $d[$c][28], out(reg32) $d[$c][29], out(reg32) $d[$c][30], out(reg32) $d[$c][31],
            )+
            options(pure, nomem, nostack)
        )
    };
}

/// `D += A B` for one element type and each number of chunks, with A in shared memory or in registers.
macro_rules! mma {
    ($(#[$doc:meta])* $name:ident, $registers:ident, $n1:literal, $n2:literal, $n3:literal, $n4:literal) => {
        /// `D += A B` with A in registers: fragments of `m16n8k16` of each warp's 16 rows.
        #[inline(always)]
        pub fn $registers<const TB: i32>(&mut self, a: [u32; 4], b: u64) {
            let d = &mut self.0;
            match C {
                1 => tied!(d [0] $n1 "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, 1, 1, 1, {tb};",
                    a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                    b = in(reg64) b, tb = const TB),
                2 => tied!(d [0 1] $n2 "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, 1, 1, 1, {tb};",
                    a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                    b = in(reg64) b, tb = const TB),
                3 => tied!(d [0 1 2] $n3 "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, 1, 1, 1, {tb};",
                    a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                    b = in(reg64) b, tb = const TB),
                _ => tied!(d [0 1 2 3] $n4 "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, 1, 1, 1, {tb};",
                    a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                    b = in(reg64) b, tb = const TB),
            }
        }

        $(#[$doc])*
        #[inline(always)]
        pub fn $name<const TA: i32, const TB: i32>(&mut self, a: u64, b: u64) {
            let d = &mut self.0;
            match C {
                1 => tied!(d [0] $n1 "}}, {a}, {b}, 1, 1, 1, {ta}, {tb};",
                    a = in(reg64) a, b = in(reg64) b, ta = const TA, tb = const TB),
                2 => tied!(d [0 1] $n2 "}}, {a}, {b}, 1, 1, 1, {ta}, {tb};",
                    a = in(reg64) a, b = in(reg64) b, ta = const TA, tb = const TB),
                3 => tied!(d [0 1 2] $n3 "}}, {a}, {b}, 1, 1, 1, {ta}, {tb};",
                    a = in(reg64) a, b = in(reg64) b, ta = const TA, tb = const TB),
                _ => tied!(d [0 1 2 3] $n4 "}}, {a}, {b}, 1, 1, 1, {ta}, {tb};",
                    a = in(reg64) a, b = in(reg64) b, ta = const TA, tb = const TB),
            }
        }
    };
}

/// `D = A B` or `D += A B` of types that require both operands in shared memory and contiguous along k. `$scales`: the
/// factors of A and B, an operand of floating-point types only. Source: PTX ISA, "wgmma.mma_async".
macro_rules! mma_k_major {
    ($(#[$doc:meta])* $name:ident, $n1:literal, $n2:literal, $n4:literal, $scales:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(&mut self, a: u64, b: u64, onto: bool) {
            const { assert!(C == 1 || C == 2 || C == 4, "64, 128 or 256 columns") };
            let d = &mut self.0;
            let onto = onto as u32;
            match C {
                1 => tied!(d [0] $n1 $scales, a = in(reg64) a, b = in(reg64) b, onto = in(reg32) onto),
                2 => tied!(d [0 1] $n2 $scales, a = in(reg64) a, b = in(reg64) b, onto = in(reg32) onto),
                _ => tied!(d [0 1 2 3] $n4 $scales, a = in(reg64) a, b = in(reg64) b, onto = in(reg32) onto),
            }
        }
    };
}

impl<const C: usize> Acc<C> {
    #[inline(always)]
    pub fn zero() -> Self {
        const { assert!(C >= 1 && C <= 4, "64, 128, 192 or 256 columns") };
        Acc([[0f32; 32]; C])
    }

    /// Uninitialized accumulators, for a `wgmma` that does not add to them.
    #[inline(always)]
    pub fn uninit() -> Self {
        let mut acc = Self::zero();
        let d = &mut acc.0;
        match C {
            1 => uninit!(d 0),
            2 => uninit!(d 0 1),
            3 => uninit!(d 0 1 2),
            _ => uninit!(d 0 1 2 3),
        }
        acc
    }

    /// No instruction. The compiler does not move computations of the accumulators across it.
    #[inline(always)]
    pub fn compiler_fence(&mut self) {
        let d = &mut self.0;
        match C {
            1 => tied!(d [0] "// " ""),
            2 => tied!(d [0 1] "// " ""),
            3 => tied!(d [0 1 2] "// " ""),
            _ => tied!(d [0 1 2 3] "// " ""),
        }
    }

    /// Orders earlier accesses to the accumulators before the next `wgmma`.
    #[inline(always)]
    pub fn fence(&mut self) {
        let d = &mut self.0;
        match C {
            1 => tied!(d [0] "wgmma.fence.sync.aligned; // " ""),
            2 => tied!(d [0 1] "wgmma.fence.sync.aligned; // " ""),
            3 => tied!(d [0 1 2] "wgmma.fence.sync.aligned; // " ""),
            _ => tied!(d [0 1 2 3] "wgmma.fence.sync.aligned; // " ""),
        }
    }

    /// Waits until at most `PENDING` groups are pending.
    #[inline(always)]
    pub fn wait<const PENDING: u32>(&mut self) {
        let d = &mut self.0;
        match C {
            1 => tied!(d [0] "wgmma.wait_group.sync.aligned {n}; // " "", n = const PENDING),
            2 => tied!(d [0 1] "wgmma.wait_group.sync.aligned {n}; // " "", n = const PENDING),
            3 => tied!(d [0 1 2] "wgmma.wait_group.sync.aligned {n}; // " "", n = const PENDING),
            _ => tied!(d [0 1 2 3] "wgmma.wait_group.sync.aligned {n}; // " "", n = const PENDING),
        }
    }

    mma! {
        /// f16, depth 16. `TA`, `TB` 1: the operand is contiguous along m, n instead of k.
        mma_f16, mma_f16_registers,
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {{",
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {{",
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.f16.f16 {{",
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {{"
    }
    mma! {
        /// bf16, depth 16. `TA`, `TB` 1: the operand is contiguous along m, n instead of k.
        mma_bf16, mma_bf16_registers,
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{",
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {{",
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {{",
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {{"
    }
    mma_k_major! {
        /// fp8 e4m3, depth 32. If `onto` is false, the accumulators are overwritten.
        mma_e4m3,
        "{{ .reg .pred p; setp.ne.u32 p, {onto}, 0; wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {{",
        "{{ .reg .pred p; setp.ne.u32 p, {onto}, 0; wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {{",
        "{{ .reg .pred p; setp.ne.u32 p, {onto}, 0; wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {{",
        "}}, {a}, {b}, p, 1, 1; }}"
    }
    mma_k_major! {
        /// fp8 e5m2, depth 32.
        mma_e5m2,
        "{{ .reg .pred p; setp.ne.u32 p, {onto}, 0; wgmma.mma_async.sync.aligned.m64n64k32.f32.e5m2.e5m2 {{",
        "{{ .reg .pred p; setp.ne.u32 p, {onto}, 0; wgmma.mma_async.sync.aligned.m64n128k32.f32.e5m2.e5m2 {{",
        "{{ .reg .pred p; setp.ne.u32 p, {onto}, 0; wgmma.mma_async.sync.aligned.m64n256k32.f32.e5m2.e5m2 {{",
        "}}, {a}, {b}, p, 1, 1; }}"
    }
    /// TF32, depth 8, with A in registers: fragments of `m16n8k8` of each warp's 16 rows. B is truncated to 10 bits of
    /// mantissa.
    #[inline(always)]
    pub fn mma_tf32_registers(&mut self, a: [u32; 4], b: u64) {
        const { assert!(C == 1 || C == 2 || C == 4, "64, 128 or 256 columns") };
        let d = &mut self.0;
        match C {
            1 => tied!(d [0] "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {{"
                "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, 1, 1, 1;",
                a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3], b = in(reg64) b),
            2 => tied!(d [0 1] "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {{"
                "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, 1, 1, 1;",
                a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3], b = in(reg64) b),
            _ => tied!(d [0 1 2 3] "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 {{"
                "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, 1, 1, 1;",
                a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3], b = in(reg64) b),
        }
    }

    mma_k_major! {
        /// TF32, depth 8. Operands are truncated to 10 bits of mantissa.
        mma_tf32,
        "{{ .reg .pred p; setp.ne.u32 p, {onto}, 0; wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {{",
        "{{ .reg .pred p; setp.ne.u32 p, {onto}, 0; wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {{",
        "{{ .reg .pred p; setp.ne.u32 p, {onto}, 0; wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 {{",
        "}}, {a}, {b}, p, 1, 1; }}"
    }
    mma_k_major! {
        /// 8-bit integers, depth 32. Accumulators are i32, stored in the f32 registers.
        mma_s8,
        "{{ .reg .pred p; setp.ne.u32 p, {onto}, 0; wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {{",
        "{{ .reg .pred p; setp.ne.u32 p, {onto}, 0; wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {{",
        "{{ .reg .pred p; setp.ne.u32 p, {onto}, 0; wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 {{",
        "}}, {a}, {b}, p; }}"
    }
}

instructions! {
    /// Commits a group of `wgmma` instructions.
    pub commit(): "wgmma.commit_group.sync.aligned;";
}
