//! Launch of the kernels of device module `attention`: masks as tiles of keys, and tensor maps of queries, keys and
//! values.

use einsparse_kernels::abi::{HALF, MapWords, STRIP};
use einsparse_kernels::families::{
    ATTENTION_PIECE, AttentionParams, KeyTile, Queries, attention_partial,
};
use einsparse_kernels::table::Row;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::attention::queries::Work;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::maps::{Heads, Maps};
use crate::launch::{Turns, aligned_to, row_bytes, small, within};

/// Device addresses of one run of a [`SparseAttention`](crate::ops::SparseAttention), each a multiple of 16 bytes.
/// Strides are distances of adjacent heads and of adjacent rows in elements, multiples of 8. Heads and rows may be in
/// either order, `[heads, rows, d]` or `[rows, heads, d]`. Elements of a row are contiguous.
///
/// ```
/// use einsparse::raw::RawAttention;
/// // 8 heads of 64 elements side by side in each row, as a projection writes them.
/// let (q, strides) = (0x7000_0000, [64, 8 * 64]);
/// let raw = RawAttention::default().q(q).q_strides(strides);
/// assert_eq!(raw.q_strides, [64, 512]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawAttention {
    /// Queries, m rows per head.
    pub q: u64,
    /// Strides of the queries.
    pub q_strides: [usize; 2],
    /// Keys, n rows per key head.
    pub k: u64,
    /// Strides of the keys.
    pub k_strides: [usize; 2],
    /// Values, n rows per key head.
    pub v: u64,
    /// Strides of the values.
    pub v_strides: [usize; 2],
    /// Output, m rows per head.
    pub out: u64,
    /// Strides of the output.
    pub out_strides: [usize; 2],
    /// Natural logarithms of the sums of exponentials, f32 `[heads, m]`; 0 if not required.
    pub log_sum: u64,
}

setters! {
    RawAttention { q: u64, q_strides: [usize; 2], k: u64, k_strides: [usize; 2], v: u64, v_strides: [usize; 2], out: u64, out_strides: [usize; 2], log_sum: u64 }
}

/// Extents of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionExtents {
    pub heads: usize,
    pub key_heads: usize,
    pub m: usize,
    pub n: usize,
    pub d: usize,
}

impl AttentionExtents {
    /// Returns the shape of queries and output, and the shape of keys and values.
    pub(crate) fn shapes(self) -> ([usize; 3], [usize; 3]) {
        let queries = [self.heads, self.m, self.d];
        (queries, [self.key_heads, self.n, self.d])
    }
}

/// Work list in device memory, in the layout of the kernel.
#[derive(Debug)]
pub struct AttentionLists {
    pub work: DeviceMemory,
    pub tiles: DeviceMemory,
    pub masks: DeviceMemory,
    /// Rounds of the work list, and its thread blocks.
    pub rounds: u32,
    pub blocks: u32,
    /// Number of partial sums, and of query groups split along the keys.
    pub slots: u32,
    pub counters: u32,
}

impl AttentionLists {
    /// Uploads a work list that the host has distributed.
    pub(crate) fn new(device: &Device, work: &Work) -> Result<Self> {
        Ok(AttentionLists {
            work: device.upload(query_words(&work.queries))?,
            tiles: device.upload(tile_words(&work.tiles))?,
            masks: device.upload(&work.masks)?,
            rounds: (work.queries.len() / work.blocks.max(1)) as u32,
            blocks: work.blocks as u32,
            slots: work.slots,
            counters: work.counters,
        })
    }
}

#[derive(Debug)]
pub struct AttentionLaunch {
    /// End of the last run. All runs share the partial sums, so the next run waits for it.
    turns: Turns,
    kernel: Kernel<AttentionParams>,
    extents: AttentionExtents,
    scale: f32,
    lists: AttentionLists,
    partial: DeviceMemory,
    zeros: DeviceMemory,
}

impl AttentionLaunch {
    pub fn new(
        device: &Device,
        row: &'static Row,
        extents: AttentionExtents,
        scale: f64,
        lists: AttentionLists,
    ) -> Result<Self> {
        for (what, value) in [("queries", extents.m), ("keys", extents.n), ("heads", extents.heads)]
        {
            within(what, value, i32::MAX as usize - STRIP)?;
        }
        let kernel = Kernel::load(device, row)?;
        let chunks = row.columns as usize / HALF;
        let partial = lists.slots as usize * 2 * attention_partial(chunks);
        Ok(AttentionLaunch {
            turns: Turns::with_counters(device, lists.counters as usize * 8)?,
            kernel,
            extents,
            scale: (scale * std::f64::consts::LOG2_E) as f32,
            partial: DeviceMemory::alloc(device.context(), partial)?,
            zeros: device.zeros(128)?,
            lists,
        })
    }

