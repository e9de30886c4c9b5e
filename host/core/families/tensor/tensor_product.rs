//! Tensor products with a small sparse tensor: lists of the kernel, and the launch.

mod lists;

use einsparse_kernels::abi::{FLAG_ACCUMULATE, Operation};
use einsparse_kernels::families::{
    FLAG_TRANSPOSED, FLAG_WIDE, STEP_TENSOR_CHANNELS, STEP_TENSOR_CONNECTED, STEP_TENSOR_ITEMS,
    STEP_TENSOR_OWN_CONNECTED, STEP_TENSOR_OWN_TRACES, STEP_TENSOR_OWN_WEIGHTS, STEP_TENSOR_SUMS,
    STEP_TENSOR_TRACES, STEP_TENSOR_WEIGHTS, TENSOR_ITEMS, TENSOR_STRIDE, TensorProductParams,
};
use einsparse_kernels::table::{Row, kernels};

pub(crate) use lists::{Lists, Term};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Refusal, Result};
use crate::indirect::TensorProductKind;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, MAX_GRID_Y, Turns, within};
use crate::registry::Dtype;

/// Extents of a tensor product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CouplingShape {
    pub(crate) kind: TensorProductKind,
    pub(crate) transposed: bool,
    /// Whether each item has its own matrices.
    pub(crate) own: bool,
    pub(crate) accumulate: bool,
    pub(crate) items: usize,
    /// Channels of A, and those of the output, or of F if they differ.
    pub(crate) widths: (usize, usize),
    /// Rows of A, Y, D, F and the output; 0 for absent operands.
    pub(crate) rows: [usize; 5],
    /// Number of values of the sparse tensor.
    pub(crate) slots: usize,
}

/// Device addresses and row strides of A, Y, D, F and the output; zeros for absent operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawCouplings {
    pub(crate) values: u64,
    pub(crate) operands: [(u64, usize); 5],
    pub(crate) alpha: f64,
}

/// Kernel with its lists in device memory.
#[derive(Debug)]
pub(crate) struct CouplingLaunch {
    kernel: Kernel<TensorProductParams>,
    lists: DeviceMemory,
    /// Partial sums over all items. The counters in `turns` count the arrived thread blocks.
    sums: Option<DeviceMemory>,
    turns: Turns,
    params: TensorProductParams,
    totals: [u32; 3],
    grid: [u32; 3],
    shared: u32,
}

/// Returns the row for a kind, an element type, and whether each item has its own matrices.
pub(crate) fn row_for(kind: (TensorProductKind, bool), dtype: Dtype) -> Option<&'static Row> {
    let step = match kind {
        (TensorProductKind::Items, _) => STEP_TENSOR_ITEMS,
        (TensorProductKind::Channels, _) => STEP_TENSOR_CHANNELS,
        (TensorProductKind::Sums, _) => STEP_TENSOR_SUMS,
        (TensorProductKind::Connected, false) => STEP_TENSOR_CONNECTED,
        (TensorProductKind::Connected, true) => STEP_TENSOR_OWN_CONNECTED,
        (TensorProductKind::Traces, false) => STEP_TENSOR_TRACES,
        (TensorProductKind::Traces, true) => STEP_TENSOR_OWN_TRACES,
        (TensorProductKind::Weights, false) => STEP_TENSOR_WEIGHTS,
        (TensorProductKind::Weights, true) => STEP_TENSOR_OWN_WEIGHTS,
    };
    let fits = |row: &&Row| {
        row.operation == Operation::TensorProduct && row.step == step && row.dtype == dtype
    };
    kernels().iter().find(fits)
}

/// Returns the params that are constant over runs. Strides and addresses are zero.
fn params_of(shape: &CouplingShape, lists: &Lists) -> Result<TensorProductParams> {
    let small = |what: &str, value: usize| within(what, value, u32::MAX as usize);
    let mut rows = [0; 5];
    for (to, &from) in rows.iter_mut().zip(&shape.rows) {
        *to = small("rows", from)?;
    }
    let mut flags = 0;
    flags |= if shape.accumulate { FLAG_ACCUMULATE } else { 0 };
    flags |= if shape.transposed { FLAG_TRANSPOSED } else { 0 };
    Ok(TensorProductParams {
        values: 0,
        lists: 0,
        a: 0,
        y: 0,
        d: 0,
        f: 0,
        out: 0,
        sums: 0,
        counters: 0,
        alpha: 1.0,
        item_strides: [0; 5],
        row_strides: [0; 4],
        items: small("items", shape.items)?,
        width: small("channels", shape.widths.0)?,
        out_width: small("channels", shape.widths.1)?,
        rows,
        counts: lists.counts,
        flags,
        slots: small("values", shape.slots)?,
        reserved: 0,
    })
}

