//! Conversion of a matrix to a block format: params and launches of its steps, and the workspace, allocated once.

mod geometry;
mod steps;

use std::sync::Arc;

use einsparse_formats::convert::BlockChoice;
use einsparse_kernels::abi::{Divisor, SCAN_THREADS};
use einsparse_kernels::families::{
    CONVERT_FIRST, CONVERT_MARKED, CONVERT_VECTORS, COPIES, ConvertParams, DIGIT_BITS, PIECE,
    SELECT_WORDS, STEP_FILL_CSR, STEP_FILL_DENSE, STEP_INDEX, STEP_MARK, STEP_SCORE, STEP_SELECT,
    STEP_TALLY,
};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, within};
use crate::registry::Dtype;
use geometry::geometry;
use steps::steps;

/// Thread blocks that share the slots of one long block row.
const CHUNKS_ACROSS: usize = 8;

/// Device addresses of one conversion to blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawBlocks {
    /// The dense matrix `[m, k]`, row-major; or the values of CSR.
    pub source: u64,
    /// Row stride of the dense matrix, in elements.
    pub leading: usize,
    /// Row offsets of CSR, u32[m + 1].
    pub offsets: u64,
    /// Columns of CSR, u32; 16-byte aligned, with 4 readable elements after the end.
    pub columns: u64,
    /// Output: block column of each slot, `u32[capacity]`.
    pub slot_columns: u64,
    /// Output: block row of each group, u32[capacity / group].
    pub group_rows: u64,
    /// Output: values `[capacity, bm, bk]`, 16-byte aligned.
    pub values: u64,
    /// Capacity of the outputs in slots, a multiple of the group size. Slots past the capacity are not written.
    pub capacity: usize,
}

/// Source and target of a conversion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Request {
    pub m: usize,
    pub k: usize,
    pub block: (usize, usize),
    pub group: usize,
    /// Selection of blocks of a dense matrix; `None` for a CSR source.
    pub choice: Option<BlockChoice>,
    pub dtype: Dtype,
}

/// Kernels and workspace for matrices of one shape.
#[derive(Debug)]
pub(crate) struct Blocks {
    device: Arc<Device>,
    request: Request,
    /// Params without the addresses of a run.
    params: ConvertParams,
    /// Blocks of one selection and the number of selections; 0 without a selection.
    selection: (usize, usize),
    counts: DeviceMemory,
    starts: DeviceMemory,
    workspace: DeviceMemory,
    kernels: Vec<Kernel<ConvertParams>>,
}

/// Whether `elements` elements are a multiple of 16 bytes.
fn whole(elements: usize, dtype: Dtype) -> bool {
    elements.wrapping_mul(dtype.bytes()).is_multiple_of(16)
}

