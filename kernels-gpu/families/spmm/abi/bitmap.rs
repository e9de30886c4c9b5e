//! The module `bitmap`: A as bits and values in tiles of 64 x 64, expanded in registers. A CTA tile
//! of C has 64 rows and up to 64 columns for each warpgroup.

use core::marker::PhantomData;

use crate::abi::{AtomInfo, LoaderInfo, MapWords, Tile, Tma, Wgmma};

/// Rows and columns of a tile of A.
pub const BIT_TILE: usize = 64;
/// Tile rows of a panel (row block). Tiles of a panel at the same position along k are contiguous in memory.
pub const BIT_PANEL: usize = 4;
/// Words of a tile: 128 words of bits, one for each lane of each slab (16 rows), and 8 words of middles, 16 bits each.
/// A middle is the number of values before the right half of a 16 x 16 square.
pub const BIT_WORDS: usize = 136;
/// Bytes of the words of a tile.
pub const BIT_BYTES: usize = BIT_WORDS * 4;
/// The number of value slots of a tile is a multiple of this: 16 bytes.
pub const BIT_ALIGN: usize = 8;
/// Max stages in flight.
pub const BIT_STAGES: usize = 24;
/// Stages of a thread block whose starts (offsets of their values) are loaded at once.
pub const BIT_AHEAD: usize = 32;
/// Bytes before the stages: barriers `full` and `empty`, then the start of each warpgroup's values.
pub const BIT_HEAD: usize = 1024;

/// Returns the shared memory of each of `blocks` thread blocks of a multiprocessor that has `all` kilobytes. The system
/// reserves one kilobyte a thread block.
const fn shared_bytes_of(all: u32, blocks: u32) -> u32 {
    ((all << 10) / blocks - 1024) & !127
}

/// Kilobytes of shared memory of a multiprocessor: compute capability 9.0 and 8.0.
const SHARED_KB: [u32; 2] = [228, 164];

/// Parameters of a [`BitTile`], and of a [`ByteTile`], whose B is always aligned: alignment of B, atom and loader.
pub trait BitForm {
    /// The loader copies B; otherwise B is copied element by element.
    const ALIGNED: bool;
    /// Atom.
    type A: AtomInfo;
    /// Loader.
    type L: LoaderInfo;
}

/// [`BitForm`] as a type.
#[derive(Clone, Copy, Debug)]
pub struct BitOf<const ALIGNED: bool, A = Wgmma, L = Tma>(PhantomData<(A, L)>);

impl<const ALIGNED: bool, A: AtomInfo, L: LoaderInfo> BitForm for BitOf<ALIGNED, A, L> {
    const ALIGNED: bool = ALIGNED;
    type A = A;
    type L = L;
}

/// Tile of the module: `GROUPS` warpgroups of 64 rows each, times `N` columns (16, 32 or 64).
#[derive(Clone, Copy, Debug)]
pub struct BitTile<const GROUPS: usize, const N: usize, F>(PhantomData<F>);

impl<const GROUPS: usize, const N: usize, F> BitTile<GROUPS, N, F> {
    /// Bytes of B in a stage.
    pub const B_BYTES: usize = BIT_TILE * N * 2;
}

impl<const GROUPS: usize, const N: usize, F: BitForm> BitTile<GROUPS, N, F> {
    /// Producer threads.
    pub const PRODUCER_THREADS: u32 = 32 * copying_warps(F::L::BY_ONE, false);
}

impl<const GROUPS: usize, const N: usize, F: BitForm> Tile for BitTile<GROUPS, N, F> {
    /// Consumer and producer threads.
    const THREADS: u32 = GROUPS as u32 * 128 + Self::PRODUCER_THREADS;
    const NEEDS: u32 = F::A::NEEDS | F::L::NEEDS;
    const STANDS_IN: bool = !F::A::ASYNCHRONOUS;
    const MIN_BLOCKS: u32 =
        if F::A::ASYNCHRONOUS && GROUPS == 2 && N == 16 { 3 } else { 4 / GROUPS as u32 };
    const COLUMNS: u32 = N as u32;
    const ITEMS: u32 = GROUPS as u32;
    const BLOCK: (u32, u32) = (64 * GROUPS as u32, BIT_TILE as u32);
    /// All shared memory, divided among the thread blocks of a multiprocessor.
    const SHARED_BYTES: u32 = {
        let all = SHARED_KB[!F::A::ASYNCHRONOUS as usize];
        shared_bytes_of(all, Self::MIN_BLOCKS)
    };
    const ACCESS: u32 = if F::ALIGNED { 16 } else { 1 };
}

/// Returns the groups of eight columns that sums of `N` columns occupy. One column occupies a whole group.
pub const fn eights(n: usize) -> usize {
    n.div_ceil(8)
}

