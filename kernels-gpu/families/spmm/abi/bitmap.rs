//! The modules `bitmap` and `bitmap_mma`: A as bits and values by tiles of 64 x 64, expanded in registers, C by strips of 64 rows and up
//! to 64 columns for each warpgroup.

use core::marker::PhantomData;

use crate::abi::{AtomInfo, LoaderInfo, MapWords, Tile, Tma, Wgmma};

/// Rows and columns of a tile of A.
pub const BIT_TILE: usize = 64;
/// Tile rows of a panel: tiles of one panel and place along k are neighbours in memory.
pub const BIT_PANEL: usize = 4;
/// Words of a tile: 128 of bits, one for each slab of 16 rows and lane, and 8 of middles, 16 bits each.
pub const BIT_WORDS: usize = 136;
/// Bytes of the words of a tile.
pub const BIT_BYTES: usize = BIT_WORDS * 4;
/// Slots that the values of a tile are a multiple of: 16 bytes.
pub const BIT_ALIGN: usize = 8;
/// Stages in flight at the most.
pub const BIT_STAGES: usize = 24;
/// Stages of a thread block whose starts are fetched at once.
pub const BIT_AHEAD: usize = 32;
/// Bytes in front of the stages: barriers `full` and `empty`, then where the values of each warpgroup start.
pub const BIT_HEAD: usize = 1024;

/// Shared memory that each of so many thread blocks of a multiprocessor may have, of `all` kilobytes: the system takes
/// one for each.
const fn shared_bytes_of(all: u32, blocks: u32) -> u32 {
    ((all << 10) / blocks - 1024) & !127
}

/// Kilobytes of a multiprocessor's shared memory: compute capability 9.0 and 8.0.
const SHARED_KB: [u32; 2] = [228, 164];

/// Tile of the module: `GROUPS` warpgroups of 64 rows each against `N` columns (16, 32 or 64). `ALIGNED`: B by the
/// loader, else element by element.
#[derive(Clone, Copy, Debug)]
pub struct BitTile<const GROUPS: usize, const N: usize, const ALIGNED: bool, A = Wgmma, L = Tma>(
    PhantomData<(A, L)>,
);

impl<const GROUPS: usize, const N: usize, const ALIGNED: bool, A, L>
    BitTile<GROUPS, N, ALIGNED, A, L>
{
    /// Bytes of B in a stage.
    pub const B_BYTES: usize = BIT_TILE * N * 2;
}

impl<const GROUPS: usize, const N: usize, const ALIGNED: bool, A, L: LoaderInfo>
    BitTile<GROUPS, N, ALIGNED, A, L>
{
    /// Threads that copy.
    pub const COPIERS: u32 = 32 * copying_warps(L::BY_ONE, false);
}

impl<const GROUPS: usize, const N: usize, const ALIGNED: bool, A: AtomInfo, L: LoaderInfo> Tile
    for BitTile<GROUPS, N, ALIGNED, A, L>
{
    /// The warpgroups, and those that copy.
    const THREADS: u32 = GROUPS as u32 * 128 + Self::COPIERS;
    const NEEDS: u32 = A::NEEDS | L::NEEDS;
    const STANDS_IN: bool = !A::ASYNCHRONOUS;
    const MIN_BLOCKS: u32 =
        if A::ASYNCHRONOUS && GROUPS == 2 && N == 16 { 3 } else { 4 / GROUPS as u32 };
    const COLUMNS: u32 = N as u32;
    const ITEMS: u32 = GROUPS as u32;
    const BLOCK: (u32, u32) = (64 * GROUPS as u32, BIT_TILE as u32);
    /// All there is, divided among the thread blocks of a multiprocessor.
    const SHARED_BYTES: u32 = {
        let all = SHARED_KB[!A::ASYNCHRONOUS as usize];
        shared_bytes_of(all, Self::MIN_BLOCKS)
    };
    const ACCESS: u32 = if ALIGNED { 16 } else { 1 };
}

/// Eights of columns that sums of `N` columns take: one column takes as much as eight.
pub const fn eights(n: usize) -> usize {
    n.div_ceil(8)
}

