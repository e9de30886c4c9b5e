//! The module `sddmm_tiles`: products of dense matrices at unstructured nonzeros, on Tensor Cores. Tiles that contain
//! entries are computed densely; a list of *picks* selects the elements of a tile that are entries.

use core::marker::PhantomData;

use crate::abi::{AtomInfo, HALF, LoaderInfo, MapWords, PANEL_BYTES, SMEM_TILE};
use crate::abi::{STEPS, STRIP, Tile, Tma, Wgmma};

/// Parameters of a [`PickTile`]: constants, atom and loader.
pub trait PickForm {
    /// Memory order of X and Y.
    const ORDER: u32;
    /// Bytes of an element: 2, or 4 for TF32.
    const BYTES: usize;
    /// Atom.
    type A: AtomInfo;
    /// Loader.
    type L: LoaderInfo;
}

/// [`PickForm`] as a type.
#[derive(Clone, Copy, Debug)]
pub struct PickOf<const ORDER: u32, const BYTES: usize = 2, A = Wgmma, L = Tma>(
    PhantomData<(A, L)>,
);

impl<const ORDER: u32, const BYTES: usize, A: AtomInfo, L: LoaderInfo> PickForm
    for PickOf<ORDER, BYTES, A, L>
{
    const ORDER: u32 = ORDER;
    const BYTES: usize = BYTES;
    type A = A;
    type L = L;
}

/// Tile of the module `sddmm_tiles`: 128 rows of the output by up to `CHUNKS` chunks of 64
/// gathered columns. A stage is 128 bytes deep.
#[derive(Clone, Copy, Debug)]
pub struct PickTile<const CHUNKS: usize, F>(PhantomData<F>);

/// Rows of a tile whose picks form one list: the rows of a warp.
pub const PICK_ROWS: usize = 16;
/// Lists of a tile.
pub const PICK_GROUPS: usize = STRIP / PICK_ROWS;
/// Max chunks of a tile.
pub const MOST_CHUNKS: usize = 4;
/// Columns of a chunk.
pub const CHUNK: usize = HALF;
/// Bit of a pick that is an entry. A half word without it pads a pair.
pub const PICKED: u32 = 0x8000;

impl<const CHUNKS: usize, F: PickForm> PickTile<CHUNKS, F> {
    /// Elements along k of a stage.
    pub const DEPTH: usize = PANEL_BYTES / F::BYTES;
    /// Bytes of a row of finished sums in shared memory.
    pub const ROW_BYTES: usize = CHUNKS * CHUNK * F::BYTES;
    /// Bytes of a stage: two halves of X, the chunks of Y.
    pub const STAGE: usize = (2 + CHUNKS) * SMEM_TILE;
    /// Stages in flight.
    pub const STAGES: usize = match (F::L::BY_ONE, CHUNKS, F::BYTES) {
        (true, 4, _) => 3,
        (true, 2, 2) => 6,
        (true, 2, _) => 5,
        (true, ..) => 8,
        (false, ..) => (F::L::SHARED - 2 * HALF * Self::ROW_BYTES - 512) / Self::STAGE,
    };
    /// Offset of the finished sums, `HALF` rows for each warpgroup.
    pub const OUT: usize = Self::STAGES * Self::STAGE;
    /// Offset of the barriers, full and empty for each stage.
    pub const BARRIERS: usize = Self::OUT + 2 * HALF * Self::ROW_BYTES;
}

impl<const CHUNKS: usize, F: PickForm> Tile for PickTile<CHUNKS, F> {
    const THREADS: u32 = 384;
    const NEEDS: u32 = F::A::NEEDS | F::L::NEEDS;
    const STANDS_IN: bool = !F::A::ASYNCHRONOUS;
    const COLUMNS: u32 = (CHUNK * CHUNKS) as u32;
    const BURST: u32 = Self::STAGES as u32;
    const ORDER: u32 = F::ORDER;
    const SHARED_BYTES: u32 = (Self::BARRIERS + Self::STAGES * 16) as u32;
    const ACCESS: u32 = 16;
}

/// Half word of an entry in row `row` of a list's rows and column `column` of its tile of `columns` columns: its index
/// among finished sums of `bytes` bytes, whose pieces of 16 bytes are swizzled as in [`swizzle`](crate::frag::swizzle).
pub const fn pick(row: u32, column: u32, columns: u32, bytes: u32) -> u32 {
    let piece = 16 / bytes;
    PICKED | (row * columns + ((column / piece) ^ (row & 7)) * piece + column % piece)
}

/// Row and column of a pick.
pub const fn picked(pick: u32, columns: u32, bytes: u32) -> (u32, u32) {
    let (place, piece) = (pick & (PICKED - 1), 16 / bytes);
    let (row, at) = (place / columns, place % columns);
    (row, ((at / piece) ^ (row & 7)) * piece + at % piece)
}

/// Tile of the output.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Pane {
    /// First row, or [`NO_STRIP`](crate::abi::NO_STRIP).
    pub row: u32,
    /// Bit `half`: set if these 64 rows contain an entry. From bit 8 on: the number of chunks.
    pub live: u32,
    /// Picks of all its lists.
    pub picks: Picks,
    /// First column of each chunk.
    pub columns: [u32; MOST_CHUNKS],
}

/// Range of picks, of a tile or of 16 rows of it: words `start..start + words`, two picks each.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Picks {
    /// First word.
    pub start: u32,
    /// Number of words.
    pub words: u32,
}

/// Parameters of the `sddmm_tiles` kernels: `S[m,n] (= | +=) alpha * P[m,n] * X[m,k] * Y[n,k]` where S has an entry.
/// The maps require 64-byte alignment, as in [`WgmmaParams`](crate::families::gemm::abi::WgmmaParams).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SddmmTilesParams {
    /// X.
    pub x_map: MapWords,
    /// Y.
    pub y_map: MapWords,
    /// [`Pane`]s by rounds: the first of every thread block, then the second of every one, ...
    pub panes: u64,
    /// [`PICK_GROUPS`] lists ([`Picks`]) of each tile, in the order of `panes`.
    pub groups: u64,
    /// For each row of a list, the value index of its first entry minus that entry's index in the list (u32, wrapping),
    /// in the order of `groups`. Always even.
    pub bases: u64,
    /// Pairs of [`pick`]s. A row's run begins with a new pair, at the half that its value index has in an aligned pair
    /// of values. The pairs of a tile begin at a multiple of four words.
    pub picks: u64,
    /// The values of S.
    pub values: u64,
    /// The values of P.
    pub mask: u64,
    /// Scalar factor of the product.
    pub alpha: f64,
    /// Rounds of the work list.
    pub rounds: u32,
    /// Stages along k.
    pub stages: u32,
    /// [`FLAG_ACCUMULATE`](crate::abi::FLAG_ACCUMULATE), [`FLAG_MASK_VALUES`](crate::abi::FLAG_MASK_VALUES), and
    /// [`FLAG_VECTORS`](crate::abi::FLAG_VECTORS) where pairs of values are aligned.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Pane>() == 32);
const _: () = assert!(size_of::<Picks>() == 8);
const _: () = assert!(size_of::<SddmmTilesParams>() == 328);
const _: () = assert!(STEPS * 32 == PANEL_BYTES);
// The indices of a list's sums fit the bits of a pick.
const _: () = assert!(PICK_ROWS * CHUNK * MOST_CHUNKS <= PICKED as usize);
