//! The bulk copy engine: tiles by tensor map (`cp.async.bulk.tensor`) between global and shared memory.

use super::{instructions, ptx};

instructions! {
    /// Starts the copy of the tile at column `x`, row `y` to shared `to`; its bytes count at `barrier`.
    /// What lies outside the tensor arrives as zeros. `to`: aligned to 128 bytes.
    pub tma_load_2d(to: u32, map: u64, x: u32, y: u32, barrier: u32):
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{to}], [{map}, {{{x}, {y}}}], [{barrier}];",
        in(reg32 to, reg64 map, reg32 x y barrier);
    /// The same of a tensor of three axes.
    pub tma_load_3d(to: u32, map: u64, [x, y, z]: [u32; 3], barrier: u32):
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{to}], [{map}, {{{x}, {y}, {z}}}], [{barrier}];",
        in(reg32 to, reg64 map, reg32 x y z barrier);
    /// The same of a tensor of four axes.
    pub tma_load_4d(to: u32, map: u64, [x, y, z, w]: [u32; 4], barrier: u32):
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{to}], [{map}, {{{x}, {y}, {z}, {w}}}], [{barrier}];",
        in(reg32 to, reg64 map, reg32 x y z w barrier);
    /// Starts the copy of neighbouring pixels of images, from the one at `[channel, y, x, image]` on, each moved by
    /// `offset` along x and y, below 256; a map of pixels says how many, and how far apart.
    pub tma_load_im2col(to: u32, map: u64, [c, y, x, n]: [u32; 4], [down, right]: [u32; 2], barrier: u32):
        "{{ .reg .b16 d, r; cvt.u16.u32 d, {down}; cvt.u16.u32 r, {right}; \
         cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [{to}], [{map}, {{{c}, {y}, {x}, {n}}}], [{barrier}], {{r, d}}; }}",
        in(reg32 to, reg64 map, reg32 c y x n down right barrier);
    /// Of three axes; how L2 treats it says `policy`.
    pub tma_load_3d_with_policy(to: u32, map: u64, [x, y, z]: [u32; 3], barrier: u32, policy: u64):
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [{to}], [{map}, {{{x}, {y}, {z}}}], [{barrier}], {policy};",
        in(reg32 to, reg64 map, reg32 x y z barrier, reg64 policy);
    /// The same to the same place in both thread blocks of a cluster of two; the bytes count at the barrier of each.
    pub tma_load_3d_multicast(to: u32, map: u64, [x, y, z]: [u32; 3], barrier: u32, policy: u64):
        "{{ .reg .b16 both; mov.b16 both, 3; \
         cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [{to}], [{map}, {{{x}, {y}, {z}}}], [{barrier}], both, {policy}; }}",
        in(reg32 to, reg64 map, reg32 x y z barrier, reg64 policy);
    /// Starts the copy of `bytes` neighbouring bytes from global `from` to shared `to`, both aligned to 16 bytes; they
    /// count at `barrier`.
    pub bulk_load(to: u32, from: u64, bytes: u32, barrier: u32):
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{to}], [{from}], {bytes}, [{barrier}];",
        in(reg32 to, reg64 from, reg32 bytes barrier);
    /// Fetches a tensor map ahead of its first use.
    pub prefetch_tensormap(map: u64): "prefetch.tensormap [{map}];", in(reg64 map);
}

/// Whether [`bulk_prefetch`] does anything.
#[inline(always)]
pub const fn prefetches_lines() -> bool {
    cfg!(since = "9.0")
}

/// Fetches `bytes` neighbouring bytes from global `from` into L2, both multiples of 16, where there is a copy engine.
#[inline(always)]
pub fn bulk_prefetch(from: u64, bytes: u32) {
    if prefetches_lines() {
        ptx!(
            "cp.async.bulk.prefetch.L2.global [{from}], {bytes};",
            from = in(reg64) from, bytes = in(reg32) bytes, options(nostack)
        );
    }
}