/// Warps of a thread block that copy: one where the copy engine does the rest, else more beside warps that multiply each
/// for itself than beside warpgroups.
pub const fn copying_warps(by_one: bool, by_warps: bool) -> u32 {
    match (by_one, by_warps) {
        (true, _) => 1,
        (false, true) => 4,
        (false, false) => 2,
    }
}

/// How many of `most` warps copy by turns into a ring of so many stages. It divides them: each slot belongs to one warp,
/// which sees every round of its barriers.
pub const fn copying_into(stages: u32, most: u32) -> u32 {
    let mut warps = most;
    while !stages.is_multiple_of(warps) {
        warps -= 1;
    }
    warps
}

/// The largest number of stages up to `stages` into which more than half of `most` warps copy, if there is one.
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

/// Tile of the module: 256 rows against `N` columns (1, 8 or 16; one column is a vector without gaps). A warp has every
/// `PHASES`th stage and of its tiles `SLABS` slabs of 16 rows (2 or 4, and as many phases or more): nothing waits for
/// other warps before the strip ends.
#[derive(Clone, Copy, Debug)]
pub struct WarpTile<const N: usize, const PHASES: usize, const SLABS: usize, L = Tma>(
    PhantomData<L>,
);

impl<const N: usize, const PHASES: usize, const SLABS: usize, L> WarpTile<N, PHASES, SLABS, L> {
    /// Warps that multiply.
    pub const WARPS: usize = BIT_PANEL * PHASES * 4 / SLABS;
    /// Bytes behind the stages, where the sums of the phases meet, two slabs of each warp at a time.
    pub const SUMS: usize = Self::WARPS * 32 * eights(N) * 8 * 4;
}

impl<const N: usize, const PHASES: usize, const SLABS: usize, L: LoaderInfo>
    WarpTile<N, PHASES, SLABS, L>
{
    /// Threads that copy.
    pub const COPIERS: u32 = 32 * copying_warps(L::BY_ONE, true);
}

impl<const N: usize, const PHASES: usize, const SLABS: usize, L: LoaderInfo> Tile
    for WarpTile<N, PHASES, SLABS, L>
{
    /// The warps that multiply, and those that copy.
    const THREADS: u32 = Self::WARPS as u32 * 32 + Self::COPIERS;
    const NEEDS: u32 = L::NEEDS;
    const STANDS_IN: bool = !L::BY_ONE;
    const COLUMNS: u32 = N as u32;
    const ITEMS: u32 = BIT_PANEL as u32;
    const PARTS: u32 = PHASES as u32;
    const BLOCK: (u32, u32) = ((BIT_PANEL * BIT_TILE) as u32, BIT_TILE as u32);
    const SHARED_BYTES: u32 = L::SHARED as u32;
    const ACCESS: u32 = 16;
}

/// Columns of a tile of A whose places are bytes; it has [`BIT_TILE`] rows.
pub const BYTE_DEPTH: usize = 128;
/// Bytes of the counts of such a tile: how many chunks of four slots each bank has.
pub const BYTE_COUNTS: usize = 32;
/// Chunks that such a tile has a multiple of.
pub const BYTE_UNIT: usize = 4;
/// Bytes of such a tile, spread out.
pub const BYTE_TILE: usize = BIT_TILE * BYTE_DEPTH * 2;

/// Tile of the module for A with its places as bytes: `GROUPS` warpgroups of 64 rows each against `N` columns (16, 32
/// or 64).
#[derive(Clone, Copy, Debug)]
pub struct ByteTile<const GROUPS: usize, const N: usize, A = Wgmma, L = Tma>(PhantomData<(A, L)>);

