//! Detection on a GPU: nonempty micro-tiles, rows of sequences, choices of experts.

use std::sync::Arc;

use einsparse_kernels::abi::Divisor;
use einsparse_kernels::families::{
    DETECT_ORDERED, DETECT_PAD, DETECT_ROUNDED, DETECT_VECTORS, DetectParams, STEP_BITS,
    STEP_CHOICES, STEP_LENGTHS, STEP_PACK, STEP_TILES, region,
};
use einsparse_kernels::table::{Row, kernels};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, MAX_GRID_Y, Turns, small, within};
use crate::registry::{Dtype, Operation, none_of};
use crate::tensor::DenseMatrix;

/// Input of a detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// Elements of this type.
    Elements(Dtype),
    /// Elements of this many bytes; the values of the micro-tiles are packed.
    Packed(usize),
    /// Bits, 32 per word.
    Bits,
}

impl Looked {
    fn step(self) -> u32 {
        match self {
            Looked::Elements(_) => STEP_TILES,
            Looked::Packed(_) => STEP_PACK,
            Looked::Bits => STEP_BITS,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Looked::Elements(dtype) => dtype.bytes(),
            Looked::Packed(bytes) => bytes,
            Looked::Bits => 1,
        }
    }

    fn bits(self) -> u32 {
        match self {
            Looked::Bits => 1,
            other => 8 * other.bytes() as u32,
        }
    }
}

/// Lists in device memory.
#[derive(Debug)]
pub struct DeviceLists {
    pub lists: DeviceMemory,
    pub counts: DeviceMemory,
    /// Zero between launches.
    pub status: DeviceMemory,
    pub packed: Option<DeviceMemory>,
    /// Order of the launches that write or read the lists.
    pub turns: Arc<Turns>,
}

impl DeviceLists {
    /// Returns whether each buffer has at least the given number of bytes.
    pub(crate) fn hold(&self, [lists, counts, status, packed]: [usize; 4]) -> bool {
        let own = self.packed.as_ref().map_or(0, DeviceMemory::bytes);
        let all = [
            (self.lists.bytes(), lists),
            (self.counts.bytes(), counts),
            (self.status.bytes(), status),
            (own, packed),
        ];
        all.iter().all(|(own, wanted)| own >= wanted)
    }

    pub(crate) fn bytes(&self) -> usize {
        let packed = self.packed.as_ref().map_or(0, DeviceMemory::bytes);
        self.lists.bytes() + self.counts.bytes() + self.status.bytes() + packed
    }
}

/// Kernel chosen for a shape.
#[derive(Debug)]
pub struct DetectLaunch {
    kernel: Kernel<DetectParams>,
    params: DetectParams,
    blocks: u32,
    /// Number of contiguous matrices, each with its own lists.
    items: u32,
    /// Bytes of the status words that thread blocks exchange.
    status_bytes: usize,
    multiprocessors: u32,
}

/// Limits of the L2 prefetch: max bytes, divisor of the bytes of a row (those of a tile of the product), and min number
/// of lists.
const AHEAD_BYTES: usize = 16 << 20;
const AHEAD_STEP: usize = 512;
const AHEAD_PANELS: u32 = 16;

/// Returns the row of a step, or an error with the reason for each row.
fn find(step: u32, bytes: usize, micro: (usize, usize), what: &str) -> Result<&'static Row> {
    let block = (micro.0 as u32, micro.1 as u32);
    let own =
        kernels().iter().filter(|row| row.operation == Operation::Detection && row.step == step);
    let fits = |row: &&Row| row.block == block && row.dtype.bytes() == bytes;
    own.clone().find(fits).ok_or_else(|| {
        let what = format!("micro-tiles of {} x {} of {what}", micro.0, micro.1);
        none_of(own, what, |row| {
            let (h, w) = row.block;
            let bytes = row.dtype.bytes();
            format!("is for {h} x {w} elements of {bytes} bytes")
        })
    })
}

