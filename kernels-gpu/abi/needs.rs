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
pub trait AtomInfo {
    /// `WGMMA` or nothing.
    const NEEDS: u32;
    /// The products run on while a warp goes on.
    const ASYNCHRONOUS: bool;
}

/// `wgmma`: asynchronous, operands by descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Wgmma;

/// `ldmatrix` and `mma.sync`.
#[derive(Clone, Copy, Debug)]
pub struct MmaSync;

impl AtomInfo for Wgmma {
    const NEEDS: u32 = WGMMA;
    const ASYNCHRONOUS: bool = true;
}

impl AtomInfo for MmaSync {
    const NEEDS: u32 = 0;
    const ASYNCHRONOUS: bool = false;
}

/// What copies tiles into shared memory.
pub trait LoaderInfo {
    /// `TMA` or nothing.
    const NEEDS: u32;
}

/// The tensor copy engine: one thread starts the copy of a tile.
#[derive(Clone, Copy, Debug)]
pub struct Tma;

/// `cp.async`: the lanes of a warp copy a tile together.
#[derive(Clone, Copy, Debug)]
pub struct CpAsync;

impl LoaderInfo for Tma {
    const NEEDS: u32 = TMA;
}

impl LoaderInfo for CpAsync {
    const NEEDS: u32 = 0;
}

/// Words of a [`MapWords`](super::MapWords) that [`CpAsync`] reads: the address of a tensor, bytes from one place to the
/// next along axes 1 to 3, and extents of axes 0 to 3, that of axis 0 in bytes.
pub const MAP_ADDRESS: usize = 0;
/// See [`MAP_ADDRESS`].
pub const MAP_STRIDES: usize = 1;
/// See [`MAP_ADDRESS`].
pub const MAP_EXTENTS: usize = 4;
