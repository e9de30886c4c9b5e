//! The module `wgmma`: CTA tiles (`Strip`s) of 128 rows of C and up to 256 columns, fed by the tensor copy engine. The
//! host describes the contents of each stage in a [record](record_words).

use core::marker::PhantomData;

use crate::abi::AtomInfo;
use crate::abi::B_COLUMNS;
use crate::abi::HALF;
use crate::abi::LoaderInfo;
use crate::abi::MapWords;
use crate::abi::PANEL_BYTES;
use crate::abi::SMEM_TILE;
use crate::abi::STEPS;
use crate::abi::Tile;
use crate::abi::Tma;
use crate::abi::Wgmma;

/// Row in a record for an absent piece, which reads as zeros.
pub const ABSENT: u32 = 0x7fff_ffff;

/// Parameters of a [`Panel`]: constants, atom and loader.
pub trait PanelForm {
    /// Rows of a piece of A.
    const PM: usize;
    /// Columns of a piece of A.
    const PK: usize;
    /// Layout of A's pieces, B and C.
    const ORDER: u32;
    /// Bytes of an element.
    const BYTES: usize;
    /// Atom.
    type A: AtomInfo;
    /// Loader.
    type L: LoaderInfo;
}

/// The [`PanelForm`] with these parameters.
#[derive(Clone, Copy, Debug)]
pub struct PanelOf<
    const PM: usize,
    const PK: usize,
    const ORDER: u32,
    const BYTES: usize = 2,
    A = Wgmma,
    L = Tma,
>(PhantomData<(A, L)>);

impl<const PM: usize, const PK: usize, const ORDER: u32, const BYTES: usize, A, L> PanelForm
    for PanelOf<PM, PK, ORDER, BYTES, A, L>
where
    A: AtomInfo,
    L: LoaderInfo,
{
    const PM: usize = PM;
    const PK: usize = PK;
    const ORDER: u32 = ORDER;
    const BYTES: usize = BYTES;
    type A = A;
    type L = L;
}

/// Tile of the modules `wgmma` and `narrow`. A consists of pieces of `PM` x `PK` elements of `BYTES` bytes, in the
/// orientation of the product. A thread block computes `CHUNKS` x 64 columns.
#[derive(Clone, Copy, Debug)]
pub struct Panel<const CHUNKS: usize, F>(PhantomData<F>);

/// Words of a record before its k and rows: mask, A's column in either half, bits of the 16-row groups that are
/// present.
pub const RECORD_HEAD: usize = 4;

impl<const CHUNKS: usize, F: PanelForm> Panel<CHUNKS, F> {
    /// Depth of a stage in elements.
    pub const DEPTH: usize = PANEL_BYTES / F::BYTES;
    /// Depth of a step in elements.
    pub const STEP_DEPTH: usize = Self::DEPTH / STEPS;
    /// Slices of B in a stage, each with its own k.
    pub const SLICES: usize = Self::DEPTH / F::PK;
    /// Pieces of A in one half (64 rows) and slice.
    pub const PIECES: usize = HALF / F::PM;
    /// Copies of B in a stage.
    pub const B_COPIES: usize =
        if F::ORDER & B_COLUMNS == 0 { Self::SLICES * CHUNKS } else { Self::SLICES };
    /// Copies of A in a stage, both halves.
    pub const A_COPIES: usize = 2 * Self::SLICES * Self::PIECES;
    /// Bytes of a stage.
    pub const STAGE: usize = (2 + CHUNKS) * SMEM_TILE;
    /// Stages in flight.
    pub const STAGES: usize = match (F::L::BY_ONE, CHUNKS) {
        (true, 4) => 4,
        (true, 2) => 6,
        (true, _) => 8,
        (false, _) => (F::L::SHARED - 2 * SMEM_TILE - 512) / Self::STAGE,
    };
    /// Threads that copy.
    pub const PRODUCER_THREADS: u32 = 128;
    /// Words of a record: [`RECORD_HEAD`], the k of each slice, the row of each piece; rounded up to 16 bytes.
    pub const RECORD: usize = record_words(Self::SLICES, Self::A_COPIES);
    /// Offset of the output buffers, [`SMEM_TILE`] bytes for each warpgroup.
    pub const OUT: usize = Self::STAGES * Self::STAGE;
    /// Offset of the barriers: full and empty for each stage, then the mask of each stage.
    pub const BARRIERS: usize = Self::OUT + 2 * SMEM_TILE;
}

