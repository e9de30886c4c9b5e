//! Launch of device module `masks`: it converts the flags of an attention mask to a work list that stays in device
//! memory.

use einsparse_kernels::abi::STRIP;
use einsparse_kernels::families::{
    ATTENTION_MASK, DETECT_THREADS, KeyTile, MASK_BESIDE, MASK_FULL, MASK_KEYS, MASK_LIMIT,
    MASK_PART, MASK_PIECE, MASK_QUERIES, MaskParams, Queries, STEP_MASKS, mask_tiles,
};
use einsparse_kernels::table::{Row, kernels};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::attention::AttentionExtents;
use crate::families::attention::attention::AttentionLists;
use crate::families::attention::queries::causal_offset;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, within};
use crate::registry::Operation;

/// Device addresses of flags (0 for none), and bytes between the flags of adjacent masks (0 if all masks share them).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawFlags {
    pub blocks: (u64, usize),
    /// Bytes between adjacent rows of blocks.
    pub block_row: usize,
    pub columns: (u64, usize),
    pub rows: (u64, usize),
    pub diagonals: (u64, usize),
    pub lengths: u64,
    /// First key and end of the keys of each query, pairs of u32.
    pub ranges: u64,
    /// Number of queries, u32; 0 for all.
    pub live: u64,
    /// The flags were complete before the previous launch, a product of varlen rows. The kernel then runs concurrently
    /// with that launch.
    pub beside: bool,
}

/// Kernel with its workspace.
#[derive(Debug)]
pub struct MaskLaunch {
    kernel: Kernel<MaskParams>,
    params: MaskParams,
    blocks: u32,
    /// Kept alive for the addresses in the params.
    counts: DeviceMemory,
    prefix: DeviceMemory,
    status: DeviceMemory,
}

/// Upper bounds of the work list.
struct Room {
    /// Groups of 128 queries per mask, and max tiles per group.
    strips: usize,
    capacity: usize,
    /// Number of groups of all heads.
    groups: u32,
    /// Thread blocks of the attention, and max rounds of its work list.
    blocks: u32,
    rounds: usize,
}

impl Room {
    fn new(extents: AttentionExtents, masks: usize, blocks: u32) -> Result<Self> {
        let AttentionExtents { heads, m, n, .. } = extents;
        within("keys of a mask made on the GPU", n, MASK_KEYS as usize)?;
        within("queries of a mask made on the GPU", m, 1 << 30)?;
        let strips = m.div_ceil(STRIP);
        let capacity = mask_tiles(n.div_ceil(MASK_PIECE as usize));
        let groups = within("groups of 128 queries", strips.saturating_mul(heads), MAX_GRID_X)?;
        let all = strips.saturating_mul(masks);
        let tiles = all.saturating_mul(capacity);
        let what = "tiles of 128 keys of all masks";
        within(what, tiles.saturating_mul(2), MASK_LIMIT as usize)?;
        let cost = u64::from(groups) * (capacity as u64 + u64::from(MASK_QUERIES));
        within("tiles of all heads", cost as usize, i32::MAX as usize)?;
        let blocks = if groups == 0 { 0 } else { blocks };
        // All groups of a share may be empty, so a round costs only `MASK_QUERIES`. Split points move by a few tiles.
        let share = cost.div_ceil(u64::from(blocks.max(1))).max(u64::from(MASK_PART));
        let rounds = (share / u64::from(MASK_QUERIES) + 10).min(u64::from(groups) + 1) as usize;
        Ok(Room { strips, capacity, groups, blocks, rounds })
    }

    /// Allocates the lists that this kernel writes and the attention kernel reads.
    fn lists(&self, device: &Device, masks: usize) -> Result<AttentionLists> {
        let tiles = self.strips * masks * self.capacity;
        let work = self.rounds * self.blocks as usize * size_of::<Queries>();
        Ok(AttentionLists {
            work: device.zeros(work.max(16))?,
            tiles: device.zeros((tiles * size_of::<KeyTile>()).max(16))?,
            masks: DeviceMemory::alloc(device.context(), (tiles * 2 * ATTENTION_MASK).max(16))?,
            rounds: self.rounds as u32,
            blocks: self.blocks,
            slots: 2 * self.blocks + 2,
            counters: self.blocks + 1,
        })
    }
}

impl MaskLaunch {
    /// Allocates work lists of `masks` masks, which share the heads in equal parts, and the lists of the attention
    /// kernel, which has `blocks` thread blocks.
    pub fn new(
        device: &Device,
        extents: AttentionExtents,
        masks: usize,
        causal: Option<i64>,
        blocks: u32,
    ) -> Result<(Self, AttentionLists)> {
        let AttentionExtents { heads, m, n, .. } = extents;
        let own = |row: &&Row| row.operation == Operation::Detection && row.step == STEP_MASKS;
        let Some(row) = kernels().iter().find(own) else {
            return Err(Error::NoKernel {
                indirect: "work lists of attention masks".into(),
                tried: Vec::new(),
            });
        };
        let room = Room::new(extents, masks, blocks)?;
        let all = room.strips * masks;
        let lists = room.lists(device, masks)?;
        let counts = device.zeros((all * 4).max(16))?;
        let prefix = device.zeros((room.groups as usize * 4 + 4).max(16))?;
        let status = device.zeros(16)?;
        let params = MaskParams {
            tiles: lists.tiles.address(),
            masks: lists.masks.address(),
            counts: counts.address(),
            prefix: prefix.address(),
            work: lists.work.address(),
            status: status.address(),
            m: m as u32,
            n: n as u32,
            causal: causal_offset(causal),
            strips: room.strips as u32,
            capacity: room.capacity as u32,
            heads: heads as u32,
            sharing: (heads / masks.max(1)).max(1) as u32,
            group: (heads / extents.key_heads.max(1)).max(1) as u32,
            blocks_of_work: room.blocks,
            rounds: room.rounds as u32,
            count: masks as u32,
            ..MaskParams::default()
        };
        let kernel = Kernel::load(device, row)?;
        let launch = MaskLaunch {
            kernel,
            params,
            blocks: within("groups of 128 queries of all masks", all, MAX_GRID_X)?,
            counts,
            prefix,
            status,
        };
        debug_assert_eq!(row.threads, DETECT_THREADS);
        Ok((launch, lists))
    }

    /// Returns the bytes in device memory, without the lists of the attention.
    pub fn bytes(&self) -> usize {
        self.counts.bytes() + self.prefix.bytes() + self.status.bytes()
    }

    /// Queues the kernel. Without flags of blocks, columns, rows and diagonals, all entries exist. The caller
    /// serializes runs.
    pub fn run(&self, raw: &RawFlags, queue: Queue<'_>) -> Result<()> {
        if self.blocks == 0 || self.params.blocks_of_work == 0 {
            return Ok(());
        }
        let flags = [raw.blocks, raw.columns, raw.rows, raw.diagonals];
        let full = flags.iter().all(|&(address, _)| address == 0);
        let full = if full { MASK_FULL } else { 0 };
        let beside = if raw.beside { MASK_BESIDE } else { 0 };
        let params = MaskParams {
            blocks: raw.blocks.0,
            columns: raw.columns.0,
            rows: raw.rows.0,
            diagonals: raw.diagonals.0,
            lengths: raw.lengths,
            ranges: raw.ranges,
            live: raw.live,
            mask_bytes: flags.map(|(_, bytes)| bytes as u64),
            block_row: raw.block_row as u64,
            flags: full | beside,
            ..self.params
        };
        let grid = Grid::of([self.blocks, 1, 1]).early();
        queue.launch(&self.kernel, grid, &params)
    }
}
