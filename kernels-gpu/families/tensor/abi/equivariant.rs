//! The module `equivariant`: channel-wise tensor products whose coefficients are constants of the kernel, for single
//! items or the edges of a graph. One kernel computes all their gradients.

use core::marker::PhantomData;

use crate::abi::Tile;

/// Max paths of a kernel.
pub const MOST_PATHS: usize = 23;
/// Number of degrees of an operand: 0 to 3.
pub const DEGREES: usize = 4;
/// Warps of a thread block if a lane has one channel.
pub const EQUIVARIANT_WARPS: u32 = 4;
/// Entries per batch, backward: their sums over channels stay in shared memory until the warps of the row add them.
pub const EQUIVARIANT_BATCH: u32 = 8;
/// Max bytes of these sums for one entry and warp, in both batches.
pub const EQUIVARIANT_SUMS: u32 = 128;
/// The gradient of X is added to the stored values.
pub const FLAG_ADD_DX: u32 = 2;
/// The gradient of Y is added to the stored values.
pub const FLAG_ADD_DY: u32 = 4;
/// Rows of channels begin and end at multiples of 16 bytes, so copies have 16 bytes.
pub const FLAG_WHOLE_PIECES: u32 = 8;
/// Pairs of channels of the gradients of X and W are aligned to their size, so two channels are stored at once.
pub const FLAG_EVEN_GRADIENTS: u32 = 16;
/// Max rows of an entry in shared memory.
pub const MOST_EDGE_ROWS: usize = 132;
/// Replaces the byte offset of a row that is not read.
pub const NO_ROW: u32 = u32::MAX;

/// The paths of a kernel, ordered by the degrees of the output, the first operand and the second operand.
#[derive(Clone, Copy, Debug)]
pub struct Paths {
    /// Degrees `(l1, l2, l3)`; elements past [`Self::count`] are unused.
    pub all: [[usize; 3]; MOST_PATHS],
    /// Number of paths.
    pub count: usize,
}

impl Paths {
    /// Paths of degrees up to `largest` whose sum is even, or odd.
    pub const fn of(largest: usize, odd: bool) -> Paths {
        let mut paths = Paths { all: [[0; 3]; MOST_PATHS], count: 0 };
        let ends = largest + 1;
        let mut at = 0;
        while at < ends * ends * ends {
            let [l3, l1, l2] = [at / (ends * ends), at / ends % ends, at % ends];
            let triangle = l1.abs_diff(l2) <= l3 && l3 <= l1 + l2;
            if triangle && ((l1 + l2 + l3) % 2 == 1) == odd {
                paths.all[paths.count] = [l1, l2, l3];
                paths.count += 1;
            }
            at += 1;
        }
        paths
    }

    /// Number of a path; [`Self::count`] if it is not among these.
    pub const fn number(&self, [l1, l2, l3]: [usize; 3]) -> usize {
        let mut number = 0;
        while number < self.count {
            let [a, b, c] = self.all[number];
            if a == l1 && b == l2 && c == l3 {
                return number;
            }
            number += 1;
        }
        number
    }

    /// Number of paths to outputs of smaller degrees than `degree`.
    pub const fn below(&self, degree: usize) -> usize {
        let mut number = 0;
        while number < self.count && self.all[number][2] < degree {
            number += 1;
        }
        number
    }
}

/// Layout of an entry's rows of channels in the shared memory of a warp. Rows that are used together are a part:
/// forward has one part, backward one for each degree of the output. A part has the rows of the gathered item (X, or
/// the output's gradient), followed by rows of W. Both are padded to copies of 512 bytes: four rows of 32 channels, or
/// two of 64.
#[derive(Clone, Copy, Debug)]
pub struct EdgeRows {
    /// First row of the item and of W in each part, and the end.
    pub first: [[usize; 2]; DEGREES + 1],
    /// Number of parts.
    pub parts: usize,
    /// Entries that are stored or in flight. Once a part is used, the same part of the entry that replaces it is
    /// copied.
    pub entries: usize,
    /// Channels per lane: 1 or 2.
    pub channels: u32,
}

impl EdgeRows {
    /// Layout of a kernel.
    pub const fn of(backward: bool, largest: usize, odd: bool, channels: u32) -> EdgeRows {
        let paths = Paths::of(largest, odd);
        let mut rows = EdgeRows {
            first: [[0; 2]; DEGREES + 1],
            parts: 1,
            entries: match (backward, largest) {
                (false, 1) => 4,
                (true, 1) => 3,
                (true, 3) => 1,
                (true, 2) if channels == 2 => 1,
                _ => 2,
            },
            channels,
        };
        let copied = 4 / channels as usize;
        if backward {
            rows.parts = largest + 1 - odd as usize;
        }
        let mut part = 0;
        let mut end = 0;
        while part < DEGREES {
            let [mut of_item, mut of_w] = [0, 0];
            if !backward && part == 0 {
                of_item = (largest + 1) * (largest + 1);
                of_w = paths.count;
            } else if part < rows.parts {
                let degree = part + odd as usize;
                of_w = paths.below(degree + 1) - paths.below(degree);
                of_item = of_w * (2 * degree + 1);
            }
            rows.first[part] = [end, end + of_item.next_multiple_of(copied)];
            end = rows.first[part][1] + of_w.next_multiple_of(copied);
            part += 1;
        }
        rows.first[DEGREES] = [end, end];
        rows
    }

    /// Number of rows.
    pub const fn count(&self) -> usize {
        self.first[DEGREES][0]
    }

    /// Bytes before the entries: the table of their rows' offsets.
    pub const fn table_bytes(&self) -> u32 {
        (self.count() as u32 * 4).next_multiple_of(EDGE_ROW_BYTES)
    }

