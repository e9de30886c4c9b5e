//! Interface to the compiler: thread indices, barrier and the kernel ABI. There are two implementations: for rustc's
//! own NVPTX backend, and with the crate `cuda_std` for Rust-CUDA's `rustc_codegen_nvvm`.

#[cfg(not(feature = "cuda_std"))]
mod body {
    use core::arch::nvptx;

    macro_rules! read {
        ($($name:ident = $register:ident;)+) => {$(
            #[inline(always)]
            pub fn $name() -> u32 {
                // SAFETY: reading a special register has no effect.
                unsafe { nvptx::$register() as u32 }
            }
        )+};
    }

    read! {
        thread = _thread_idx_x;
        block_x = _block_idx_x;
        block_y = _block_idx_y;
        block_z = _block_idx_z;
        grid_x = _grid_dim_x;
        grid_y = _grid_dim_y;
    }

    /// Barrier over the thread block. Every thread must arrive.
    #[inline(always)]
    pub fn sync_threads() {
        // SAFETY: every thread of the thread block calls it.
        unsafe { nvptx::_syncthreads() }
    }
}

#[cfg(feature = "cuda_std")]
mod body {
    pub use cuda_std::thread::{
        block_idx_x as block_x, block_idx_y as block_y, block_idx_z as block_z,
        grid_dim_x as grid_x, grid_dim_y as grid_y, sync_threads, thread_idx_x as thread,
    };
}

pub use body::*;

/// [`thread`] through [`opaque`](super::ptx::warp::opaque): the compiler computes values derived from it anew, and does
/// not keep them in registers across a loop.
#[inline(always)]
pub fn opaque_thread() -> u32 {
    super::ptx::warp::opaque(thread())
}

/// Lane of this thread and warp in its warpgroup, both from [`opaque_thread`].
#[inline(always)]
pub fn lane_and_warp() -> (u32, u32) {
    (opaque_thread() % 32, opaque_thread() / 32 % 4)
}

/// [`lane_and_warp`] in the opposite order. The compiler keeps the order of the two instructions, and most kernels of
/// `bitmap` are longer with the order of [`lane_and_warp`].
#[inline(always)]
pub fn warp_and_lane() -> (u32, u32) {
    (opaque_thread() / 32 % 4, opaque_thread() % 32)
}

/// Kernel entry: `kernel!(name(params: Type, at) => body)`. `at` is the generic address of the parameter; the tensor
/// copy engine reads tensor maps there.
#[cfg(target_arch = "nvptx64")]
macro_rules! kernel {
    ($name:ident($p:ident: $ty:ty, $at:ident) => $body:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name($p: $ty) {
            let mut $at = 0u64;
            // SAFETY: takes the address of the entry's own parameter, by the name that the compiler gives it.
            unsafe {
                core::arch::asm!(
                    concat!("{{ .reg .u64 p; mov.u64 p, ", stringify!($name), "_param_0; cvta.param.u64 {at}, p; }}"),
                    at = inout(reg64) $at,
                    options(pure, nomem, nostack)
                )
            };
            // SAFETY: this is the address of the params struct.
            let $at = unsafe { $crate::device::maps::Maps::new($at) };
            // SAFETY: the host checked the operands and built the launch from the same table row.
            unsafe { $body }
        }
    };
}

/// On the host, entries are type-checked and never run.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! kernel {
    ($name:ident($p:ident: $ty:ty, $at:ident) => $body:expr) => {
        #[allow(dead_code)]
        pub unsafe fn $name($p: $ty) {
            // SAFETY: never run.
            let $at = unsafe { $crate::device::maps::Maps::new(0) };
            // SAFETY: the host checked the operands and built the launch from the same table row.
            unsafe { $body }
        }
    };
}

pub(crate) use kernel;
