//! The seam to the compiler: indices, barrier and the kernel ABI. Two bodies: rustc's own NVPTX
//! backend, and the crate `cuda_std` for Rust-CUDA's `rustc_codegen_nvvm`.

#[cfg(not(feature = "cuda_std"))]
mod body {
    use core::arch::nvptx;

    #[inline(always)]
    pub fn thread() -> u32 {
        // SAFETY: reads a special register.
        unsafe { nvptx::_thread_idx_x() as u32 }
    }

    #[inline(always)]
    pub fn block_x() -> u32 {
        // SAFETY: reads a special register.
        unsafe { nvptx::_block_idx_x() as u32 }
    }

    #[inline(always)]
    pub fn block_y() -> u32 {
        // SAFETY: reads a special register.
        unsafe { nvptx::_block_idx_y() as u32 }
    }

    #[inline(always)]
    pub fn block_z() -> u32 {
        // SAFETY: reads a special register.
        unsafe { nvptx::_block_idx_z() as u32 }
    }

    #[inline(always)]
    pub fn grid_x() -> u32 {
        // SAFETY: reads a special register.
        unsafe { nvptx::_grid_dim_x() as u32 }
    }

    #[inline(always)]
    pub fn grid_y() -> u32 {
        // SAFETY: reads a special register.
        unsafe { nvptx::_grid_dim_y() as u32 }
    }

    /// Barrier over the thread block. Every thread must arrive.
    #[inline(always)]
    pub fn sync_threads() {
        // SAFETY: callers reach it uniformly.
        unsafe { nvptx::_syncthreads() }
    }
}

#[cfg(feature = "cuda_std")]
mod body {
    use cuda_std::thread as t;

    #[inline(always)]
    pub fn thread() -> u32 {
        t::thread_idx_x()
    }

    #[inline(always)]
    pub fn block_x() -> u32 {
        t::block_idx_x()
    }

    #[inline(always)]
    pub fn block_y() -> u32 {
        t::block_idx_y()
    }

    #[inline(always)]
    pub fn block_z() -> u32 {
        t::block_idx_z()
    }

    #[inline(always)]
    pub fn grid_x() -> u32 {
        t::grid_dim_x()
    }

    #[inline(always)]
    pub fn grid_y() -> u32 {
        t::grid_dim_y()
    }

    /// Barrier over the thread block. Every thread must arrive.
    #[inline(always)]
    pub fn sync_threads() {
        t::sync_threads()
    }
}

pub use body::*;

/// [`thread`], computed here and now: what is derived from it is not carried in registers through a loop.
#[inline(always)]
pub fn rematerialize_thread() -> u32 {
    super::ptx::warp::rematerialize(thread())
}

/// A kernel entry: `kernel!(name(params: Type, at) => body)`; `at` is the generic address of the parameter, where
/// tensor maps are read by the copy engine itself.
#[cfg(target_arch = "nvptx64")]
macro_rules! kernel {
    ($name:ident($p:ident: $ty:ty, $at:ident) => $body:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name($p: $ty) {
            let mut $at = 0u64;
            // SAFETY: the address of the entry's own parameter, by the name that the compiler gives it.
            unsafe {
                core::arch::asm!(
                    concat!("{{ .reg .u64 p; mov.u64 p, ", stringify!($name), "_param_0; cvta.param.u64 {at}, p; }}"),
                    at = inout(reg64) $at,
                    options(pure, nomem, nostack)
                )
            };
            // SAFETY: the host checked the operands and built the launch from the same table row.
            unsafe { $body }
        }
    };
}

/// On the host the entries are only type-checked.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! kernel {
    ($name:ident($p:ident: $ty:ty, $at:ident) => $body:expr) => {
        #[allow(dead_code)]
        pub unsafe fn $name($p: $ty) {
            let $at = 0u64;
            // SAFETY: the host checked the operands and built the launch from the same table row.
            unsafe { $body }
        }
    };
}

pub(crate) use kernel;
