//! The `wgmma` family: a strip of 128 rows of C against up to 256 columns, fed by the tensor copy engine.
//! What a stage of the pipeline holds is written down by the host as a [record](record_words).

use super::{Dtype, Tile};

/// A's pieces row by row (as BSR stores blocks), B as `[k, n]`.
pub const PLAIN: u32 = 0;
/// A's pieces column by column: the product takes A's transpose without copying it.
pub const A_COLUMNS: u32 = 1;
/// B as `[n, k]`.
pub const B_COLUMNS: u32 = 2;

/// A's pieces go from shared memory to registers, as they lie in memory; absent ones are no copy at all. For pieces
/// narrower than a stage.
pub const IN_REGISTERS: u32 = 4;
/// Pieces of one column: a column by column layout by nature, and registers because columns of 32 rows are too short
/// for the places that tensor copies write to.
pub const COLUMN_PIECES: u32 = A_COLUMNS | IN_REGISTERS;
/// C as `[n, m]`.
pub const C_COLUMNS: u32 = 8;
/// The dense matrix stands on the left: `C[n,m] = B[n,k] * A[m,k]`, or `A[k,m]` with [`A_COLUMNS`].
pub const ON_THE_LEFT: u32 = B_COLUMNS | C_COLUMNS;

/// Rows of C of a strip: two warpgroups of 64.
pub const STRIP: usize = 128;
/// Rows of C that one warpgroup computes, the m of every `wgmma`.
pub const HALF: usize = 64;
/// Bytes along k of one row of a stage.
pub const PANEL_BYTES: usize = 128;
/// Steps of 32 bytes along k that a stage is multiplied in, one `wgmma` each.
pub const STEPS: usize = 4;
/// Bytes of A, and of 64 columns of B, that one half and stage hold.
pub const SLAB: usize = HALF * PANEL_BYTES;
/// A record's row of a piece that is not there and reads as zeros.
pub const ABSENT: u32 = 0x7fff_ffff;

/// Tile of the families `wgmma` and `narrow`. A is made of pieces of `PM` x `PK` elements of `BYTES` bytes, as the product
/// sees them; a thread block owns `CHUNKS` x 64 columns.
#[derive(Clone, Copy, Debug)]
pub struct Panel<
    const PM: usize,
    const PK: usize,
    const CHUNKS: usize,
    const ORDER: u32,
    const BYTES: usize = 2,
>;

/// Words of a record in front of its k and rows: mask, A's column in either half, sixteenths that are there.
pub const RECORD_HEAD: usize = 4;

impl<const PM: usize, const PK: usize, const CHUNKS: usize, const ORDER: u32, const BYTES: usize>
    Panel<PM, PK, CHUNKS, ORDER, BYTES>
{
    /// Depth of a stage in elements.
    pub const DEPTH: usize = PANEL_BYTES / BYTES;
    /// Depth of a step in elements.
    pub const STEP_DEPTH: usize = Self::DEPTH / STEPS;
    /// Slices of B that a stage is made of, each with its own place along k.
    pub const SLICES: usize = Self::DEPTH / PK;
    /// Pieces of A in one half and slice.
    pub const PIECES: usize = HALF / PM;
    /// Copies of B in a stage.
    pub const B_COPIES: usize = if ORDER & B_COLUMNS == 0 {
        Self::SLICES * CHUNKS
    } else {
        Self::SLICES
    };
    /// Copies of A in a stage, both halves.
    pub const A_COPIES: usize = 2 * Self::SLICES * Self::PIECES;
    /// Bytes of a stage.
    pub const STAGE: usize = (2 + CHUNKS) * SLAB;
    /// Stages in flight.
    pub const STAGES: usize = match CHUNKS {
        4 => 4,
        2 => 6,
        _ => 8,
    };
    /// Words of a record: [`RECORD_HEAD`], the k of each slice, the row of each piece; whole 16 bytes.
    pub const RECORD: usize = record_words(Self::SLICES, Self::A_COPIES);
    /// Offset of the output buffers, [`SLAB`] bytes of each warpgroup.
    pub const OUT: usize = Self::STAGES * Self::STAGE;
    /// Offset of the barriers: full and empty of each stage, then the mask of each stage.
    pub const BARRIERS: usize = Self::OUT + 2 * SLAB;
}