/// Returns the shared memory of a launch, or a refusal if it exceeds `limit`, the maximum of a thread block.
pub(crate) fn shared_bytes(
    row: &Row,
    shape: &CouplingShape,
    lists: &Lists,
    limit: u32,
) -> Result<u32, Refusal> {
    let refuse = |reason: String| Refusal::of(row.name, reason);
    let params = params_of(shape, lists).map_err(|e| refuse(e.to_string()))?;
    let tall = shape.rows[0].max(shape.rows[1]) * TENSOR_STRIDE as usize * row.dtype.acc_bytes();
    if shape.kind == TensorProductKind::Items && tall > u16::MAX as usize {
        return Err(refuse(format!(
            "operands have {} and {} rows, of which 16 bits do not tell the places",
            shape.rows[0], shape.rows[1]
        )));
    }
    // Computed in u64 first, because lists of millions of words overflow the u32 sums of the layout.
    let words =
        u64::from(lists.counts.iter().sum::<u32>()) + shape.rows.iter().sum::<usize>() as u64;
    let bytes = match words {
        0..=0xffff => {
            let layout = params.layout(row.step, row.dtype.acc_bytes() as u32, row.threads);
            u64::from(layout.bytes)
        }
        words => words.saturating_mul(4),
    };
    if bytes <= u64::from(limit) {
        return Ok(bytes as u32);
    }
    Err(refuse(format!(
        "{} entries and {} rows need at least {bytes} bytes of shared memory, of which a thread block has {limit}",
        lists.counts[2],
        shape.rows.iter().sum::<usize>()
    )))
}

/// Returns the grid: one thread block per tile, or, if warps iterate over items, as many as are resident at once.
fn grid(device: &Device, row: &Row, shape: &CouplingShape, shared: u32) -> Result<[u32; 3]> {
    let facts = device.facts();
    let warps = row.threads as usize / 32;
    let tiles = shape.items.div_ceil(TENSOR_ITEMS as usize);
    let across = |width: usize| width.div_ceil(32);
    if shape.own {
        let each = (facts.smem_per_sm / (shared + 1024)).clamp(1, row.min_blocks);
        let chunks = match shape.kind {
            TensorProductKind::Traces => 1,
            _ => across(shape.widths.1),
        };
        let tasks = (shape.items * chunks).div_ceil(warps).min(MAX_GRID_X);
        return Ok([(facts.sms * each).min(tasks as u32), 1, 1]);
    }
    Ok(match shape.kind {
        TensorProductKind::Items => [within("items", tiles, MAX_GRID_X)?, 1, 1],
        TensorProductKind::Channels | TensorProductKind::Sums => {
            let each = (facts.smem_per_sm / (shared + 1024)).clamp(1, 16);
            let chunks = match shape.kind {
                TensorProductKind::Channels => shape.widths.0.div_ceil(32),
                _ => 1,
            };
            let tasks = (shape.items * chunks).div_ceil(warps).min(MAX_GRID_X);
            [(facts.sms * each).min(tasks as u32), 1, 1]
        }
        TensorProductKind::Connected => [
            within("items", tiles, MAX_GRID_X)?,
            within("rows", shape.rows[4].div_ceil(warps), MAX_GRID_Y)?,
            within("channels", across(shape.widths.1), MAX_GRID_Y)?,
        ],
        TensorProductKind::Traces => [within("items", tiles, MAX_GRID_X)?, 1, 1],
        TensorProductKind::Weights => {
            let parts = across(shape.widths.0) * across(shape.widths.1);
            // A few thread blocks per multiprocessor, because each stores 1024 partial sums that are added up later.
            let wanted = (facts.sms as usize * 4).div_ceil((parts * shape.rows[4]).max(1));
            let most = tiles.div_ceil(warps).max(1);
            [
                wanted.clamp(1, most) as u32,
                within("rows", shape.rows[4], MAX_GRID_Y)?,
                within("channels", parts, MAX_GRID_Y)?,
            ]
        }
    })
}

