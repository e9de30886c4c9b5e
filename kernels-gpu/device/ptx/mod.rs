//! PTX instructions: one function per instruction, without policy. On the host `ptx!` is empty; code is only
//! type-checked. LLVM does not treat inline asm as `convergent`, so callers keep barriers, shuffles and mma out of
//! divergent branches. rustc's jump threading pass could duplicate such calls and is disabled (`compile/device.rs`).
#![allow(unused_variables, unused_mut, unused_assignments, clippy::let_and_return)]

pub mod barrier;
pub mod bits;
pub mod bulk;
pub mod cluster;
pub mod copy;
pub mod global;
pub mod grid;
pub mod matrix;
pub mod warp;
pub mod wgmma;
pub mod wgmma_sparse;
pub mod wgmma_thin;

#[cfg(target_arch = "nvptx64")]
macro_rules! ptx {
    ($($t:tt)*) => {
        // SAFETY: the wrapper states what the instruction needs; its operands are all named.
        unsafe { core::arch::asm!($($t)*) }
    };
}

#[cfg(not(target_arch = "nvptx64"))]
macro_rules! ptx {
    ($($t:tt)*) => {{}};
}

pub(crate) use ptx;

/// Defines one function per instruction: arguments, returned registers with their initial values, text of the
/// instruction, input registers, and asm options. `[unsafe]` before the name: the caller promises that the memory at
/// the addresses may be accessed, and that they are multiples of the number of bytes.
macro_rules! instructions {
    ($(
        $(#[$doc:meta])*
        $vis:vis $([$unsafe:ident])? $name:ident $args:tt $(-> $ret:ty = $value:expr, out($($to:ident $($out:ident)+ = $before:expr),+))?:
        $text:literal $(, in($($from:ident $($in:ident)+),* $(; bool $($yes:ident)+)?))? $(, options($($option:ident),+))?;
    )+) => {$(
        $(#[$doc])*
        #[inline(always)]
        $vis $($unsafe)? fn $name $args $(-> $ret)? {
            $($($(let mut $out = $before;)+)+)?
            $crate::device::ptx::ptx!(
                $text,
                $($($($out = inout($to) $out,)+)+)?
                $($($($in = in($from) $in,)+)* $($($yes = in(reg32) $yes as u32,)+)?)?
                options($($($option,)+)? nostack)
            );
            $($value)?
        }
    )+};
}

pub(crate) use instructions;