/// Words of a stage's record. Word 0 is the mask: bit `2 step + half` says that the half multiplies in this step of 32
/// bytes along k. Words 1 and 2: first column of A's pieces in either half. Word 3: bit `8 step + r` says that rows
/// `16 r ..` have a piece in this step. Then the k of each slice, then
/// for each slice, half and piece its first row in A's map, [`ABSENT`] for zeros.
pub const fn record_words(slices: usize, a_copies: usize) -> usize {
    (RECORD_HEAD + slices + a_copies).next_multiple_of(4)
}

impl<const PM: usize, const PK: usize, const CHUNKS: usize, const ORDER: u32, const BYTES: usize>
    Tile for Panel<PM, PK, CHUNKS, ORDER, BYTES>
{
    const THREADS: u32 = 384;
    const MIN_BLOCKS: u32 = 1;
    const COLUMNS: u32 = 64 * CHUNKS as u32;
    const ITEMS: u32 = 1;
    const PARTS: u32 = 1;
    const BURST: u32 = Self::STAGES as u32;
    const BLOCK: (u32, u32) = (PM as u32, PK as u32);
    const ORDER: u32 = ORDER;
    fn shared_bytes(_: Dtype) -> u32 {
        (Self::BARRIERS + Self::STAGES * 24 + 16) as u32
    }
    /// The copy engine wants 16-byte addresses and strides.
    fn vector(dtype: Dtype) -> u32 {
        16 / dtype.bytes() as u32
    }
}

/// Row of a strip that is none: its thread block has no more.
pub const NO_STRIP: u32 = u32::MAX;

/// One strip of C against one column tile, or a piece of it along k.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Strip {
    /// First row of C, or [`NO_STRIP`].
    pub row: u32,
    /// First column of C.
    pub column: u32,
    /// First record.
    pub record: u32,
    /// Stages; 0 writes a strip without entries.
    pub stages: u32,
    /// First slot of partial sums of this strip and column tile.
    pub first: u32,
    /// Which piece along k this is, and from bit 16 on how many there are; 1 for a whole strip.
    pub parts: u32,
    /// Index of the pair of arrival counters of this strip and column tile.
    pub counter: u32,
    /// Which of the batch.
    pub item: u32,
}

impl Strip {
    /// Which piece along k this is.
    pub const fn part(&self) -> u32 {
        self.parts & 0xffff
    }

    /// Pieces along k of the whole strip.
    pub const fn count(&self) -> u32 {
        self.parts >> 16
    }
}

/// A tensor map as the copy engine reads it.
pub type MapWords = [u64; 16];

/// Parameters of the `wgmma` kernels: `C[m,n] = epilogue(alpha * A[m,k] * B[k,n])`. The maps want 64-byte alignment:
/// rustc does not give that to a kernel's parameter, so the device build writes it into every entry.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WgmmaParams {
    /// A's values as a matrix of piece rows.
    pub a_map: MapWords,
    /// B.
    pub b_map: MapWords,
    /// Records of all stages.
    pub records: u64,
    /// [`Strip`]s by rounds: the first of every thread block, the second of every one, ...
    pub strips: u64,
    /// A copy of the first record of each thread block: it does not wait for the strip.
    pub heads: u64,
    /// A's values.
    pub a: u64,
    /// As many zeros as the longest piece column has bytes.
    pub zeros: u64,
    /// C, row-major.
    pub c: u64,
    /// Bias vector, or 0.
    pub bias: u64,
    /// Matrix of C's shape: with [`FLAG_GATE`](super::FLAG_GATE), C is zero where it is not positive.
    pub gate: u64,
    /// Partial sums: slots x halves x accumulators of a warpgroup.
    pub partial: u64,
    /// Arrival counters, two for each strip that is cut, all zero between launches.
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
    /// Bytes from one row of the gate to the next.
    pub gate_bytes: u32,
    /// Rows of B's map from one of the batch to the next.
    pub b_item: u32,
    /// Bytes of C from one of the batch to the next.
    pub c_item: u64,
    /// Bytes of the gate from one of the batch to the next.
    pub gate_item: u64,
}

const _: () = assert!(size_of::<Strip>() == 32);
const _: () = assert!(size_of::<WgmmaParams>() == 392);
