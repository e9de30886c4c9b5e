//! Warpgroup matrix multiply for 16, 32 or 64 columns, with A in registers and B in shared memory, contiguous along n.
//! As in `wgmma`, fence, mma and wait name every accumulator.

use super::ptx;

/// Accumulators of one lane; the first `N / 2` are used. Layout: [`accumulator`](crate::frag::accumulator) of the
/// warp's 16 rows, one atom after the other.
#[derive(Clone, Copy)]
pub struct Thin<const N: usize>(pub [f32; 32]);

/// One instruction with the first 8, 16 or 32 accumulators as in-out operands.
macro_rules! tied {
    ($d:ident $n:tt $head:expr, $tail:literal $(, $name:ident = $($rest:tt)*)?) => {
        tied!(@ $n $d [$head, $tail] [$($name = $($rest)*,)?])
    };
    (@ 16 $d:ident $text:tt $rest:tt) => { tied!(@@ $d $text $rest 0 1 2 3 4 5 6 7) };
    (@ 32 $d:ident $text:tt $rest:tt) => {
        tied!(@@ $d $text $rest 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ 64 $d:ident $text:tt $rest:tt) => {
        tied!(@@ $d $text $rest
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
    };
    (@@ $d:ident [$head:expr, $tail:literal] [$($rest:tt)*] $first:literal $($i:literal)+) => {
        ptx!(
            concat!($head, "{}", $(tied!(@one $i),)+ $tail),
            inout(reg32) $d[$first], $(inout(reg32) $d[$i],)+
            $($rest)*
            options(nostack)
        )
    };
    (@one $i:literal) => { ", {}" };
}

/// One instruction per number of columns.
macro_rules! widths {
    ($d:ident $head:literal, $tail:literal $(, $name:ident = $($rest:tt)*)?) => {
        match N {
            16 => tied!($d 16 $head, $tail $(, $name = $($rest)*)?),
            32 => tied!($d 32 $head, $tail $(, $name = $($rest)*)?),
            _ => tied!($d 64 $head, $tail $(, $name = $($rest)*)?),
        }
    };
}

macro_rules! mma {
    ($(#[$doc:meta])* $name:ident, $shared:ident, $types:literal) => {
        /// `D += A B` with A in shared memory, contiguous along k.
        #[inline(always)]
        pub fn $shared(&mut self, a: u64, b: u64) {
            let d = &mut self.0;
            match N {
                16 => tied!(d 16 concat!("wgmma.mma_async.sync.aligned.m64n16k16.f32.", $types, " {{"),
                    "}}, {a}, {b}, 1, 1, 1, 0, 1;", a = in(reg64) a, b = in(reg64) b),
                32 => tied!(d 32 concat!("wgmma.mma_async.sync.aligned.m64n32k16.f32.", $types, " {{"),
                    "}}, {a}, {b}, 1, 1, 1, 0, 1;", a = in(reg64) a, b = in(reg64) b),
                _ => tied!(d 64 concat!("wgmma.mma_async.sync.aligned.m64n64k16.f32.", $types, " {{"),
                    "}}, {a}, {b}, 1, 1, 1, 0, 1;", a = in(reg64) a, b = in(reg64) b),
            }
        }

        $(#[$doc])*
        #[inline(always)]
        pub fn $name(&mut self, a: [u32; 4], b: u64) {
            let d = &mut self.0;
            match N {
                16 => tied!(d 16 concat!("wgmma.mma_async.sync.aligned.m64n16k16.f32.", $types, " {{"),
                    "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, 1, 1, 1, 1;",
                    a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3], b = in(reg64) b),
                32 => tied!(d 32 concat!("wgmma.mma_async.sync.aligned.m64n32k16.f32.", $types, " {{"),
                    "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, 1, 1, 1, 1;",
                    a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3], b = in(reg64) b),
                _ => tied!(d 64 concat!("wgmma.mma_async.sync.aligned.m64n64k16.f32.", $types, " {{"),
                    "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, 1, 1, 1, 1;",
                    a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3], b = in(reg64) b),
            }
        }
    };
}

impl<const N: usize> Thin<N> {
    #[inline(always)]
    pub fn zero() -> Self {
        Thin([0f32; 32])
    }

    /// Orders earlier accesses to the accumulators and to fragments of A before the next `wgmma`.
    #[inline(always)]
    pub fn fence(&mut self) {
        let d = &mut self.0;
        widths!(d "wgmma.fence.sync.aligned; // ", "");
    }

    /// Waits until at most `PENDING` groups are pending.
    #[inline(always)]
    pub fn wait<const PENDING: u32>(&mut self) {
        let d = &mut self.0;
        widths!(d "wgmma.wait_group.sync.aligned {n}; // ", "", n = const PENDING);
    }

    mma! {
        /// `D += A B`, f16, depth 16.
        mma_f16, mma_f16_shared, "f16.f16"
    }
    mma! {
        /// `D += A B`, bf16, depth 16.
        mma_bf16, mma_bf16_shared, "bf16.bf16"
    }
}
