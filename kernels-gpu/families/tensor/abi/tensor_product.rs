//! The module `tensor_product`: a small sparse tensor of order 3, fixed when planned, times dense operands that share a
//! batch of items. Lists, tiles, and the layout of shared memory.

use crate::abi::tiles;

/// Items of a tile: one per lane of a warp.
pub const TENSOR_ITEMS: u32 = 32;
/// Elements between the rows of a staged operand whose lanes are items. Writes across the rows have no bank conflicts.
pub const TENSOR_STRIDE: u32 = 33;
/// Elements between the items of the left operand in `connected`: its 16-byte rows start in different banks.
pub const TENSOR_LEFT: u32 = 36;
/// Max pairs of a segment in `connected`.
pub const TENSOR_PAIRS: u32 = 16;
/// Bit in a segment's last word: the segment ends its row of the output.
pub const TENSOR_LAST: u32 = 1 << 31;
/// Replaces a row index: the factor is absent.
pub const TENSOR_NONE: u32 = u32::MAX;
/// D is read as its transpose (`connected`, `traces`, `own_connected`, `own_traces`).
pub const FLAG_TRANSPOSED: u32 = 64;
/// A and D allow 16-byte loads, Out allows 16-byte stores.
pub const FLAG_WIDE: u32 = 512;

// The bytes of shared memory depend on the lists: [`TensorProductParams::layout`].
tiles! {
    { COLUMNS: 32, ITEMS: TENSOR_ITEMS, BURST: 4, ACCESS: 1 }
    /// Out, A and Y are `[items, rows]`: one lane per item.
    TensorItems = STEP_TENSOR_ITEMS 1, THREADS: 256, MIN_BLOCKS: 3;
    /// Out and A are `[items, rows, width]`, Y `[items, rows]`, D like A: one lane per channel.
    TensorChannels = STEP_TENSOR_CHANNELS 2, THREADS: 128, MIN_BLOCKS: 6;
    /// Out is `[items, rows]`, A, D and F are `[items, rows, width]`: sums over channels.
    TensorSums = STEP_TENSOR_SUMS 3, THREADS: 128, MIN_BLOCKS: 6;
    /// Out and A are `[items, rows, width]` of different widths, D is `[rows, width, width]`, shared by all items.
    TensorConnected = STEP_TENSOR_CONNECTED 4, THREADS: 128, MIN_BLOCKS: 2;
    /// Out is `[items, rows]`, A and F are `[items, rows, width]` of different widths, D is `[rows, width, width]`:
    /// sums over both widths.
    TensorTraces = STEP_TENSOR_TRACES 5, THREADS: 128, MIN_BLOCKS: 2;
    /// Out is `[rows, width, width]`, A and F are like those of [`TensorTraces`], Y is `[items, rows]`: sums over
    /// items.
    TensorWeights = STEP_TENSOR_WEIGHTS 6, THREADS: 128, MIN_BLOCKS: 2;
    /// [`TensorConnected`] with D `[items, rows, width, width]`: a matrix for each item. One lane per channel of Out.
    TensorOwnConnected = STEP_TENSOR_OWN_CONNECTED 7, THREADS: 128, MIN_BLOCKS: 4;
    /// [`TensorTraces`] with D `[items, rows, width, width]`.
    TensorOwnTraces = STEP_TENSOR_OWN_TRACES 8, THREADS: 128, MIN_BLOCKS: 4;
    /// [`TensorWeights`] with Out `[items, rows, width, width]`.
    TensorOwnWeights = STEP_TENSOR_OWN_WEIGHTS 9, THREADS: 128, MIN_BLOCKS: 4;
}

/// Parameters of the `tensor_product` kernels. Out `(= | +=)` the sum over segments of
/// `D[d] * (sum over pairs of A[a] * (sum over entries of alpha * values[place] * Y[y]))`.
///
/// The lists are u32 words, in this order: segments `(first, count, d, o | TENSOR_LAST)`, sorted by o; pairs
/// `(a, f, first, count)`; entries `(y | a << 16, place)`; the first segment of every row of the output, then the
/// number of segments. A segment is a range of pairs, and a pair a range of entries. Segments of `items` and `sums` are
/// ranges of entries. Entries of `sums` name a pair instead of y. Segments of `weights` name a row of F instead of d.
/// Segments of `traces` name a row of F instead of o, and their entries a row of the output instead of y. The lists of
/// `connected` and `weights` are split into pieces of equal length ([`rows_of_piece`], [`piece_words`]). A piece covers
/// a fixed number of rows of the output and has its own numbering.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TensorProductParams {
    /// Coefficients.
    pub values: u64,
    /// The lists, u32.
    pub lists: u64,
    /// A.
    pub a: u64,
    /// Y.
    pub y: u64,
    /// D; 0 if absent.
    pub d: u64,
    /// F; 0 if absent.
    pub f: u64,
    /// The output.
    pub out: u64,
    /// `weights`: 1024 partial sums for each thread block.
    pub sums: u64,
    /// `weights`: one u32 for each part of the output, zero between runs.
    pub counters: u64,
    /// Scale of every term.
    pub alpha: f64,
    /// Elements between the items of A, Y, D (between its matrices if all items share it), F, Out.
    pub item_strides: [u64; 5],
    /// Elements between the rows of A, D, F, Out.
    pub row_strides: [u64; 4],
    /// Number of items.
    pub items: u32,
    /// Channels of A, and of Out if they are equal.
    pub width: u32,
    /// Channels of Out, if they differ from those of A.
    pub out_width: u32,
    /// Rows of A, Y, D, F, Out.
    pub rows: [u32; 5],
    /// Numbers of segments, pairs and entries; for pieces the max.
    pub counts: [u32; 3],
    /// `FLAG_*`.
    pub flags: u32,
    /// Number of coefficients.
    pub slots: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<TensorProductParams>() == 208);

