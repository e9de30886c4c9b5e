//! Launch of the kernels of device module `decode`: one query per head, with a cache whose lengths are known on the
//! device only.

use einsparse_kernels::abi::HALF;
use einsparse_kernels::families::{
    DECODE_GROUP, DECODE_MOST, DecodeParams, decode_chunks, decode_unit,
};
use einsparse_kernels::table::Row;

use super::attention::check;
use super::resident;
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::maps::{Heads, Maps};
use crate::launch::{MAX_GRID_X, Turns, row_bytes, small, within};

/// Extents of an attention with a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecodeExtents {
    pub batch: usize,
    /// Number of heads of keys and values.
    pub key_heads: usize,
    /// Number of query heads per key head.
    pub group: usize,
    /// Max keys of a sequence in the cache.
    pub capacity: usize,
    pub d: usize,
}

impl DecodeExtents {
    /// Number of pairs of a sequence and a key head.
    pub(crate) fn pairs(&self) -> usize {
        self.batch.saturating_mul(self.key_heads)
    }

    /// Number of rows of the queries.
    pub(crate) fn queries(&self) -> usize {
        self.pairs().saturating_mul(self.group)
    }
}

/// Address of a tensor, and its row stride in elements.
pub(crate) type Rows = (u64, usize);

/// Device addresses of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawDecode {
    pub q: Rows,
    /// Cached keys and values.
    pub cache: [Rows; 2],
    /// Keys and values that are appended to the cache.
    pub fresh: Option<[Rows; 2]>,
    pub lengths: u64,
    pub out: Rows,
}

/// Split of the sequences into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    /// Chunks per pair that fill the GPU.
    split: u32,
    /// Max chunks per pair.
    slots: u32,
    /// Number of thread blocks.
    blocks: u32,
}

impl Cut {
    /// Creates the split for a GPU that holds `resident` thread blocks at once.
    fn new(extents: DecodeExtents, resident: usize) -> Result<Self> {
        let DecodeExtents { capacity, d, .. } = extents;
        let pairs = extents.pairs().max(1);
        let unit = decode_unit(d as u32);
        let limit = i32::MAX as usize - (unit * DECODE_MOST) as usize;
        let capacity = within("keys of a sequence", capacity, limit)?;
        let split = (resident / pairs).max(1) as u32;
        // Max chunks over all lengths: `split` chunks fill the GPU, and long sequences have more because chunk length
        // is limited.
        let longest = decode_chunks(unit, capacity, 1).0;
        let slots = longest.max(split).min(capacity.div_ceil(unit).max(1));
        let chunks = pairs.saturating_mul(slots as usize);
        within("chunks of all sequences", chunks, MAX_GRID_X)?;
        Ok(Cut { split, slots, blocks: chunks.min(resident) as u32 })
    }
}

#[derive(Debug)]
pub(crate) struct DecodeLaunch {
    /// End of the last run. All runs share the partial sums, so the next run waits for it.
    turns: Turns,
    kernel: Kernel<DecodeParams>,
    extents: DecodeExtents,
    scale: f32,
    cut: Cut,
    partial: DeviceMemory,
    stats: DeviceMemory,
    zeros: DeviceMemory,
}

impl DecodeLaunch {
    pub(crate) fn new(
        device: &Device,
        row: &'static Row,
        extents: DecodeExtents,
        scale: f64,
    ) -> Result<Self> {
        within("queries of a head of keys", extents.group, DECODE_GROUP as usize)?;
        let cut = Cut::new(extents, resident(device.machine(), row) as usize)?;
        // Sequences of one chunk store no partial sums.
        let parts = match cut.slots {
            1 => 0,
            slots => extents.queries() * slots as usize,
        };
        let room = |bytes: usize| DeviceMemory::alloc(device.context(), parts * bytes);
        Ok(DecodeLaunch {
            turns: Turns::with_counters(device, extents.pairs() * 4)?,
            kernel: Kernel::load(device, row)?,
            extents,
            scale: (scale * std::f64::consts::LOG2_E) as f32,
            cut,
            partial: room(extents.d * 4)?,
            stats: room(8)?,
            zeros: device.zeros(128)?,
        })
    }

    pub(crate) fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    /// Returns the bytes of partial sums and counters in device memory.
    pub(crate) fn bytes(&self) -> usize {
        self.partial.bytes() + self.stats.bytes() + self.turns.counters().bytes()
    }