impl DetectLaunch {
    /// Loads the detection of `micro` tiles in a matrix of these extents. Added to a magnitude, `above` sets the top
    /// bit if the element is above the threshold.
    pub(crate) fn tiles(
        device: &Device,
        looked: Looked,
        [rows, columns]: [usize; 2],
        micro: (usize, usize),
        (above, ordered): (u32, bool),
    ) -> Result<Self> {
        let what = match looked {
            Looked::Elements(dtype) => dtype.name(),
            Looked::Packed(2) => "packed 16-bit elements",
            Looked::Packed(_) => "packed elements",
            Looked::Bits => "bits",
        };
        let row = find(looked.step(), looked.bytes(), micro, what)?;
        let r = region(row.block, looked.bits(), row.step);
        let across = columns.div_ceil(r.columns as usize);
        let down = rows.div_ceil(r.rows as usize);
        let (panels, positions, parts) = if micro.0 > 1 {
            (down, columns.div_ceil(micro.1), across)
        } else {
            (columns.div_ceil(micro.1), rows, down)
        };
        let params = DetectParams {
            across: Divisor::new(small("regions of a row", across)?),
            rows: within("rows", rows, i32::MAX as usize)?,
            columns: within("columns", columns, i32::MAX as usize)?,
            panels: small("panels", panels)?,
            stride: small("places of a list", stride(positions))?,
            parts: small("regions of a panel", parts)?,
            above,
            flags: if ordered { DETECT_ORDERED } else { 0 },
            ..DetectParams::default()
        };
        let blocks = within("regions", across.saturating_mul(down), MAX_GRID_X)?;
        Self::made(device, row, params, blocks, panels * (parts + 1) * 8)
    }

    /// Loads the kernel that lists the rows of `count` sequences, which begin `distance` rows apart.
    pub(crate) fn lengths(device: &Device, count: usize, distance: usize) -> Result<Self> {
        let row = find(STEP_LENGTHS, 4, (1, 1), "lengths")?;
        let params = DetectParams {
            rows: within("sequences", count, MAX_GRID_X)?,
            columns: small("rows of a sequence", distance)?,
            panels: 1,
            stride: small("rows", stride(count.saturating_mul(distance)))?,
            ..DetectParams::default()
        };
        Self::made(device, row, params, params.rows, 0)
    }

    /// Loads the kernel that lists `count` choices of `experts`.
    pub(crate) fn choices(device: &Device, count: usize, experts: usize) -> Result<Self> {
        let row = find(STEP_CHOICES, 4, (1, 1), "choices")?;
        let blocks = within("thread blocks", count.div_ceil(row.items as usize), MAX_GRID_X)?;
        let params = DetectParams {
            rows: small("choices", count)?,
            panels: within("experts", experts, row.items as usize)?,
            stride: small("choices of an expert", stride(count))?,
            parts: blocks,
            ..DetectParams::default()
        };
        Self::made(device, row, params, blocks, experts * 8)
    }

    fn made(
        device: &Device,
        row: &'static Row,
        params: DetectParams,
        blocks: u32,
        status_bytes: usize,
    ) -> Result<Self> {
        let kernel = Kernel::load(device, row)?;
        Ok(DetectLaunch {
            kernel,
            params,
            blocks,
            items: 1,
            status_bytes,
            multiprocessors: device.machine().multiprocessors,
        })
    }

    /// Detects in `items` contiguous matrices, whose lists are contiguous too. Required for micro-tiles of one row:
    /// otherwise lists would continue in the next matrix.
    pub(crate) fn batched(self, items: usize) -> Result<Self> {
        Ok(DetectLaunch { items: within("items", items, MAX_GRID_Y)?, ..self })
    }

    /// Rounds packed values of 4 bytes to TF32.
    pub(crate) fn rounded(mut self) -> Self {
        self.params.flags |= DETECT_ROUNDED;
        self
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kernel.row().name
    }

    /// Returns the bytes of lists, counts, status and packed values (0 if none).
    pub(crate) fn room(&self) -> Result<[usize; 4]> {
        let items = self.items as usize;
        let panels = items.saturating_mul(self.params.panels as usize);
        let stride = self.params.stride as usize;
        let words = panels.saturating_mul(stride);
        within("places of all lists", words, isize::MAX as usize / 512)?;
        let tile = self.kernel.row().block.0 as usize * self.kernel.row().dtype.bytes();
        let packed = match self.kernel.row().step {
            STEP_PACK => (words * tile).max(16),
            _ => 0,
        };
        let status = items.saturating_mul(self.status_bytes).max(16);
        Ok([(words * 4).max(16), (panels * 4).max(16), status, packed])
    }

