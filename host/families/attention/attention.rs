//! A kernel of the module `attention`: masks as tiles of keys, tensor maps of queries, keys and values.

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
use crate::launch::maps::{Heads, heads_map};
use crate::launch::{Turns, small, within};

/// A matrix for each head in device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawHeads {
    /// Address of the first element; a multiple of 16 bytes.
    pub address: u64,
    /// Elements from one head to the next, a multiple of 8.
    pub head: usize,
    /// Elements from one row to the next, a multiple of 8.
    pub row: usize,
}

/// Device addresses of one run of a [`SparseAttention`](crate::ops::SparseAttention). Elements of a row are neighbours;
/// heads and rows may be in either order: `[heads, rows, d]` or `[rows, heads, d]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawAttention {
    /// Queries, m rows a head.
    pub q: RawHeads,
    /// Keys, n rows a key head.
    pub k: RawHeads,
    /// Values, n rows a key head.
    pub v: RawHeads,
    /// Output, m rows a head.
    pub out: RawHeads,
    /// Natural logarithms of the sums of exponentials, f32 `[heads, m]`; 0 without.
    pub log_sum: u64,
}

/// Extents of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionExtents {
    pub heads: usize,
    pub key_heads: usize,
    pub m: usize,
    pub n: usize,
    pub d: usize,
}

/// Who computes what, as the kernel reads it.
#[derive(Debug)]
pub(crate) struct AttentionLists {
    pub work: DeviceMemory,
    pub tiles: DeviceMemory,
    pub masks: DeviceMemory,
    /// Rounds of the work list, and thread blocks that take part.
    pub rounds: u32,
    pub blocks: u32,
    /// Partial sums, and queries that are cut.
    pub slots: u32,
    pub counters: u32,
}

impl AttentionLists {
    /// A list that the host has dealt.
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
pub(crate) struct AttentionLaunch {
    /// End of the last run: partial sums are one workspace, so the next run waits for it.
    turns: Turns,
    kernel: Kernel<AttentionParams>,
    extents: AttentionExtents,
    scale: f32,
    lists: AttentionLists,
    partial: DeviceMemory,
    counters: DeviceMemory,
    zeros: DeviceMemory,
}

impl AttentionLaunch {
    pub(crate) fn new(
        device: &Device,
        row: &'static Row,
        extents: AttentionExtents,
        scale: f64,
        lists: AttentionLists,
    ) -> Result<Self> {
        for (what, value) in [
            ("queries", extents.m),
            ("keys", extents.n),
            ("heads", extents.heads),
        ] {
            within(what, value, i32::MAX as usize - STRIP)?;
        }
        let kernel = Kernel::load(device, row)?;
        let chunks = row.columns as usize / HALF;
        let partial = lists.slots as usize * 2 * attention_partial(chunks);
        Ok(AttentionLaunch {
            turns: Turns::new(device)?,
            kernel,
            extents,
            scale: (scale * std::f64::consts::LOG2_E) as f32,
            partial: DeviceMemory::alloc(device.context(), partial)?,
            counters: device.zeros(lists.counters as usize * 8)?,
            zeros: device.zeros(128)?,
            lists,
        })
    }

    pub(crate) fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    /// Device bytes of the mask as the kernel reads it, and of partial sums.
    pub(crate) fn bytes(&self) -> usize {
        let AttentionLists {
            work, tiles, masks, ..
        } = &self.lists;
        let lists = work.bytes() + tiles.bytes() + masks.bytes();
        lists + self.partial.bytes() + self.counters.bytes()
    }

    /// Queues the kernel.
    pub(crate) fn run(&self, raw: &RawAttention, queue: Queue<'_>) -> Result<()> {
        self.run_behind(raw, queue, self.lists.slots > 0, || Ok(()))
    }

    /// Queues what `before` queues, then the kernel. `shared`: runs follow one another.
    pub(crate) fn run_behind(
        &self,
        raw: &RawAttention,
        queue: Queue<'_>,
        shared: bool,
        before: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let AttentionExtents { m, n, heads, d, .. } = self.extents;
        for (name, given, rows) in [
            ("q", &raw.q, m),
            ("k", &raw.k, n),
            ("v", &raw.v, n),
            ("out", &raw.out, m),
        ] {
            given.check(name, rows, d)?;
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
        let AttentionExtents {
            heads,
            key_heads,
            m,
            n,
            ..
        } = self.extents;
        let bytes = self.row().dtype.bytes();
        Ok(AttentionParams {
            q_map: self.map(raw.q, heads, m)?,
            k_map: self.map(raw.k, key_heads, n)?,
            v_map: self.map(raw.v, key_heads, n)?,
            work: self.lists.work.address(),
            tiles: self.lists.tiles.address(),
            masks: self.lists.masks.address(),
            out: raw.out.address,
            log_sum: raw.log_sum,
            partial: self.partial.address(),
            counters: self.counters.address(),
            out_head: raw.out.head as u64 * bytes as u64,
            out_row: small("bytes of a row of the output", raw.out.row * bytes)?,
            m: small("queries", m)?,
            rounds: self.lists.rounds,
            scale: self.scale,
        })
    }

    fn map(&self, given: RawHeads, heads: usize, rows: usize) -> Result<MapWords> {
        let heads = Heads {
            address: given.address,
            extents: [self.extents.d, rows, heads],
            strides: [given.row, given.head],
        };
        heads_map(
            self.row().dtype,
            &heads,
            [HALF, ATTENTION_PIECE],
            &self.zeros,
        )
    }
}

impl RawHeads {
    fn check(&self, name: &str, rows: usize, d: usize) -> Result<()> {
        if !self.address.is_multiple_of(16)
            || !self.head.is_multiple_of(8)
            || !self.row.is_multiple_of(8)
        {
            let reason = format!(
                "address {:#x} must be a multiple of 16 bytes, strides {} and {} multiples of 8 elements",
                self.address, self.head, self.row
            );
            return Err(Error::operand(name, reason));
        }
        if rows > 1 && self.row < d {
            let reason = format!("rows are {} elements apart, and {d} long", self.row);
            return Err(Error::operand(name, reason));
        }
        Ok(())
    }
}

/// Queries as rows of words that the driver module copies.
fn query_words(list: &[Queries]) -> &[[u32; 8]] {
    const { assert!(size_of::<Queries>() == 32) };
    // SAFETY: a `repr(C)` struct of eight u32, without padding (asserted above).
    unsafe { std::slice::from_raw_parts(list.as_ptr().cast(), list.len()) }
}

/// Tiles as rows of words.
fn tile_words(list: &[KeyTile]) -> &[[u32; 4]] {
    const { assert!(size_of::<KeyTile>() == 16) };
    // SAFETY: a `repr(C)` struct of four u32, without padding (asserted above).
    unsafe { std::slice::from_raw_parts(list.as_ptr().cast(), list.len()) }
}
