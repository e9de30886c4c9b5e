//! Bulk copies from global to shared memory: tiles by tensor map (`cp.async.bulk.tensor`, TMA) and contiguous bytes.

use super::{instructions, ptx};

instructions! {
    /// Starts the copy of the tile at column `x` and row `y` to shared address `to`, aligned to 128 bytes. Its bytes
    /// complete mbarrier `barrier`. Elements outside of the tensor are zero.
    pub(in crate::device) [unsafe] tma_load_2d(to: u32, map: u64, [x, y]: [u32; 2], barrier: u32):
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{to}], [{map}, {{{x}, {y}}}], [{barrier}];",
        in(reg32 to, reg64 map, reg32 x y barrier);
    /// [`tma_load_2d`] of a tensor of three axes.
    pub(in crate::device) [unsafe] tma_load_3d(to: u32, map: u64, [x, y, z]: [u32; 3], barrier: u32):
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{to}], [{map}, {{{x}, {y}, {z}}}], [{barrier}];",
        in(reg32 to, reg64 map, reg32 x y z barrier);
    /// [`tma_load_2d`] of a tensor of four axes.
    pub(in crate::device) [unsafe] tma_load_4d(to: u32, map: u64, [x, y, z, w]: [u32; 4], barrier: u32):
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{to}], [{map}, {{{x}, {y}, {z}, {w}}}], [{barrier}];",
        in(reg32 to, reg64 map, reg32 x y z w barrier);
    /// Starts the copy of adjacent pixels of images from `[channel, y, x, image]` on, each moved along x and y by
    /// offsets below 256. The im2col map holds the number and the distance of the pixels.
    pub(in crate::device) [unsafe] tma_load_im2col(to: u32, map: u64, [c, y, x, n]: [u32; 4], [down, right]: [u32; 2], barrier: u32):
        "{{ .reg .b16 d, r; cvt.u16.u32 d, {down}; cvt.u16.u32 r, {right}; \
         cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [{to}], [{map}, {{{c}, {y}, {x}, {n}}}], [{barrier}], {{r, d}}; }}",
        in(reg32 to, reg64 map, reg32 c y x n down right barrier);
    /// [`tma_load_3d`] with an L2 eviction policy.
    pub(in crate::device) [unsafe] tma_load_3d_with_policy(to: u32, map: u64, [x, y, z]: [u32; 3], barrier: u32, policy: u64):
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [{to}], [{map}, {{{x}, {y}, {z}}}], [{barrier}], {policy};",
        in(reg32 to, reg64 map, reg32 x y z barrier, reg64 policy);
    /// [`tma_load_3d_with_policy`] to the same shared address of both thread blocks of a cluster of two. The bytes
    /// complete the mbarrier of each.
    pub(in crate::device) [unsafe] tma_load_3d_multicast(to: u32, map: u64, [x, y, z]: [u32; 3], barrier: u32, policy: u64):
        "{{ .reg .b16 both; mov.b16 both, 3; \
         cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [{to}], [{map}, {{{x}, {y}, {z}}}], [{barrier}], both, {policy}; }}",
        in(reg32 to, reg64 map, reg32 x y z barrier, reg64 policy);
    /// Starts the copy of `bytes` contiguous bytes from global `from` to shared `to`, both aligned to 16 bytes. The
    /// bytes complete mbarrier `barrier`.
    pub(in crate::device) [unsafe] bulk_load(to: u32, from: u64, bytes: u32, barrier: u32):
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{to}], [{from}], {bytes}, [{barrier}];",
        in(reg32 to, reg64 from, reg32 bytes barrier);
    /// Prefetches a tensor map.
    pub(in crate::device) [unsafe] prefetch_tensormap(map: u64): "prefetch.tensormap [{map}];", in(reg64 map);
}

/// Whether [`bulk_prefetch`] has an effect on this architecture.
#[inline(always)]
pub const fn prefetches_lines() -> bool {
    cfg!(since = "9.0")
}

/// Prefetches `bytes` contiguous bytes at global `from` into L2, both multiples of 16. No effect below
/// compute capability 9.0.
#[inline(always)]
pub(in crate::device) unsafe fn bulk_prefetch(from: u64, bytes: u32) {
    if prefetches_lines() {
        ptx!(
            "cp.async.bulk.prefetch.L2.global [{from}], {bytes};",
            from = in(reg64) from, bytes = in(reg32) bytes, options(nostack)
        );
    }
}