/// Returns the number of producer warps of a thread block: one with the copy engine. Otherwise consumers that are
/// single warps need more producers than warpgroups do.
pub const fn copying_warps(by_one: bool, by_warps: bool) -> u32 {
    match (by_one, by_warps) {
        (true, _) => 1,
        (false, true) => 4,
        (false, false) => 2,
    }
}

/// Returns how many of `most` warps copy into a ring of `stages` stages, round-robin. The number divides `stages`, so
/// each slot belongs to one warp, which sees every round of its barriers.
pub const fn copying_into(stages: u32, most: u32) -> u32 {
    let mut warps = most;
    while !stages.is_multiple_of(warps) {
        warps -= 1;
    }
    warps
}

/// Returns the largest number of stages up to `stages` into which more than half of `most` warps copy, or `stages` if
/// there is none.
pub const fn stages_for(stages: u32, most: u32) -> u32 {
    let mut fewer = stages;
    while fewer > 0 {
        if 2 * copying_into(fewer, most) > most {
            return fewer;
        }
        fewer -= 1;
    }
    stages
}

/// Parameters of a [`WarpTile`]: number of phases, and loader.
pub trait WarpForm {
    /// A warp processes every `PHASES`th stage.
    const PHASES: usize;
    /// Loader.
    type L: LoaderInfo;
}

/// [`WarpForm`] as a type.
#[derive(Clone, Copy, Debug)]
pub struct WarpOf<const PHASES: usize, L = Tma>(PhantomData<L>);

impl<const PHASES: usize, L: LoaderInfo> WarpForm for WarpOf<PHASES, L> {
    const PHASES: usize = PHASES;
    type L = L;
}

/// Tile of the module: 256 rows times `N` columns (1, 8 or 16; one column is a contiguous vector). A warp processes
/// `SLABS` slabs of 16 rows of the tiles of its stages. `SLABS` is 2 or 4, and at most [`WarpForm::PHASES`]. No warp
/// waits for another before the CTA tile ends.
#[derive(Clone, Copy, Debug)]
pub struct WarpTile<const N: usize, const SLABS: usize, F>(PhantomData<F>);

impl<const N: usize, const SLABS: usize, F: WarpForm> WarpTile<N, SLABS, F> {
    /// Consumer warps.
    pub const WARPS: usize = BIT_PANEL * F::PHASES * 4 / SLABS;
    /// Bytes after the stages where the sums of the phases are added, two slabs of each warp at a time.
    pub const SUMS: usize = Self::WARPS * 32 * eights(N) * 8 * 4;
    /// Producer threads.
    pub const PRODUCER_THREADS: u32 = 32 * copying_warps(F::L::BY_ONE, true);
}

impl<const N: usize, const SLABS: usize, F: WarpForm> Tile for WarpTile<N, SLABS, F> {
    /// Consumer and producer threads.
    const THREADS: u32 = Self::WARPS as u32 * 32 + Self::PRODUCER_THREADS;
    const NEEDS: u32 = F::L::NEEDS;
    const STANDS_IN: bool = !F::L::BY_ONE;
    const COLUMNS: u32 = N as u32;
    const ITEMS: u32 = BIT_PANEL as u32;
    const PARTS: u32 = F::PHASES as u32;
    const BLOCK: (u32, u32) = ((BIT_PANEL * BIT_TILE) as u32, BIT_TILE as u32);
    const SHARED_BYTES: u32 = F::L::SHARED as u32;
    const ACCESS: u32 = 16;
}

/// Columns of a tile of A whose positions are bytes (a byte tile). It has [`BIT_TILE`] rows.
pub const BYTE_DEPTH: usize = 128;
/// Bytes of the counts of a byte tile: the number of chunks of four slots for each bank.
pub const BYTE_COUNTS: usize = 32;
/// The number of chunks of a byte tile is a multiple of this.
pub const BYTE_UNIT: usize = 4;
/// Bytes of a byte tile expanded to a dense one.
pub const BYTE_TILE: usize = BIT_TILE * BYTE_DEPTH * 2;

/// Tile of the module for A with byte positions: `GROUPS` warpgroups of 64 rows each, times `N` columns (16, 32 or 64).
#[derive(Clone, Copy, Debug)]
pub struct ByteTile<const GROUPS: usize, const N: usize, F>(PhantomData<F>);