    pub fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    /// Returns the bytes of work list, masks, partial sums and counters in device memory.
    pub fn bytes(&self) -> usize {
        let AttentionLists { work, tiles, masks, .. } = &self.lists;
        let lists = work.bytes() + tiles.bytes() + masks.bytes();
        lists + self.partial.bytes() + self.turns.counters().bytes()
    }

    pub(crate) fn run(&self, raw: &RawAttention, queue: Queue<'_>) -> Result<()> {
        self.run_behind(raw, queue, self.lists.slots > 0, || Ok(()))
    }

    /// Queues the launches of `before`, then the kernel. `shared`: runs are serialized.
    pub fn run_behind(
        &self,
        raw: &RawAttention,
        queue: Queue<'_>,
        shared: bool,
        before: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let AttentionExtents { m, n, heads, d, .. } = self.extents;
        for (name, address, strides, rows) in [
            ("q", raw.q, raw.q_strides, m),
            ("k", raw.k, raw.k_strides, n),
            ("v", raw.v, raw.v_strides, n),
            ("out", raw.out, raw.out_strides, m),
        ] {
            check(name, address, strides, [rows, d])?;
        }
        if self.lists.blocks == 0 || heads == 0 {
            return Ok(());
        }
        let params = self.params(raw)?;
        let grid = Grid::of([self.lists.blocks, 1, 1]).early();
        self.turns.queue(shared, queue.stream(), || {
            before()?;
            queue.launch(&self.kernel, grid, &params)
        })
    }

    fn params(&self, raw: &RawAttention) -> Result<AttentionParams> {
        let AttentionExtents { heads, key_heads, m, n, .. } = self.extents;
        let bytes = self.row().dtype.bytes();
        Ok(AttentionParams {
            q_map: self.map(raw.q, raw.q_strides, [heads, m])?,
            k_map: self.map(raw.k, raw.k_strides, [key_heads, n])?,
            v_map: self.map(raw.v, raw.v_strides, [key_heads, n])?,
            work: self.lists.work.address(),
            tiles: self.lists.tiles.address(),
            masks: self.lists.masks.address(),
            out: raw.out,
            log_sum: raw.log_sum,
            partial: self.partial.address(),
            counters: self.turns.counters().address(),
            out_head: raw.out_strides[0] as u64 * bytes as u64,
            out_row: row_bytes("the output", raw.out_strides[1], bytes)?,
            m: small("queries", m)?,
            rounds: self.lists.rounds,
            scale: self.scale,
        })
    }

    fn map(
        &self,
        address: u64,
        [head, row]: [usize; 2],
        [heads, rows]: [usize; 2],
    ) -> Result<MapWords> {
        let heads = Heads { address, extents: [self.extents.d, rows, heads], strides: [row, head] };
        Maps::of(self.row(), &self.zeros).heads(&heads, [HALF, ATTENTION_PIECE])
    }
}

/// Validates that addresses and strides are whole vectors, and that rows do not overlap.
pub(super) fn check(
    name: &str,
    address: u64,
    [head, row]: [usize; 2],
    [rows, d]: [usize; 2],
) -> Result<()> {
    let bytes = |elements: usize| elements.saturating_mul(2);
    aligned_to(name, (address, bytes(row)), 16)?;
    if !bytes(head).is_multiple_of(16) {
        return Err(Error::alignment(name, "head stride", bytes(head) as u64, 16));
    }
    if rows > 1 && row < d {
        return Err(Error::stride(name, row, format_args!("at least {d}")));
    }
    Ok(())
}

/// Returns the queries as rows of words, which the driver module can copy.
fn query_words(list: &[Queries]) -> &[[u32; 8]] {
    const { assert!(size_of::<Queries>() == 32) };
    // SAFETY: a `repr(C)` struct of eight u32, without padding (asserted above).
    unsafe { std::slice::from_raw_parts(list.as_ptr().cast(), list.len()) }
}

/// Returns the tiles as rows of words.
fn tile_words(list: &[KeyTile]) -> &[[u32; 4]] {
    const { assert!(size_of::<KeyTile>() == 16) };
    // SAFETY: a `repr(C)` struct of four u32, without padding (asserted above).
    unsafe { std::slice::from_raw_parts(list.as_ptr().cast(), list.len()) }
}