/// Offsets in shared memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorShared {
    /// Segments, 16 bytes each.
    pub segments: u32,
    /// Pairs: 8 bytes each, 16 for `sums`.
    pub pairs: u32,
    /// Element offsets of the entries, 4 bytes each.
    pub codes: u32,
    /// Coefficients of the entries, one accumulator each.
    pub values: u32,
    /// Private memory of each warp, or of the thread block for `items` and `connected`.
    pub own: u32,
    /// Offsets in `own` of Y, D, F, and the sums or coefficients of pairs; A is first. `own_*` kernels: `own_traces`
    /// has its sums instead of Y; all have a left operand and a matrix's transpose instead of D; `own_connected` has
    /// its output instead of F.
    pub parts: [u32; 4],
    /// Bytes of a warp's private memory; 0 if all warps share one.
    pub own_bytes: u32,
    /// Total bytes.
    pub bytes: u32,
}

const fn aligned(bytes: u32) -> u32 {
    (bytes + 15) & !15
}

/// Rows of the output that share a piece of the lists: the rows of a thread block.
pub const fn rows_of_piece(step: u32, threads: u32) -> u32 {
    match step {
        STEP_TENSOR_CONNECTED => threads / 32,
        _ => 1,
    }
}

/// Words of a piece of the lists, and the words before its last array: the first segment of each row, and the end.
pub const fn piece_words([segments, pairs, entries]: [u32; 3], rows: u32) -> [u32; 2] {
    let starts = segments * 4 + pairs * 4 + entries * 2;
    [(starts + rows + 1 + 3) & !3, starts]
}

impl TensorProductParams {
    /// Layout for a kernel, `STEP_TENSOR_*`, with accumulators of `acc` bytes and `threads` threads.
    pub const fn layout(&self, step: u32, acc: u32, threads: u32) -> TensorShared {
        let [segments, pairs, entries] = self.counts;
        let pair_bytes = match step {
            STEP_TENSOR_ITEMS | STEP_TENSOR_TRACES => 0,
            STEP_TENSOR_SUMS => 16,
            _ => 8,
        };
        let listed = step != STEP_TENSOR_TRACES;
        let segment_bytes = if listed { aligned(segments * 16) } else { 0 };
        let codes = segment_bytes + aligned(pairs * pair_bytes);
        let values = codes + if listed { aligned(entries * 4) } else { 0 };
        let own = values + if listed { aligned(entries * acc) } else { 0 };
        let (parts, own_bytes, total) = self.parts(step, acc, threads / 32);
        TensorShared {
            segments: 0,
            pairs: segment_bytes,
            codes,
            values,
            own,
            parts,
            own_bytes,
            bytes: own + total,
        }
    }

    /// Offsets of the parts after the lists, bytes of a warp's private memory, and bytes in total.
    const fn parts(&self, step: u32, acc: u32, warps: u32) -> ([u32; 4], u32, u32) {
        let pairs = self.counts[1];
        let [a, y, d, f, out] = self.rows;
        let row = TENSOR_ITEMS * acc;
        let tall = TENSOR_STRIDE * acc;
        let left = TENSOR_ITEMS * TENSOR_LEFT * acc;
        match step {
            STEP_TENSOR_ITEMS => {
                let at_y = aligned(a * tall);
                let at_out = at_y + aligned(y * tall);
                let end = at_out + TENSOR_ITEMS * (out | 1) * acc;
                ([at_y, at_out, 0, 0], 0, aligned(end))
            }
            STEP_TENSOR_CHANNELS => {
                let at_d = a * row;
                let at_y = at_d + d * row;
                let at_pairs = at_y + aligned(y * acc);
                let end = at_pairs + aligned(pairs * acc * 2);
                ([at_y, at_d, 0, at_pairs], end, end * warps)
            }
            STEP_TENSOR_SUMS => {
                let at_d = a * row;
                let at_f = at_d + d * row;
                let at_sums = at_f + f * row;
                let end = at_sums + aligned(pairs * acc);
                ([0, at_d, at_f, at_sums], end, end * warps)
            }
            STEP_TENSOR_OWN_CONNECTED | STEP_TENSOR_OWN_TRACES | STEP_TENSOR_OWN_WEIGHTS => {
                let traces = step == STEP_TENSOR_OWN_TRACES;
                let transposed = self.flags & FLAG_TRANSPOSED != 0;
                let at_rows = a * row + row + if transposed { aligned(tall * 32) } else { 0 };
                let rows = if step == STEP_TENSOR_OWN_CONNECTED { out } else { f };
                let at_y = at_rows + rows * row;
                let at_pairs = at_y + aligned(if traces { out } else { y } * acc);
                let coefficients = if traces { 0 } else { aligned(pairs * acc * 2) };
                let end = at_pairs + coefficients;
                ([at_y, a * row, at_rows, at_pairs], end, end * warps)
            }
            STEP_TENSOR_TRACES => {
                let end = left + aligned(out * tall);
                ([0, 0, 0, left], end, end * warps)
            }
            STEP_TENSOR_WEIGHTS => {
                let at_y = left + TENSOR_PAIRS * row;
                let end = at_y + aligned(y * tall);
                ([at_y, 0, 0, left], end, end * warps)
            }
            _ => {
                let shared = aligned(y * tall);
                let end = left + TENSOR_PAIRS * row;
                ([shared, 0, 0, left], end, shared + end * warps)
            }
        }
    }
}
