//! The bulk copy engine: tiles by tensor map (`cp.async.bulk.tensor`) between global and shared memory.

use super::ptx;

/// Starts the copy of the tile at column `x`, row `y` to shared `to`; its bytes count at `barrier`.
/// What lies outside the tensor arrives as zeros. `to`: aligned to 128 bytes.
#[inline(always)]
pub fn tma_load_2d(to: u32, map: u64, x: u32, y: u32, barrier: u32) {
    ptx!(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{to}], [{map}, {{{x}, {y}}}], [{bar}];",
        to = in(reg32) to, map = in(reg64) map, x = in(reg32) x, y = in(reg32) y, bar = in(reg32) barrier,
        options(nostack)
    );
}

/// The same of a tensor of three axes.
#[inline(always)]
pub fn tma_load_3d(to: u32, map: u64, [x, y, z]: [u32; 3], barrier: u32) {
    ptx!(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{to}], [{map}, {{{x}, {y}, {z}}}], [{bar}];",
        to = in(reg32) to, map = in(reg64) map, x = in(reg32) x, y = in(reg32) y, z = in(reg32) z,
        bar = in(reg32) barrier, options(nostack)
    );
}

/// The same of a tensor of four axes.
#[inline(always)]
pub fn tma_load_4d(to: u32, map: u64, [x, y, z, w]: [u32; 4], barrier: u32) {
    ptx!(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{to}], [{map}, {{{x}, {y}, {z}, {w}}}], [{bar}];",
        to = in(reg32) to, map = in(reg64) map, x = in(reg32) x, y = in(reg32) y, z = in(reg32) z,
        w = in(reg32) w, bar = in(reg32) barrier, options(nostack)
    );
}

/// Of three axes; how L2 treats it says `policy`.
#[inline(always)]
pub fn tma_load_3d_under(to: u32, map: u64, [x, y, z]: [u32; 3], barrier: u32, policy: u64) {
    ptx!(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [{to}], [{map}, {{{x}, {y}, {z}}}], [{bar}], {policy};",
        to = in(reg32) to, map = in(reg64) map, x = in(reg32) x, y = in(reg32) y, z = in(reg32) z,
        bar = in(reg32) barrier, policy = in(reg64) policy, options(nostack)
    );
}

/// Starts the copy of `bytes` neighbouring bytes from global `from` to shared `to`, both aligned to 16 bytes; they
/// count at `barrier`.
#[inline(always)]
pub fn load_line(to: u32, from: u64, bytes: u32, barrier: u32) {
    ptx!(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{to}], [{from}], {n}, [{bar}];",
        to = in(reg32) to, from = in(reg64) from, n = in(reg32) bytes, bar = in(reg32) barrier,
        options(nostack)
    );
}

/// Fetches `bytes` neighbouring bytes from global `from` into L2, both multiples of 16.
#[inline(always)]
pub fn prefetch_line(from: u64, bytes: u32) {
    ptx!("cp.async.bulk.prefetch.L2.global [{from}], {n};", from = in(reg64) from, n = in(reg32) bytes, options(nostack));
}

/// Fetches a tensor map ahead of its first use.
#[inline(always)]
pub fn prefetch_map(map: u64) {
    ptx!("prefetch.tensormap [{map}];", map = in(reg64) map, options(nostack));
}