impl CouplingLaunch {
    pub(crate) fn new(
        device: &Device,
        row: &'static Row,
        shape: &CouplingShape,
        lists: &Lists,
    ) -> Result<std::result::Result<Self, Refusal>> {
        let limit = device.facts().smem_per_block_optin;
        let shared = match shared_bytes(row, shape, lists, limit) {
            Ok(shared) => shared,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let params = params_of(shape, lists)?;
        let grid = grid(device, row, shape, shared)?;
        let (sums, parts) = match shape.kind {
            TensorProductKind::Weights if !shape.own => {
                let parts = grid[1] as usize * grid[2] as usize;
                let bytes = parts * grid[0] as usize * 1024 * row.dtype.acc_bytes();
                (Some(DeviceMemory::alloc(device.context(), bytes)?), parts)
            }
            _ => (None, 0),
        };
        Ok(Ok(CouplingLaunch {
            kernel: Kernel::with_shared(device, row, shared)?,
            lists: device.upload(&lists.words)?,
            sums,
            turns: Turns::with_counters(device, parts * 4)?,
            params,
            totals: lists.totals,
            grid,
            shared,
        }))
    }

    pub(crate) fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    pub(crate) fn bytes(&self) -> usize {
        let sums = self.sums.as_ref().map_or(0, DeviceMemory::bytes);
        self.lists.bytes() + sums + self.turns.counters().bytes()
    }

    /// Geometry of the launch, for `explain`.
    pub(crate) fn describe(&self) -> String {
        let [segments, pairs, entries] = self.totals;
        let [x, y, z] = self.grid;
        format!(
            "{segments} segments, {pairs} pairs, {entries} entries; {x} x {y} x {z} thread blocks of {} threads, {} \
             bytes shared",
            self.row().threads,
            self.shared
        )
    }

    /// Sets strides and addresses, and the flags that depend on them.
    fn bound(&self, raw: &RawCouplings) -> TensorProductParams {
        let [a, y, d, f, out] = raw.operands;
        let mut p = self.params;
        (p.values, p.lists) = (raw.values, self.lists.address());
        (p.a, p.y, p.d, p.f, p.out) = (a.0, y.0, d.0, f.0, out.0);
        p.alpha = raw.alpha;
        p.sums = self.sums.as_ref().map_or(0, DeviceMemory::address);
        p.counters = self.turns.counters().address();
        // Whether the rows of a matrix of D are channels of the output, or of F.
        let traces = [STEP_TENSOR_TRACES, STEP_TENSOR_OWN_TRACES].contains(&self.row().step);
        let turned = traces != (p.flags & FLAG_TRANSPOSED != 0);
        let (width, out_width) = (u64::from(p.width), u64::from(p.out_width));
        let stride = |of: usize| {
            let (leading, rows) = (raw.operands[of].1 as u64, u64::from(p.rows[of]));
            let matrix = leading * if turned { out_width } else { width };
            match (self.row().step, of) {
                (STEP_TENSOR_ITEMS, _) | (_, 1) => leading,
                (STEP_TENSOR_SUMS | STEP_TENSOR_TRACES | STEP_TENSOR_OWN_TRACES, 4) => leading,
                // Matrices are stored contiguously: all shared matrices, or those of an item.
                (STEP_TENSOR_CONNECTED | STEP_TENSOR_TRACES, 2) => matrix,
                (STEP_TENSOR_OWN_CONNECTED | STEP_TENSOR_OWN_TRACES, 2) => matrix * rows,
                (STEP_TENSOR_WEIGHTS, 4) => leading * width,
                (STEP_TENSOR_OWN_WEIGHTS, 4) => leading * width * rows,
                _ => leading * rows,
            }
        };
        p.item_strides = [0, 1, 2, 3, 4].map(stride);
        p.row_strides = [a, d, f, out].map(|operand| operand.1 as u64);
        let even = |(address, leading): (u64, usize)| {
            address.is_multiple_of(16) && leading.is_multiple_of(4)
        };
        let widths = p.width.is_multiple_of(4) && p.out_width.is_multiple_of(4);
        // Operands that are accessed by vectors. The widths must be multiples of 4 if each lane holds four channels.
        let (operands, fours) = match self.row().step {
            STEP_TENSOR_CONNECTED => ([d, d, out], true),
            STEP_TENSOR_TRACES | STEP_TENSOR_WEIGHTS => ([a, d, f], true),
            STEP_TENSOR_OWN_CONNECTED | STEP_TENSOR_OWN_TRACES | STEP_TENSOR_OWN_WEIGHTS => {
                ([a, a, f], false)
            }
            _ => ([a, d, f], false),
        };
        if operands.into_iter().all(even) && (widths || !fours) {
            p.flags |= FLAG_WIDE;
        }
        p
    }

    /// Queues the kernel.
    pub(crate) fn run(&self, raw: &RawCouplings, queue: Queue<'_>) -> Result<()> {
        if self.grid.contains(&0) {
            return Ok(());
        }
        let params = self.bound(raw);
        let grid = Grid::of(self.grid);
        self.turns.queue(self.sums.is_some(), queue.stream(), || {
            queue.launch(&self.kernel, grid, &params)
        })
    }
}
