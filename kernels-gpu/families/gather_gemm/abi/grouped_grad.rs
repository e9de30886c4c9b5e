//! Module `grouped_grad`: gradient of a stack of matrices, `W[e,m,n] = A[row(s),m] * B[row'(s),n]` summed over the
//! slots s of expert e. Rows of both operands are gathered.

use core::marker::PhantomData;

use crate::abi::{AtomInfo, Divisor, SMEM_TILE, Tile, Wgmma};

/// Rows of A are indexed by the slots' tokens, otherwise by the slots.
pub const GRAD_A_TOKENS: u32 = 1 << 16;
/// Rows of B are indexed by the slots' tokens, otherwise by the slots.
pub const GRAD_B_TOKENS: u32 = 1 << 17;

/// Slots of a stage.
pub const GRAD_DEPTH: u32 = 64;
/// Producer threads.
pub const GRAD_PRODUCER_THREADS: u32 = 128;

/// Tile of `grouped_grad`: 128 rows by `CHUNKS` x 64 columns of one expert's matrix.
#[derive(Clone, Copy, Debug)]
pub struct GroupedGrad<const CHUNKS: usize, A = Wgmma>(PhantomData<A>);

impl<const CHUNKS: usize, A: AtomInfo> GroupedGrad<CHUNKS, A> {
    /// Bytes of a stage: two shared-memory tiles of A, `CHUNKS` of B.
    pub const STAGE: usize = (2 + CHUNKS) * SMEM_TILE;
    /// Stages of the ring.
    pub const STAGES: usize = if A::ASYNCHRONOUS { 4 } else { 3 };
    /// Offset of the output buffers, [`SMEM_TILE`] bytes for each warpgroup. Synchronous atoms do not use them: their
    /// epilogue reuses the shared memory of the warpgroup's rows of A.
    pub const OUT: usize = Self::STAGES * Self::STAGE;
    /// Offset of the barriers: full and empty for each stage.
    pub const BARRIERS: usize = Self::OUT + if A::ASYNCHRONOUS { 2 * SMEM_TILE } else { 0 };
}

impl<const CHUNKS: usize, A: AtomInfo> Tile for GroupedGrad<CHUNKS, A> {
    const THREADS: u32 = 256 + GRAD_PRODUCER_THREADS;
    const NEEDS: u32 = A::NEEDS;
    const STANDS_IN: bool = !A::ASYNCHRONOUS;
    const COLUMNS: u32 = 64 * CHUNKS as u32;
    const BURST: u32 = Self::STAGES as u32;
    const BLOCK: (u32, u32) = (128, GRAD_DEPTH);
    const SHARED_BYTES: u32 = (Self::BARRIERS + Self::STAGES * 16) as u32;
    const ACCESS: u32 = 16;
}

/// Parameters of the `grouped_grad` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GroupedGradParams {
    /// A, row-major.
    pub a: u64,
    /// B, row-major.
    pub b: u64,
    /// W, the experts' matrices stored one after the other.
    pub w: u64,
    /// Choice (token and expert) of each slot.
    pub order: u64,
    /// First slot of each expert, and first slot without an expert.
    pub offsets: u64,
    /// Choices of each token.
    pub top: Divisor,
    /// Tiles across.
    pub across: Divisor,
    /// Tiles down.
    pub down: Divisor,
    /// Columns of A, which are rows of a matrix.
    pub m: u32,
    /// Columns of B and of a matrix.
    pub n: u32,
    /// Bytes from one row of A to the next.
    pub lda_bytes: u32,
    /// Bytes from one row of B to the next.
    pub ldb_bytes: u32,
    /// Bytes from one row of W to the next.
    pub ldw_bytes: u32,
    /// Number of tiles of all matrices.
    pub tiles: u32,
    /// `GRAD_*`.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<GroupedGradParams>() == 96);
const _: () = assert!(GroupedGrad::<4>::BARRIERS + 128 <= 227 << 10);
