//! Module `pit_conv`: `C[n,x,y,f] = A[n,x+i,y+j,m] * B[i,j,m,f]`, channels last, where whole channels of an image or
//! whole filters are zero in this step. The indices of `x+i` cannot be permuted; images, channels and filters can (PIT,
//! arXiv 2301.10936, table 1). Nonzero channels or filters were listed and packed (`channels`). Rows of B are gathered
//! by each image's list, or columns of C are scattered by the list of filters.

use core::marker::PhantomData;

use crate::abi::{
    AtomInfo, CpAsync, Divisor, LoaderInfo, MapWords, MmaQuarters, SMEM_TILE, Tile, Tma, Wgmma,
};

/// Producer threads.
pub const PIT_CONV_PRODUCER_THREADS: u32 = 128;
/// Channels of a stage.
pub const PIT_CONV_DEPTH: usize = 64;

/// Parameters of a [`PitConv`]: constants, atom and loader.
pub trait PitConvForm {
    /// Positions of an image in a tile.
    const MT: usize;
    /// Chunks of 64 filters in a tile.
    const CHUNKS: usize;
    /// Whether filters are listed, otherwise channels.
    const FILTERS: bool;
    /// Atom.
    type A: AtomInfo;
    /// Loader of A, and of packed filters.
    type L: LoaderInfo;
}

/// [`PitConvForm`] as a type.
#[derive(Clone, Copy, Debug)]
pub struct PitConvOf<const MT: usize, const CHUNKS: usize, const FILTERS: bool, A = Wgmma, L = Tma>(
    PhantomData<(A, L)>,
);

impl<const MT: usize, const CHUNKS: usize, const FILTERS: bool, A: AtomInfo, L: LoaderInfo>
    PitConvForm for PitConvOf<MT, CHUNKS, FILTERS, A, L>
{
    const MT: usize = MT;
    const CHUNKS: usize = CHUNKS;
    const FILTERS: bool = FILTERS;
    type A = A;
    type L = L;
}

/// Tile of `pit_conv`: a box of [`PitConvForm::MT`] positions of an image by [`PitConvForm::CHUNKS`] x 64 filters.
#[derive(Clone, Copy, Debug)]
pub struct PitConv<F>(PhantomData<F>);

impl<F: PitConvForm> PitConv<F> {
    /// Bytes of A in a stage.
    pub const A_BYTES: usize = F::MT * PIT_CONV_DEPTH * 2;
    /// Bytes of a stage: A, then chunks of 64 columns of B.
    pub const STAGE: usize = Self::A_BYTES + F::CHUNKS * SMEM_TILE;
    /// Stages of the ring.
    pub const STAGES: usize = (if F::A::ASYNCHRONOUS { 200 << 10 } else { 82 << 10 }) / Self::STAGE;
    /// Offset of the output buffers, [`SMEM_TILE`] bytes for each warpgroup.
    pub const OUT: usize = Self::STAGES * Self::STAGE;
    /// Offset of the barriers: full and empty for each stage.
    pub const BARRIERS: usize = Self::OUT + 2 * SMEM_TILE;
}

impl<F: PitConvForm> Tile for PitConv<F> {
    const NEEDS: u32 = F::A::NEEDS | F::L::NEEDS;
    const STANDS_IN: bool = !F::A::ASYNCHRONOUS;
    const THREADS: u32 = 256 + PIT_CONV_PRODUCER_THREADS;
    const COLUMNS: u32 = 64 * F::CHUNKS as u32;
    const BURST: u32 = Self::STAGES as u32;
    const BLOCK: (u32, u32) = (F::MT as u32, PIT_CONV_DEPTH as u32);
    const STEP: u32 = if F::FILTERS { STEP_FILTERS } else { STEP_CHANNELS };
    const SHARED_BYTES: u32 = (Self::BARRIERS + Self::STAGES * 16) as u32;
    const ACCESS: u32 = 16;
}

/// Step of tiles with a list of channels for each image.
pub const STEP_CHANNELS: u32 = 1;
/// Step of tiles with a list of filters.
pub const STEP_FILTERS: u32 = 2;

const _: () = assert!(PitConv::<PitConvOf<128, 4, false>>::BARRIERS + 128 <= 227 << 10);
const _: () = assert!(PitConv::<PitConvOf<128, 2, true>>::BARRIERS + 128 <= 227 << 10);
const _: () = assert!(PitConv::<PitConvOf<64, 4, false>>::BARRIERS + 128 <= 227 << 10);
// Max shared memory of a thread block on GPUs of compute capability 8.6, 8.9 and 12.0.
const _: () =
    assert!(PitConv::<PitConvOf<128, 2, false, MmaQuarters, CpAsync>>::SHARED_BYTES <= 99 << 10);
const _: () =
    assert!(PitConv::<PitConvOf<64, 4, false, MmaQuarters, CpAsync>>::SHARED_BYTES <= 99 << 10);

/// Parameters of the `pit_conv` kernels. `[0]` of a pair is along x, the rows of an image; `[1]` is along y, its
/// columns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PitConvParams {
    /// Map of A or of its packed channels: boxes of 64 channels and a tile's positions.
    pub a_map: MapWords,
    /// Map of the packed filters of B: 64 filters by 64 channels of a tap. If channels are listed: map of A's packed
    /// channels, in boxes of 32 channels.
    pub b_map: MapWords,
    /// Listed channels of each image, `list_stride` words, or listed filters.
    pub lists: u64,
    /// Number of listed channels of each image, or of listed filters.
    pub counts: u64,
    /// B, `[taps * channels, filters]`.
    pub b: u64,
    /// C, `[positions, filters]`.
    pub c: u64,
    /// Tiles of an image.
    pub image: Divisor,
    /// Tiles of a row of tiles.
    pub row: Divisor,
    /// Taps of a row of the window.
    pub window: Divisor,
    /// Positions of a tile along y, a power of two.
    pub wide: Divisor,
    /// Positions of C in an image, along each axis.
    pub out: [u32; 2],
    /// Positions of A from one of C to the next.
    pub stride: [u32; 2],
    /// Positions of A from one tap to the next.
    pub dilation: [u32; 2],
    /// Positions of zero padding before A.
    pub padding: [u32; 2],
    /// Taps of the window.
    pub taps: u32,
    /// Number of tiles of positions of all images.
    pub positions: u32,
    /// Channels of A.
    pub channels: u32,
    /// Filters of B and C.
    pub filters: u32,
    /// Words of a list.
    pub list_stride: u32,
    /// Bytes from one row of B to the next.
    pub ldb_bytes: u32,
    /// Bytes from one row of C to the next.
    pub ldc_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<PitConvParams>() == 384);
