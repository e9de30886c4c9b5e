//! What a kernel needs of a GPU beyond compute capability 8.0. Its atom and its loader say so.

/// The tensor copy engine and barriers that count its bytes: compute capability 9.0 and newer.
pub const TMA: u32 = 1;
/// Thread blocks that read each other's shared memory: compute capability 9.0 and newer.
pub const CLUSTER: u32 = 2;
/// Matrix products of a warpgroup: compute capability 9.0 alone.
pub const WGMMA: u32 = 4;
/// Matrix products of fp8 in registers: compute capability 8.9 and newer.
pub const FP8_MMA: u32 = 8;

/// What multiplies a stage.
pub trait AtomInfo: Copy {
    /// `WGMMA` or nothing.
    const NEEDS: u32;
    /// Products go on while their warps do something else, and registers move between warpgroups.
    const ASYNCHRONOUS: bool;
    /// A warp holds 64 rows of a quarter of the columns during products, instead of 16 rows of all columns.
    const QUARTERS: bool;
}

/// `wgmma`: asynchronous, operands by descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Wgmma;

/// `ldmatrix` and `mma.sync`. With `QUARTERS` a warp multiplies 64 rows by a quarter of the columns. This takes less
/// than half of the loads from shared memory, and the sums have to be exchanged before a body looks at them.
#[derive(Clone, Copy, Debug)]
pub struct Synchronous<const QUARTERS: bool, const FP8: bool = false>;

/// `mma.sync`; sums lie as `wgmma` leaves them.
pub type MmaSync = Synchronous<false>;

/// `mma.sync` of 64 rows by a quarter of the columns for each warp.
pub type MmaQuarters = Synchronous<true>;

/// The same where Tensor Cores multiply fp8, which elsewhere is multiplied as f16.
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

/// What copies tiles into shared memory.
pub trait LoaderInfo: Copy {
    /// `TMA` or nothing.
    const NEEDS: u32;
    /// One thread starts the copy of a whole tile.
    const BY_ONE: bool;
    /// Dynamic shared memory that the stages of a thread block may take, bytes.
    const SHARED: usize;
}

/// The tensor copy engine: one thread starts the copy of a tile.
#[derive(Clone, Copy, Debug)]
pub struct Tma;

/// `cp.async`: threads copy a tile together. Stages take at most so many KiB of shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Copies<const KIB: usize>;

/// `cp.async`, for every GPU: compute capabilities 8.6, 8.9 and 12.0 have 99 KiB of shared memory.
pub type CpAsync = Copies<99>;

/// `cp.async`, for GPUs with 163 KiB of shared memory: compute capability 8.0.
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

/// Words of a [`MapWords`](super::MapWords) that [`CpAsync`] reads: the address of a tensor, bytes from one place to the
/// next along axes 1 to 3, and extents of axes 0 to 3, two in a word, that of axis 0 in bytes.
pub const MAP_ADDRESS: usize = 0;
/// See [`MAP_ADDRESS`].
pub const MAP_STRIDES: usize = 1;
/// See [`MAP_ADDRESS`].
pub const MAP_EXTENTS: usize = 4;
