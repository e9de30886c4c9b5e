//! Tensor maps, with which the copy engine copies boxes of tensors to shared memory.

use super::ptx::bulk;
use super::shared::{Mbarrier, Shared};

/// Tensor maps in the params struct of the kernel, at multiples of 128 bytes.
#[derive(Clone, Copy)]
pub struct Maps(u64);

impl Maps {
    /// # Safety
    /// The generic address `at` is that of the params struct. The host made its maps from tensors that it has checked.
    #[inline(always)]
    pub unsafe fn new(at: u64) -> Maps {
        Maps(at)
    }

    #[inline(always)]
    pub fn map(self, i: u32) -> TensorMap {
        TensorMap(self.0 + i as u64 * 128)
    }
}

/// A tensor map. Each load starts the copy of a box to shared address `to`, aligned to 128 bytes. Its bytes complete
/// mbarrier `barrier`. Elements outside of the tensor are zero.
#[derive(Clone, Copy)]
pub struct TensorMap(u64);

macro_rules! loads {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*; $($policy:ident)?) = $instruction:ident;)+) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name<U>(self, to: Shared<U>, $($arg: $ty,)* barrier: Shared<Mbarrier> $(, $policy: u64)?) {
            // SAFETY: promised to `Maps::new` and `Shared::dynamic`.
            unsafe { bulk::$instruction(to.address, self.0, $($arg,)* barrier.address $(, $policy)?) }
        }
    )+};
}

impl TensorMap {
    #[inline(always)]
    pub fn prefetch(self) {
        // SAFETY: promised to `Maps::new`.
        unsafe { bulk::prefetch_tensormap(self.0) }
    }

    loads! {
        load_2d(place: [u32; 2];) = tma_load_2d;
        load_3d(place: [u32; 3];) = tma_load_3d;
        load_4d(place: [u32; 4];) = tma_load_4d;
        /// Copies adjacent pixels of images from `[channel, y, x, image]` on, each moved along x and y by offsets below
        /// 256. The im2col map holds the number and the distance of the pixels.
        load_im2col(place: [u32; 4], offset: [u32; 2];) = tma_load_im2col;
        /// [`TensorMap::load_3d`] with an L2 eviction policy.
        load_3d_with_policy(place: [u32; 3]; policy) = tma_load_3d_with_policy;
        /// [`TensorMap::load_3d_with_policy`] to the same shared address of both thread blocks of a cluster of two. The
        /// bytes complete the mbarrier of each.
        load_3d_multicast(place: [u32; 3]; policy) = tma_load_3d_multicast;
    }
}