    /// Bytes of a row.
    pub const fn row_bytes(&self) -> u32 {
        self.channels * EDGE_ROW_BYTES
    }

    /// Bytes of an entry: its rows, then its components of Y.
    pub const fn entry_bytes(&self) -> u32 {
        self.count() as u32 * self.row_bytes() + EDGE_ROW_BYTES
    }

    /// Bytes of the entries of a warp.
    pub const fn warp_bytes(&self) -> u32 {
        self.entries as u32 * self.entry_bytes()
    }

    /// Bytes of a thread block's table and entries.
    pub const fn shared_bytes(&self) -> u32 {
        self.table_bytes() + equivariant_warps(self.channels) * self.warp_bytes()
    }
}

/// Warps of a thread block with `channels` channels per lane.
pub const fn equivariant_warps(channels: u32) -> u32 {
    EQUIVARIANT_WARPS / channels
}

/// Bytes of 32 channels of a row in shared memory.
pub const EDGE_ROW_BYTES: u32 = 128;

/// Parameters of the `equivariant` kernels. Forward, for each row r (a receiver) and its entries (edges) e:
/// `Out[r,k,u] = sum over e of C[i,j,k] X[other(e),i,u] Y[e,j] W[e,path,u]`. Backward, r is a sender: `X[r]` and its
/// gradient belong to r, the gradient of the output to `other(e)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EquivariantParams {
    /// `[nodes, rows, width]`.
    pub x: u64,
    /// `[entries, components]`.
    pub y: u64,
    /// `[entries, paths, width]`.
    pub w: u64,
    /// The output; backward its gradient, which is an input.
    pub out: u64,
    /// Gradient of X; this and the next two are 0 if they are not required.
    pub dx: u64,
    /// Gradient of Y.
    pub dy: u64,
    /// Gradient of W.
    pub dw: u64,
    /// First position of each row, u32, `rows + 1` elements; 0 if row r has only position r.
    pub starts: u64,
    /// The entry at each position, u32; 0 if it equals the position.
    pub entries: u64,
    /// The other end of the edge at each position, u32; 0 if it equals the position.
    pub others: u64,
    /// Bytes between the items of X, Y, W, Out, and of the gradients of X, Y, W.
    pub item_bytes: [u64; 7],
    /// Bytes between the rows of X, Out, and of the gradient of X.
    pub row_bytes: [u32; 3],
    /// Number of rows r.
    pub rows: u32,
    /// Number of channels.
    pub width: u32,
    /// Degrees of X in bits 0 to 3 and of Y in bits 4 to 7.
    pub degrees: u32,
    /// Required paths, a bit each.
    pub wanted: u32,
    /// Byte offset of each degree of X, of Y, and of the gradient of X; 0 for absent ones.
    pub parts: [[u32; DEGREES]; 3],
    /// Byte offset of each path of Out, of W and of the gradient of W; 0 for absent ones.
    pub paths: [[u32; 3]; MOST_PATHS],
    /// Byte offset of each row of [`EdgeRows`] in its item, or [`NO_ROW`].
    pub rows_at: [u32; MOST_EDGE_ROWS],
    /// `FLAG_*`.
    pub flags: u32,
}

const _: () = assert!(size_of::<EquivariantParams>() == 136 + 28 + 48 + 276 + 8 + 528);

/// The step of a kernel: direction, largest degree, whether sums of degrees are odd, and channels per lane.
pub const fn equivariant_step(backward: bool, largest: u32, odd: bool, channels: u32) -> u32 {
    160 + (channels - 1) * 16 + backward as u32 * 8 + largest * 2 + odd as u32
}

/// Parameters of an [`Equivariant`].
pub trait EquivariantForm {
    /// Largest degree.
    const LARGEST: u32;
    /// The sums of degrees are odd.
    const ODD: bool;
    /// Thread blocks that a multiprocessor holds.
    const BLOCKS: u32;
}

/// [`EquivariantForm`] as a type.
#[derive(Clone, Copy, Debug)]
pub struct EquivariantOf<const LARGEST: u32, const ODD: bool, const BLOCKS: u32>;

impl<const LARGEST: u32, const ODD: bool, const BLOCKS: u32> EquivariantForm
    for EquivariantOf<LARGEST, ODD, BLOCKS>
{
    const LARGEST: u32 = LARGEST;
    const ODD: bool = ODD;
    const BLOCKS: u32 = BLOCKS;
}

/// The product: a warp has one row and 32 channels. `BACKWARD`: its gradients. One warp for each chunk of 32 lanes'
/// channels, up to [`equivariant_warps`], share a row. A lane has one channel, or two neighboring ones, which share the
/// terms that depend on the entry alone.
#[derive(Clone, Copy, Debug)]
pub struct Equivariant<const BACKWARD: bool, const CHANNELS: usize, F>(PhantomData<F>);

impl<const BACKWARD: bool, const CHANNELS: usize, F: EquivariantForm> Tile
    for Equivariant<BACKWARD, CHANNELS, F>
{
    const THREADS: u32 = 32 * equivariant_warps(CHANNELS as u32);
    const MIN_BLOCKS: u32 = F::BLOCKS;
    const COLUMNS: u32 = 32 * CHANNELS as u32;
    const ITEMS: u32 = if BACKWARD { 1 } else { EQUIVARIANT_WARPS };
    const STEP: u32 = equivariant_step(BACKWARD, F::LARGEST, F::ODD, CHANNELS as u32);
    const SHARED_BYTES: u32 = EdgeRows::of(BACKWARD, F::LARGEST as usize, F::ODD, CHANNELS as u32)
        .shared_bytes()
        + BACKWARD as u32
            * equivariant_warps(CHANNELS as u32)
            * EQUIVARIANT_BATCH
            * EQUIVARIANT_SUMS;
    const ACCESS: u32 = 1;
}
