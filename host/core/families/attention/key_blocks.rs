//! Launch of device kernels `key_blocks`: it converts the key blocks that queries name to a work list that stays in
//! device memory.

use einsparse_kernels::abi::STRIP;
use einsparse_kernels::families::{
    ATTENTION_MASK, BLOCK_MASKS, KeyBlocksParams, KeyTile, MASK_KEYS, MASK_LIMIT, MASK_PIECE,
    Queries, mask_tiles,
};
use einsparse_kernels::table::rows_of;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::attention::AttentionExtents;
use crate::families::attention::attention::AttentionLists;
use crate::families::attention::queries::causal_offset;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_Y, within};

/// Device addresses of the blocks and lengths of a run; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawKeyBlocks {
    pub blocks: u64,
    /// Bytes between the lists of adjacent masks (0 if all masks share one list), and between adjacent rows.
    pub mask_bytes: usize,
    pub row_bytes: usize,
    pub lengths: u64,
}

#[derive(Debug)]
pub struct KeyBlocksLaunch {
    kernel: Kernel<KeyBlocksParams>,
    params: KeyBlocksParams,
    /// Groups of 128 queries per mask, and masks.
    grid: [u32; 2],
}

impl KeyBlocksLaunch {
    /// Allocates work lists of `masks` masks, which share the heads in equal parts, and the lists of the attention
    /// kernel. Each group of 64 queries names at most `most` blocks. The attention kernel has at most `blocks` thread
    /// blocks.
    pub(crate) fn new(
        device: &Device,
        extents: AttentionExtents,
        masks: usize,
        (most, causal): (usize, Option<i64>),
        blocks: u32,
    ) -> Result<(Self, AttentionLists)> {
        let AttentionExtents { heads, m, n, .. } = extents;
        within("keys of a mask made on the GPU", n, MASK_KEYS as usize)?;
        let (strips, pieces) = (m.div_ceil(STRIP), n.div_ceil(MASK_PIECE as usize));
        let capacity = mask_tiles(most.saturating_mul(2).min(pieces));
        let groups = strips.saturating_mul(heads);
        let groups = within("groups of 128 queries", groups, i32::MAX as usize)?;
        let room = strips.saturating_mul(masks).saturating_mul(capacity.max(BLOCK_MASKS as usize));
        within("tiles of 128 keys of all masks", room, MASK_LIMIT as usize)?;
        let blocks = groups.min(blocks);
        let rounds = groups.div_ceil(blocks.max(1));
        let (all, work) = (strips * masks, (rounds * blocks) as usize);
        let lists = AttentionLists {
            work: device.zeros((work * size_of::<Queries>()).max(16))?,
            tiles: device.zeros((all * capacity * size_of::<KeyTile>()).max(16))?,
            masks: DeviceMemory::alloc(
                device.context(),
                (all * BLOCK_MASKS as usize * ATTENTION_MASK).max(16),
            )?,
            rounds,
            blocks,
            slots: 0,
            counters: 0,
        };
        let Some(row) = rows_of::<KeyBlocksParams>().next() else {
            return Err(Error::no_kernel("work lists of blocks of keys", []));
        };
        let params = KeyBlocksParams {
            tiles: lists.tiles.address(),
            masks: lists.masks.address(),
            work: lists.work.address(),
            m: within("queries of a mask made on the GPU", m, 1 << 30)?,
            n: n as u32,
            causal: causal_offset(causal),
            most: within("blocks that 64 queries name", most, i32::MAX as usize)?,
            capacity: capacity as u32,
            sharing: (heads / masks.max(1)) as u32,
            group: (heads / extents.key_heads.max(1)) as u32,
            groups,
            room: work as u32,
            ..KeyBlocksParams::default()
        };
        let grid = [strips as u32, within("masks", masks, MAX_GRID_Y)?];
        let kernel = Kernel::load(device, row)?;
        Ok((KeyBlocksLaunch { kernel, params, grid }, lists))
    }

    /// Queues the kernel. The caller serializes runs.
    pub(crate) fn run(&self, raw: &RawKeyBlocks, queue: Queue<'_>) -> Result<()> {
        let [strips, masks] = self.grid;
        if self.params.groups == 0 {
            return Ok(());
        }
        let params = KeyBlocksParams {
            blocks: raw.blocks,
            lengths: raw.lengths,
            mask_bytes: raw.mask_bytes as u64,
            row_bytes: raw.row_bytes as u64,
            ..self.params
        };
        queue.launch(&self.kernel, Grid::of([strips, masks, 1]).early(), &params)
    }
}