impl<const GROUPS: usize, const N: usize, A: AtomInfo, L: LoaderInfo> ByteTile<GROUPS, N, A, L> {
    /// Threads that copy.
    pub const COPIERS: u32 = 32 * copying_warps(L::BY_ONE, false);
    /// Bytes of B in a stage.
    pub const B_BYTES: usize = BYTE_DEPTH * N * 2;
    /// Tiles of a warpgroup that are spread out: one while another is multiplied, where that goes on by itself.
    pub const SPREAD: usize = if A::ASYNCHRONOUS { 2 } else { 1 };
    /// Bytes in front of the stages: barriers, and each warpgroup's tiles of A spread out.
    pub const HEAD: usize = BIT_HEAD + GROUPS * Self::SPREAD * BYTE_TILE;
}

impl<const GROUPS: usize, const N: usize, A: AtomInfo, L: LoaderInfo> Tile
    for ByteTile<GROUPS, N, A, L>
{
    /// The warpgroups, and those that copy.
    const THREADS: u32 = GROUPS as u32 * 128 + Self::COPIERS;
    const NEEDS: u32 = A::NEEDS | L::NEEDS;
    const STANDS_IN: bool = !A::ASYNCHRONOUS;
    const MIN_BLOCKS: u32 = if A::ASYNCHRONOUS || N < 64 { 4 / GROUPS as u32 } else { 1 };
    const COLUMNS: u32 = N as u32;
    const ITEMS: u32 = GROUPS as u32;
    const BLOCK: (u32, u32) = (64 * GROUPS as u32, BYTE_DEPTH as u32);
    /// All there is, divided among the thread blocks of a multiprocessor. Two stages against 64 columns take more than
    /// half of what compute capability 8.0 has.
    const SHARED_BYTES: u32 = match (A::ASYNCHRONOUS, N) {
        (true, _) => shared_bytes_of(SHARED_KB[0], Self::MIN_BLOCKS),
        (false, 64) => L::SHARED as u32,
        (false, _) => shared_bytes_of(SHARED_KB[1], Self::MIN_BLOCKS),
    };
    const ACCESS: u32 = 16;
}

/// A strip of C, whole or a piece of it along k.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BitPiece {
    /// First row of C.
    pub row: u32,
    /// First column of C.
    pub column: u32,
    /// First tile.
    pub tile: u32,
    /// Tiles from one place along k to the next.
    pub step: u32,
    /// Tile column of the first stage.
    pub place: u32,
    /// Stages.
    pub stages: u32,
    /// Tile rows, at most the warpgroups.
    pub height: u32,
    /// Entries in the rows of the strip; 0 where there is no product at all.
    pub entries: u32,
    /// First slot of partial sums of this strip.
    pub first: u32,
    /// Which piece along k this is, and from bit 16 on how many there are; 1 for a whole strip.
    pub parts: u32,
    /// Index of the arrival counters of this strip.
    pub counter: u32,
    /// Zero.
    pub reserved: u32,
}

/// Parameters of the `bitmap` kernels: `C[m,n] = epilogue(alpha * A[m,k] * B[k,n])`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BitmapParams {
    /// B by boxes of 64 rows; unused where it is not aligned.
    pub b_map: MapWords,
    /// A's words.
    pub words: u64,
    /// A's values.
    pub values: u64,
    /// Where the values of each tile start, in units of 8.
    pub starts: u64,
    /// The same of the first [`BIT_AHEAD`] stages of every thread block: for each of their tiles, and where the last
    /// one ends.
    pub first: u64,
    /// [`BitPiece`]s by rounds: the first of every thread block, the second of every one, ...; without tile rows those
    /// that are none.
    pub pieces: u64,
    /// B, row-major.
    pub b: u64,
    /// C, row-major.
    pub c: u64,
    /// Bias vector, or 0.
    pub bias: u64,
    /// Partial sums: slots x warpgroups x accumulators.
    pub partial: u64,
    /// Arrival counters, one for each warp of a strip that is cut, all zero between launches.
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
    /// Bytes of A that a stage has room for.
    pub slot_bytes: u32,
    /// Rounds of the work list.
    pub rounds: u32,
    /// Bytes from the words to the places of the chunks, in units of 16; 0 where places are bits.
    pub places: u32,
}

const _: () = assert!(size_of::<BitPiece>() == 48);
const _: () = assert!(size_of::<BitmapParams>() == 256);
