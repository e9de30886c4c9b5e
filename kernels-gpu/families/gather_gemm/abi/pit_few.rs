//! Module `pit_few`: `C[m,n] = A[m,k] * B[k,n]` with at most 64 rows, where the same kernel finds the empty columns of
//! A. Each thread block scans its part of k, lists the nonempty columns and gathers the matching rows of B. The parts
//! of a tile are thread blocks of a cluster, which add their sums in shared memory, in order. In kernels `pit_few_mma`
//! the parts store their sums in global memory, and the part that arrives last adds them in order.

use crate::abi::{CLUSTER, TMA, Tile};

/// Listed columns of a stage.
pub const FEW_DEPTH: u32 = 32;
/// Max number of thread blocks of a cluster.
pub const FEW_PARTS: u32 = 8;

/// Rows of A allow loads of 16 bytes.
pub const FEW_VECTORS: u32 = 1;
/// Rows of C allow stores of 4 bytes.
pub const FEW_PAIRS: u32 = 2;

/// Tile of `pit_few`: `MT` rows (16, 32 or 64) by 32 columns of C for each of `WARPS` warps. `TOGETHER`: the parts of a
/// tile form a cluster.
#[derive(Clone, Copy, Debug)]
pub struct FewRows<const MT: usize, const WARPS: usize, const TOGETHER: bool = true>;

impl<const MT: usize, const WARPS: usize, const TOGETHER: bool> FewRows<MT, WARPS, TOGETHER> {
    /// Words of a row of A that a lane scans at a time: 64 registers for all rows.
    pub const WORDS: usize = 64 / MT;
    /// Columns of A that a lane scans at a time.
    pub const EACH: u32 = 2 * Self::WORDS as u32;
    /// Columns of A that all lanes scan at a time: a round.
    pub const ROUND: u32 = 32 * WARPS as u32 * Self::EACH;
    /// Capacity for listed columns, whole stages.
    pub const ROOM: u32 = match (TOGETHER, MT) {
        (true, 16) => 1024,
        (true, 32) => 512,
        (true, _) => 256,
        // Limit: 99 KB of shared memory.
        (false, 16) => 640,
        (false, 32) => 384,
        (false, _) => 224,
    };
    /// Stages of the ring.
    pub const STAGES: u32 = match (TOGETHER, MT) {
        (true, 16) => 6,
        (true, _) => 5,
        (false, _) => 4,
    };
    /// Bytes of a row of B in a stage.
    pub const ROW_BYTES: usize = WARPS * 64;
    /// Bytes of a stage.
    pub const STAGE: usize = FEW_DEPTH as usize * Self::ROW_BYTES;
    /// Bytes from one listed column of A to the next: eight of them are stored in different banks.
    pub const A_ROW: usize = MT * 2 + 16;
    /// Atoms of 16 x 8 accumulators of the tile.
    pub const ATOMS: usize = MT / 16 * Self::ATOMS_ACROSS;
    /// Atoms across the tile.
    pub const ATOMS_ACROSS: usize = WARPS * 4;
    /// Bytes of an atom's accumulators.
    pub const ATOM: usize = 512;
    /// Offset of the sums of all parts. They do not overlap the stages, so no part waits until others have read theirs.
    pub const SUMS: usize = Self::STAGES as usize * Self::STAGE;
    /// Offset of the values of listed columns.
    pub const VALUES: usize = Self::SUMS + if TOGETHER { Self::ATOMS * Self::ATOM } else { 0 };
    /// Offset of the list, four bytes a column.
    pub const LIST: usize = Self::VALUES + Self::ROOM as usize * Self::A_ROW;
    /// Offset of the number of columns that each warp has found: of this round, and of the next.
    pub const COUNTS: usize = Self::LIST + Self::ROOM as usize * 4;
    /// Offset of the barrier of the sums, or of the word with the number of parts that have arrived.
    pub const SUMMED: usize = Self::COUNTS + 2 * 128;
}

impl<const MT: usize, const WARPS: usize, const TOGETHER: bool> Tile
    for FewRows<MT, WARPS, TOGETHER>
{
    const NEEDS: u32 = if TOGETHER { CLUSTER | TMA } else { 0 };
    const STANDS_IN: bool = !TOGETHER;
    const THREADS: u32 = 32 * WARPS as u32;
    const COLUMNS: u32 = 32 * WARPS as u32;
    const PARTS: u32 = FEW_PARTS;
    const BURST: u32 = Self::STAGES;
    const BLOCK: (u32, u32) = (MT as u32, 1);
    const SHARED_BYTES: u32 = Self::SUMMED as u32 + 8;
    const ACCESS: u32 = 16;
}

const _: () = assert!(FewRows::<16, 12>::SUMMED + 8 <= 227 << 10);
const _: () = assert!(FewRows::<32, 12>::SUMMED + 8 <= 227 << 10);
const _: () = assert!(FewRows::<64, 8>::SUMMED + 8 <= 227 << 10);
// Max shared memory of a thread block on GPUs of compute capability 8.6, 8.9 and 12.0.
const _: () = assert!(FewRows::<16, 8, false>::SHARED_BYTES <= 99 << 10);
const _: () = assert!(FewRows::<32, 8, false>::SHARED_BYTES <= 99 << 10);
const _: () = assert!(FewRows::<64, 8, false>::SHARED_BYTES <= 99 << 10);
const _: () = assert!(FewRows::<64, 8, false>::ROOM.is_multiple_of(FEW_DEPTH));
const _: () = assert!(FewRows::<16, 8>::ATOMS.is_multiple_of(2 * FEW_PARTS as usize));
const _: () = assert!(FewRows::<16, 12>::ATOMS.is_multiple_of(2 * FEW_PARTS as usize));
const _: () = assert!(FewRows::<64, 8>::ROOM.is_multiple_of(FEW_DEPTH));

/// Parameters of the `pit_few` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PitFewParams {
    /// A, row-major.
    pub a: u64,
    /// B, row-major.
    pub b: u64,
    /// C, row-major.
    pub c: u64,
    /// Bytes from one row of A to the next.
    pub lda_bytes: u32,
    /// Bytes from one row of B to the next.
    pub ldb_bytes: u32,
    /// Bytes from one row of C to the next.
    pub ldc_bytes: u32,
    /// Rows of A and C, at most those of the tile.
    pub m: u32,
    /// Columns of A.
    pub k: u32,
    /// Columns of B and C.
    pub n: u32,
    /// Thread blocks of a tile; 1, 2, 4 or 8 with clusters.
    pub parts: u32,
    /// Columns of A of a part, a multiple of 64.
    pub share: u32,
    /// Addend that sets the top bit of an element whose magnitude is above the threshold, for both halves of a word.
    pub above: u32,
    /// `FEW_*`.
    pub flags: u32,
    /// Sums of all parts of all tiles, if the parts form no cluster.
    pub partial: u64,
    /// Number of parts of each tile that have stored their sums; zero between launches.
    pub counters: u64,
}

const _: () = assert!(size_of::<PitFewParams>() == 80);