    pub(crate) fn lists(&self, device: &Device) -> Result<DeviceLists> {
        let [lists, counts, status, packed] = self.room()?;
        let packed = (packed > 0).then(|| device.zeros(packed));
        Ok(DeviceLists {
            lists: device.zeros(lists)?,
            counts: device.zeros(counts)?,
            status: device.zeros(status)?,
            packed: packed.transpose()?,
            turns: Arc::new(Turns::new(device)?),
        })
    }

    /// Queues the kernel. The caller serializes runs with the same lists.
    pub(crate) fn run(
        &self,
        source: DenseMatrix,
        lists: &DeviceLists,
        queue: Queue<'_>,
    ) -> Result<()> {
        self.run_ahead_of(None, source, lists, queue)
    }

    /// Queues the kernel before a product with the matrix `next`. A kernel that packs may prefetch `next` into L2.
    pub(crate) fn run_ahead_of(
        &self,
        next: Option<DenseMatrix>,
        source: DenseMatrix,
        lists: &DeviceLists,
        queue: Queue<'_>,
    ) -> Result<()> {
        if self.blocks == 0 || self.items == 0 {
            return Ok(());
        }
        let (ahead, rows, bytes_ahead) = next.map_or((0, 0, 0), |next| self.ahead(&next));
        let bytes = self.row_bytes(source.leading);
        let whole = bytes.is_multiple_of(16) && source.address.is_multiple_of(16);
        let params = DetectParams {
            source: source.address,
            row_bytes: bytes as u64,
            lists: lists.lists.address(),
            counts: lists.counts.address(),
            status: lists.status.address(),
            packed: lists.packed.as_ref().map_or(0, DeviceMemory::address),
            flags: self.params.flags | if whole { DETECT_VECTORS } else { 0 },
            ahead,
            ahead_row_bytes: next.map_or(0, |next| (next.leading * 2) as u64),
            ahead_rows: rows,
            ahead_bytes: bytes_ahead,
            ..self.params
        };
        // The kernel waits for the previous launch before it reads.
        let grid = Grid::of([self.blocks, self.items, 1]).early();
        queue.launch(&self.kernel, grid, &params)
    }

    /// Returns the part of `next`, a matrix of 2-byte elements, to prefetch: address, rows, and bytes of each row. It
    /// is the left columns of all rows, which the first tiles of the product read, as far as they stay in L2. It is
    /// empty with few panels, which would read few of the rows. It is also empty with more than one wave of thread
    /// blocks, which would wait for these bytes.
    fn ahead(&self, next: &DenseMatrix) -> (u64, u32, u32) {
        let wave = self.kernel.row().min_blocks.saturating_mul(self.multiprocessors);
        let packs = self.kernel.row().step == STEP_PACK && self.kernel.row().block.1 == 1;
        let aligned = next.address.is_multiple_of(16) && next.leading.is_multiple_of(8);
        if !packs || !aligned || self.blocks > wave || self.params.panels < AHEAD_PANELS {
            return (0, 0, 0);
        }
        let room = AHEAD_BYTES.checked_div(next.rows).unwrap_or(0);
        let bytes = (next.columns * 2).min(room) / AHEAD_STEP * AHEAD_STEP;
        match (u32::try_from(next.rows), u32::try_from(bytes)) {
            (Ok(rows), Ok(bytes)) if bytes > 0 => (next.address, rows, bytes),
            _ => (0, 0, 0),
        }
    }

    /// Returns the row stride in bytes; rows of bits are words.
    fn row_bytes(&self, leading: usize) -> usize {
        match self.kernel.row().step {
            STEP_BITS => leading * 4,
            _ => leading * self.kernel.row().dtype.bytes(),
        }
    }
}

/// Returns the words of a list of at most `positions` entries.
pub fn stride(positions: usize) -> usize {
    let pad = DETECT_PAD as usize;
    positions.div_ceil(pad).saturating_mul(pad)
}