    pub(crate) fn run(&self, raw: &RawDecode, queue: Queue<'_>) -> Result<()> {
        let DecodeExtents { capacity, d, .. } = self.extents;
        let pairs = self.extents.pairs();
        let [k, v] = raw.cache;
        let fresh = raw.fresh.unwrap_or([(0, d); 2]);
        for (name, (address, leading), rows) in [
            ("q", raw.q, self.extents.queries()),
            ("k", k, pairs * capacity),
            ("v", v, pairs * capacity),
            ("new k", fresh[0], pairs),
            ("new v", fresh[1], pairs),
            ("out", raw.out, self.extents.queries()),
        ] {
            check(name, address, [0, leading], [rows, d])?;
        }
        if self.extents.queries() == 0 {
            return Ok(());
        }
        let params = self.params(raw, fresh)?;
        let grid = Grid::of([self.cut.blocks, 1, 1]).early();
        self.turns
            .queue(self.cut.slots > 1, queue.stream(), || queue.launch(&self.kernel, grid, &params))
    }

    fn params(&self, raw: &RawDecode, fresh: [Rows; 2]) -> Result<DecodeParams> {
        let e = self.extents;
        let bytes = self.row().dtype.bytes();
        let row = |what: &str, (_, leading): Rows| row_bytes(what, leading, bytes);
        let map = |(address, leading): Rows| {
            let heads = Heads {
                address,
                extents: [e.d, e.capacity, e.pairs()],
                strides: [leading, leading * e.capacity],
            };
            let tile = [HALF, self.row().block.1 as usize];
            Maps::of(self.row(), &self.zeros).heads(&heads, tile)
        };
        let [k, v] = raw.cache;
        Ok(DecodeParams {
            k_map: map(k)?,
            v_map: map(v)?,
            lengths: raw.lengths,
            q: raw.q.0,
            out: raw.out.0,
            fresh: fresh.map(|(address, _)| address),
            cache: raw.cache.map(|(address, _)| address),
            cache_pair: raw.cache.map(|(_, leading)| (e.capacity * leading * bytes) as u64),
            partial: self.partial.address(),
            stats: self.stats.address(),
            counters: self.turns.counters().address(),
            cache_row: [row("the keys", k)?, row("the values", v)?],
            fresh_row: [row("new keys", fresh[0])?, row("new values", fresh[1])?],
            q_row: row("the queries", raw.q)?,
            out_row: row("the output", raw.out)?,
            batch: small("sequences", e.batch)?,
            kv_heads: small("heads of keys", e.key_heads)?,
            group: e.group as u32,
            capacity: small("keys of a sequence", e.capacity)?,
            split: self.cut.split,
            slots: self.cut.slots,
            scale: self.scale,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(batch: usize, key_heads: usize, capacity: usize, d: usize) -> DecodeExtents {
        DecodeExtents { batch, key_heads, group: 4, capacity, d }
    }

    /// Tests that `slots` bounds the chunks of every length, and that one sequence fills the GPU.
    #[test]
    fn every_length_has_room() {
        for (batch, key_heads, capacity) in
            [(1, 8, 32_768), (1, 1, 100), (3, 5, 7777), (64, 8, 32_768), (1, 32, 0)]
        {
            for d in [64, 128] {
                let cut = Cut::new(extents(batch, key_heads, capacity, d), 264).unwrap();
                let lengths = (0..=capacity).step_by(61).chain([capacity]);
                let chunks =
                    |length| decode_chunks(decode_unit(d as u32), length as u32, cut.split).0;
                let most = lengths.map(chunks).max().unwrap();
                assert!(most <= cut.slots, "{batch} {key_heads} {capacity} {d}");
                assert!(cut.blocks as usize <= 264);
            }
        }
        let cut = Cut::new(extents(1, 8, 32_768, 128), 264).unwrap();
        assert_eq!((cut.split, cut.slots, cut.blocks), (33, 33, 264));
        let cut = Cut::new(extents(64, 8, 1024, 128), 264).unwrap();
        assert_eq!((cut.split, cut.slots, cut.blocks), (1, 1, 264));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let long = Cut::new(extents(1, 1, i32::MAX as usize, 64), 264).unwrap_err();
        assert!(long.to_string().contains("keys of a sequence"), "{long}");
        let many = Cut::new(extents(1 << 28, 32, 64, 64), 264).unwrap_err();
        assert!(many.to_string().contains("chunks of all sequences"), "{many}");
    }
}
