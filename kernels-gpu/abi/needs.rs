//! GPU features that a kernel requires beyond compute capability 8.0, determined by its atom and its loader.

/// Tensor copy engine (TMA) and mbarriers that count its bytes: compute capability 9.0 and newer.
pub const TMA: u32 = 1;
/// Clusters, whose thread blocks access each other's shared memory: compute capability 9.0 and newer.
pub const CLUSTER: u32 = 2;
/// Matrix products of a warpgroup (`wgmma`): compute capability 9.0 only.
pub const WGMMA: u32 = 4;
/// Matrix products of fp8 fragments (`mma.sync`): compute capability 8.9 and newer.
pub const FP8_MMA: u32 = 8;

/// Properties of an atom, which multiplies a stage.
pub trait AtomInfo: Copy {
    /// Required features: `WGMMA`, `FP8_MMA` or 0.
    const NEEDS: u32;
    /// Products run asynchronously, and warpgroups can reallocate registers (`setmaxnreg`).
    const ASYNCHRONOUS: bool;
    /// During products, a warp holds 64 rows of a quarter of the columns instead of 16 rows of all columns.
    const QUARTERS: bool;
}

/// `wgmma`: asynchronous; descriptors name the operands in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Wgmma;

/// `ldmatrix` and `mma.sync`. With `QUARTERS` a warp multiplies 64 rows by a quarter of the columns. This takes less
/// than half of the loads from shared memory. Warps exchange accumulators before a body reads them. `FP8`: fp8
/// operands are multiplied without conversion.
#[derive(Clone, Copy, Debug)]
pub struct Synchronous<const QUARTERS: bool, const FP8: bool = false>;

/// `mma.sync` with the accumulator layout of `wgmma`.
pub type MmaSync = Synchronous<false>;

/// `mma.sync`, 64 rows by a quarter of the columns for each warp.
pub type MmaQuarters = Synchronous<true>;

/// [`MmaQuarters`] for Tensor Cores that multiply fp8. The other atoms of `mma.sync` convert fp8 to f16.
pub type MmaFp8 = Synchronous<true, true>;

impl AtomInfo for Wgmma {
    const NEEDS: u32 = WGMMA;
    const ASYNCHRONOUS: bool = true;
    const QUARTERS: bool = false;
}

impl<const QUARTERS: bool, const FP8: bool> AtomInfo for Synchronous<QUARTERS, FP8> {
    const NEEDS: u32 = if FP8 { FP8_MMA } else { 0 };
    const ASYNCHRONOUS: bool = false;
    const QUARTERS: bool = QUARTERS;
}

/// Properties of a loader, which copies tiles to shared memory.
pub trait LoaderInfo: Copy {
    /// Required features: `TMA` or 0.
    const NEEDS: u32;
    /// One thread starts the copy of a whole tile.
    const BY_ONE: bool;
    /// Max dynamic shared memory of a thread block, bytes.
    const SHARED: usize;
}

/// The tensor copy engine: one thread starts the copy of a tile.
#[derive(Clone, Copy, Debug)]
pub struct Tma;

/// `cp.async`: threads copy a tile together. A thread block has at most `KIB` KiB of dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Copies<const KIB: usize>;

/// `cp.async` for every GPU: compute capabilities 8.6, 8.9 and 12.0 have 99 KiB of shared memory.
pub type CpAsync = Copies<99>;

/// `cp.async` for GPUs with 163 KiB of shared memory: compute capability 8.0.
pub type CpAsyncWide = Copies<163>;

impl LoaderInfo for Tma {
    const NEEDS: u32 = TMA;
    const BY_ONE: bool = true;
    const SHARED: usize = 227 << 10;
}

impl<const KIB: usize> LoaderInfo for Copies<KIB> {
    const NEEDS: u32 = 0;
    const BY_ONE: bool = false;
    const SHARED: usize = KIB << 10;
}

/// Index of the tensor's address in a [`MapWords`](super::MapWords) for [`CpAsync`]. From [`MAP_STRIDES`] on: strides
/// of axes 1 to 3, bytes. From [`MAP_EXTENTS`] on: extents of axes 0 to 3, two in a word, that of axis 0 in bytes.
pub const MAP_ADDRESS: usize = 0;
/// See [`MAP_ADDRESS`].
pub const MAP_STRIDES: usize = 1;
/// See [`MAP_ADDRESS`].
pub const MAP_EXTENTS: usize = 4;