/// Words of a stage's record. Word 0 is the mask: bit `2 step + half` is set if the half multiplies in this step of 32
/// bytes along k. Words 1 and 2: first column of A's pieces in either half. Word 3: bit `8 step + r` is set if rows
/// `16 r ..` have a piece in this step. Then the k of each slice, then for each slice, half and piece its first row in
/// A's map, or [`ABSENT`] for zeros.
pub const fn record_words(slices: usize, a_copies: usize) -> usize {
    (RECORD_HEAD + slices + a_copies).next_multiple_of(4)
}

impl<const CHUNKS: usize, F: PanelForm> Tile for Panel<CHUNKS, F> {
    const THREADS: u32 = 256 + Self::PRODUCER_THREADS;
    const NEEDS: u32 = F::A::NEEDS | F::L::NEEDS;
    const STANDS_IN: bool = !F::A::ASYNCHRONOUS;
    const COLUMNS: u32 = 64 * CHUNKS as u32;
    const BURST: u32 = Self::STAGES as u32;
    const BLOCK: (u32, u32) = (F::PM as u32, F::PK as u32);
    const ORDER: u32 = F::ORDER;
    const SHARED_BYTES: u32 = (Self::BARRIERS + Self::STAGES * 24 + 16) as u32;
    const ACCESS: u32 = 16;
}

/// Parameters of the `wgmma` kernels: `C[m,n] = epilogue(alpha * A[m,k] * B[k,n])`. The maps require 64-byte alignment:
/// rustc does not give it to a kernel's parameter, so the device build writes it into every entry.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WgmmaParams {
    /// A's values as a matrix of piece rows.
    pub a_map: MapWords,
    /// B.
    pub b_map: MapWords,
    /// Records of all stages.
    pub records: u64,
    /// [`Strip`](crate::abi::Strip)s by rounds: the first of every thread block, then the second of every one, ...
    pub strips: u64,
    /// A copy of the first record of each thread block, which is loaded without a wait for its `Strip`.
    pub heads: u64,
    /// A's values.
    pub a: u64,
    /// Zeros, for the bytes of the longest piece column.
    pub zeros: u64,
    /// C, row-major.
    pub c: u64,
    /// Bias vector, or 0.
    pub bias: u64,
    /// Matrix of C's shape: with [`FLAG_GATE`](crate::abi::FLAG_GATE), C is zero where this matrix is not positive.
    pub gate: u64,
    /// Partial sums: slots x halves x accumulators of a warpgroup.
    pub partial: u64,
    /// Arrival counters, two for each CTA tile that is cut, all zero between launches.
    pub counters: u64,
    /// Scalar factor of the product.
    pub alpha: f64,
    /// Columns of B and C.
    pub n: u32,
    /// Rows of C.
    pub m: u32,
    /// Bytes from one row of C to the next.
    pub ldc_bytes: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Elements of a row of A's values.
    pub a_row: u32,
    /// Rounds of the work list.
    pub rounds: u32,
    /// Bytes from one row of `gate` to the next.
    pub gate_bytes: u32,
    /// Rows of B's map from one item of the batch to the next.
    pub b_item: u32,
    /// Bytes of C from one item of the batch to the next.
    pub c_item: u64,
    /// Bytes of `gate` from one item of the batch to the next.
    pub gate_item: u64,
}

const _: () = assert!(size_of::<WgmmaParams>() == 392);