impl<const GROUPS: usize, const N: usize, F: BitForm> ByteTile<GROUPS, N, F> {
    /// Producer threads.
    pub const PRODUCER_THREADS: u32 = 32 * copying_warps(F::L::BY_ONE, false);
    /// Bytes of B in a stage.
    pub const B_BYTES: usize = BYTE_DEPTH * N * 2;
    /// Expanded tiles of a warpgroup. With asynchronous products there are two: one is filled while the other is
    /// multiplied.
    pub const SPREAD: usize = if F::A::ASYNCHRONOUS { 2 } else { 1 };
    /// Bytes before the stages: barriers, and each warpgroup's expanded tiles of A.
    pub const HEAD: usize = BIT_HEAD + GROUPS * Self::SPREAD * BYTE_TILE;
}

impl<const GROUPS: usize, const N: usize, F: BitForm> Tile for ByteTile<GROUPS, N, F> {
    /// Consumer and producer threads.
    const THREADS: u32 = GROUPS as u32 * 128 + Self::PRODUCER_THREADS;
    const NEEDS: u32 = F::A::NEEDS | F::L::NEEDS;
    const STANDS_IN: bool = !F::A::ASYNCHRONOUS;
    const MIN_BLOCKS: u32 = if F::A::ASYNCHRONOUS || N < 64 { 4 / GROUPS as u32 } else { 1 };
    const COLUMNS: u32 = N as u32;
    const ITEMS: u32 = GROUPS as u32;
    const BLOCK: (u32, u32) = (64 * GROUPS as u32, BYTE_DEPTH as u32);
    /// All shared memory, divided among the thread blocks of a multiprocessor. Two stages with 64 columns need more
    /// than half of the shared memory of compute capability 8.0.
    const SHARED_BYTES: u32 = match (F::A::ASYNCHRONOUS, N) {
        (true, _) => shared_bytes_of(SHARED_KB[0], Self::MIN_BLOCKS),
        (false, 64) => F::L::SHARED as u32,
        (false, _) => shared_bytes_of(SHARED_KB[1], Self::MIN_BLOCKS),
    };
    const ACCESS: u32 = 16;
}

/// Work item: a CTA tile of C, whole or a piece of it along k (split-K).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BitPiece {
    /// First row of C.
    pub row: u32,
    /// First column of C.
    pub column: u32,
    /// First tile.
    pub tile: u32,
    /// Tiles from one position along k to the next.
    pub step: u32,
    /// Tile column of the first stage.
    pub place: u32,
    /// Number of stages.
    pub stages: u32,
    /// Number of tile rows, at most the number of warpgroups.
    pub height: u32,
    /// Entries in the rows of the CTA tile; 0 if there is no product.
    pub entries: u32,
    /// First slot of partial sums of this CTA tile.
    pub first: u32,
    /// Index of this piece along k in the low 16 bits, number of pieces from bit 16 on; 1 piece for a whole CTA tile.
    pub parts: u32,
    /// Index of the arrival counters of this CTA tile.
    pub counter: u32,
    /// Zero.
    pub reserved: u32,
}

/// Parameters of the `bitmap` kernels: `C[m,n] = epilogue(alpha * A[m,k] * B[k,n])`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BitmapParams {
    /// B in boxes of 64 rows; unused if B is not aligned.
    pub b_map: MapWords,
    /// A's words.
    pub words: u64,
    /// A's values.
    pub values: u64,
    /// Start of the values of each tile, in units of 8.
    pub starts: u64,
    /// Starts for the first [`BIT_AHEAD`] stages of every thread block: one for each tile of a stage, and the end of
    /// the last tile.
    pub first: u64,
    /// [`BitPiece`]s by rounds: the first piece of every thread block, then the second of every one, and so on. Pieces
    /// without tile rows are placeholders.
    pub pieces: u64,
    /// B, row-major.
    pub b: u64,
    /// C, row-major.
    pub c: u64,
    /// Bias vector, or 0.
    pub bias: u64,
    /// Partial sums: slots x warpgroups x accumulators.
    pub partial: u64,
    /// Arrival counters, one for each warp of a split CTA tile, all zero between launches.
    pub counters: u64,
    /// Scalar factor of the product.
    pub alpha: f64,
    /// Columns of B and C.
    pub n: u32,
    /// Rows of C.
    pub m: u32,
    /// Rows of B.
    pub k: u32,
    /// Bytes from one row of B to the next.
    pub ldb_bytes: u32,
    /// Bytes from one row of C to the next.
    pub ldc_bytes: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Stages in flight.
    pub stages: u32,
    /// Bytes of A that a stage can hold.
    pub slot_bytes: u32,
    /// Number of rounds of the work list.
    pub rounds: u32,
    /// Bytes from the words to the byte positions of the chunks, in units of 16; 0 if positions are bits.
    pub places: u32,
}

const _: () = assert!(size_of::<BitPiece>() == 48);
const _: () = assert!(size_of::<BitmapParams>() == 256);