impl Blocks {
    pub(crate) fn new(device: &Arc<Device>, request: Request) -> Result<Self> {
        let (params, selection) = geometry(&request)?;
        let grid = params.block_rows as usize * params.block_columns.value as usize;
        let pieces = grid * (params.piece_rows.value * params.piece_columns.value) as usize;
        let scores = match request.choice {
            Some(_) => pieces * request.dtype.acc_bytes(),
            None => 0,
        };
        let bitmap = params.block_rows as usize * params.words as usize * 4;
        let digits = selection.1 * SELECT_WORDS as usize * 4;
        let arrivals = (params.block_rows as usize + 1) * 4;
        let sizes = [scores, selection.1 * 16, digits, bitmap, bitmap, bitmap, arrivals];
        let mut total = 0;
        let starts = sizes.map(|bytes: usize| {
            let start = total as u64;
            total += bytes.next_multiple_of(256);
            start
        });
        let workspace = device.zeros(total)?;
        let places = starts.map(|start| workspace.address() + start);
        let [scores, selections, digits, marks, present, ranks, arrivals] = places;
        let counts = device.zeros(params.block_rows as usize * 4)?;
        let starts = device.zeros((params.block_rows as usize + 1) * 4)?;
        let params = ConvertParams {
            scores,
            selections,
            digits,
            marks,
            present,
            ranks,
            arrivals,
            row_arrivals: arrivals + 4,
            counts: counts.address(),
            starts: starts.address(),
            ..params
        };
        Ok(Blocks {
            device: Arc::clone(device),
            kernels: steps(device, &request)?,
            request,
            params,
            selection,
            counts,
            starts,
            workspace,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.workspace.bytes() + self.counts.bytes() + self.starts.bytes()
    }

    pub(crate) fn request(&self) -> &Request {
        &self.request
    }

    /// Sets another group size. [`Blocks::place`] then recomputes the offsets of the block rows.
    pub(crate) fn regroup(&mut self, group: usize) -> Result<()> {
        self.params.group = Divisor::new(within("group", group, MAX_GRID_X)?);
        self.request.group = group;
        Ok(())
    }

    /// Returns the number of kept blocks of each block row, after the work queued so far is done.
    pub(crate) fn counts(&self) -> Result<Vec<u32>> {
        self.read(&self.counts, self.params.block_rows as usize)
    }

    /// Returns the first group of each block row and the number of groups, after the work queued so far is done.
    pub(crate) fn starts(&self) -> Result<Vec<u32>> {
        self.read(&self.starts, self.params.block_rows as usize + 1)
    }

    fn read(&self, memory: &DeviceMemory, words: usize) -> Result<Vec<u32>> {
        let mut values = vec![0; words];
        self.device.read(memory, &mut values)?;
        Ok(values)
    }

    /// Queues the steps that find the blocks and their offsets. No other run may use the workspace meanwhile.
    pub(crate) fn survey(&self, raw: &RawBlocks, queue: Queue<'_>) -> Result<()> {
        self.device.context().set_current()?;
        let slabs = self.params.block_rows as usize * self.params.piece_rows.value as usize;
        match self.request.choice {
            None => {
                let params = self.bound(raw, false)?;
                self.launch(STEP_MARK, false, slabs, 1, queue, &params)
            }
            Some(_) => {
                let aligned = self.aligned(raw);
                let params = self.bound(raw, aligned)?;
                let grid = slabs * chunks(&params);
                self.launch(STEP_SCORE, aligned, grid, 1, queue, &params)?;
                self.select(queue, &params)
            }
        }
    }

    /// Queues the selection by the scores that [`Blocks::survey`] computes.
    fn select(&self, queue: Queue<'_>, params: &ConvertParams) -> Result<()> {
        let (candidates, selections) = self.selection;
        let bits = match self.request.dtype {
            Dtype::F64 => 64,
            _ => 32 + params.position_bits,
        };
        let rounds = if candidates == 0 { 0 } else { bits.div_ceil(DIGIT_BITS) };
        for round in (0..rounds).rev() {
            let first = if round + 1 == rounds { CONVERT_FIRST } else { 0 };
            let params = ConvertParams {
                digit_shift: round * DIGIT_BITS,
                flags: params.flags | first,
                ..*params
            };
            let grid = selections * params.parts.value as usize;
            self.launch(STEP_SELECT, false, grid, 1, queue, &params)?;
        }
        let grid = params.block_rows as usize;
        self.launch(STEP_TALLY, false, grid, 1, queue, params)
    }

    /// Queues the offsets of the block rows for another group size, after [`Blocks::survey`].
    pub(crate) fn place(&self, queue: Queue<'_>) -> Result<()> {
        let params = ConvertParams { flags: self.params.flags | CONVERT_MARKED, ..self.params };
        let grid = params.block_rows as usize;
        self.launch(STEP_TALLY, false, grid, 1, queue, &params)
    }

    /// Queues the pattern and the values, after [`Blocks::survey`]. The outputs hold `raw.capacity` slots.
    pub(crate) fn write(&self, raw: &RawBlocks, queue: Queue<'_>) -> Result<()> {
        self.device.context().set_current()?;
        let aligned = self.aligned(raw);
        let params = self.bound(raw, aligned)?;
        let warps = SCAN_THREADS as usize / 32;
        let rows = params.block_rows as usize;
        let limit = u32::MAX as usize - (SCAN_THREADS * COPIES) as usize;
        let copies = raw.capacity.saturating_mul(params.block_copies.value as usize);
        within("elements of the slots", copies, limit)?;
        if self.request.choice.is_some() {
            let grid = copies.div_ceil((SCAN_THREADS * COPIES) as usize);
            return {
                self.launch(STEP_INDEX, false, rows.div_ceil(warps), 1, queue, &params)?;
                self.launch(STEP_FILL_DENSE, aligned, grid, 1, queue, &params)
            };
        }
        let slots =
            self.request.group * (params.block_columns.value as usize).div_ceil(self.request.group);
        let across = slots.div_ceil(params.chunk_slots as usize).min(CHUNKS_ACROSS);
        let grid = (rows * self.request.block.0).div_ceil(warps);
        self.launch(STEP_FILL_CSR, false, grid, across, queue, &params)
    }

    /// Whether the dense matrix and the output allow 16-byte accesses.
    fn aligned(&self, raw: &RawBlocks) -> bool {
        let Request { k, block, dtype, .. } = self.request;
        let extents = [k, block.1, raw.leading];
        extents.iter().all(|&e| whole(e, dtype)) && (raw.source | raw.values).is_multiple_of(16)
    }

    fn bound(&self, raw: &RawBlocks, aligned: bool) -> Result<ConvertParams> {
        let Request { m, k, block, group, choice, dtype } = self.request;
        if choice.is_some() && m > 1 && raw.leading < k {
            return Err(Error::stride("dense", raw.leading, format_args!("at least {k}")));
        }
        if !raw.capacity.is_multiple_of(group) {
            let allowed = format!("a multiple of the group size {group}");
            return Err(Error::range("capacity", raw.capacity, allowed));
        }
        let vectors = choice.is_none() && whole(block.1, dtype) && raw.values.is_multiple_of(16);
        let wide = if aligned || vectors { 16 / dtype.bytes() } else { 1 };
        let lanes = (block.1.min(PIECE.1 as usize).next_power_of_two() / wide).max(1);
        let across =
            self.params.block_columns.value as usize * self.params.piece_columns.value as usize;
        let each = SCAN_THREADS as usize / lanes;
        Ok(ConvertParams {
            source: raw.source,
            row_bytes: (raw.leading as u64).saturating_mul(dtype.bytes() as u64),
            offsets: raw.offsets,
            columns: raw.columns,
            slot_columns: raw.slot_columns,
            group_rows: raw.group_rows,
            values: raw.values,
            lane_bits: lanes.ilog2(),
            chunks: Divisor::new(across.div_ceil(each) as u32),
            row_copies: Divisor::new((block.1 / wide) as u32),
            block_copies: Divisor::new((block.0 * block.1 / wide) as u32),
            capacity: within("slots", raw.capacity, u32::MAX as usize)?,
            flags: self.params.flags | if vectors { CONVERT_VECTORS } else { 0 },
            ..self.params
        })
    }

    fn launch(
        &self,
        step: u32,
        aligned: bool,
        across: usize,
        down: usize,
        queue: Queue<'_>,
        params: &ConvertParams,
    ) -> Result<()> {
        let fits = |k: &&Kernel<_>| k.row().step == step && (k.row().vector > 1) == aligned;
        let Some(kernel) = self.kernels.iter().find(fits) else {
            let what = format!("step {step} of blocks in {}", self.request.dtype.name());
            return Err(Error::no_kernel(what, []));
        };
        let grid = [within("thread blocks", across, MAX_GRID_X)?, down as u32, 1];
        let grid = Grid::of(grid).early_if(!matches!(step, STEP_SCORE | STEP_MARK));
        queue.launch(kernel, grid, params)
    }
}

/// Thread blocks of a row of pieces; 0 for a matrix without columns.
fn chunks(params: &ConvertParams) -> usize {
    if params.block_columns.value == 0 || params.k == 0 { 0 } else { params.chunks.value as usize }
}
