//! Softmax cross-entropy on a GPU: a launch that counts labels, and one for loss and gradient.

use einsparse_kernels::families::{
    CROSS_ENTROPY_FEW, CROSS_ENTROPY_SHORT, CROSS_ENTROPY_VECTORS, CrossEntropyParams,
    STEP_COUNT_LABELS, STEP_CROSS_ENTROPY,
};
use einsparse_kernels::table::rows_of;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, Turns, row_bytes, within};
use crate::registry::{Dtype, of_type};
use crate::tensor::DenseMatrix;

/// Max thread blocks that count labels.
const COUNTERS: u32 = 64;

/// Operands of one run. The gradient is optional, and may overwrite the logits.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    pub logits: DenseMatrix,
    pub labels: u64,
    pub loss: u64,
    pub gradient: Option<DenseMatrix>,
}

/// Kernels and their workspace.
#[derive(Debug)]
pub struct CrossEntropyLaunch {
    count: Kernel<CrossEntropyParams>,
    kernel: Kernel<CrossEntropyParams>,
    partial: DeviceMemory,
    /// Thread blocks of both launches.
    blocks: [u32; 2],
    params: CrossEntropyParams,
    turns: Turns,
}

impl CrossEntropyLaunch {
    pub fn new(device: &Device, dtype: Dtype, [rows, classes]: [usize; 2]) -> Result<Self> {
        let load = |step: u32, dtype: Dtype| {
            let own = rows_of::<CrossEntropyParams>().filter(|row| row.step == step);
            let row = of_type(own, dtype, format!("cross-entropy of {}", dtype.name()))?;
            Kernel::load(device, row)
        };
        let kernel = load(STEP_CROSS_ENTROPY, dtype)?;
        let rows = within("rows", rows, MAX_GRID_X)?;
        let classes = within("classes", classes, MAX_GRID_X)?;
        let threads = kernel.row().threads;
        let lanes = match classes <= CROSS_ENTROPY_SHORT {
            true => CROSS_ENTROPY_FEW,
            false => 32,
        };
        let resident = device.machine().multiprocessors * kernel.row().min_blocks;
        let blocks = rows.div_ceil(threads / lanes).clamp(1, resident.max(1));
        Ok(CrossEntropyLaunch {
            count: load(STEP_COUNT_LABELS, Dtype::F32)?,
            partial: device.zeros(blocks as usize * 4)?,
            blocks: [rows.div_ceil(threads).clamp(1, COUNTERS), blocks],
            params: CrossEntropyParams { rows, classes, ..CrossEntropyParams::default() },
            turns: Turns::with_counters(device, 8)?,
            kernel,
        })
    }

    /// Returns the name of the kernel of loss and gradient.
    pub fn variant(&self) -> &'static str {
        self.kernel.row().name
    }

    pub fn run(&self, rows: &Rows, queue: Queue<'_>) -> Result<()> {
        let bytes = self.kernel.row().dtype.bytes();
        let pitch = |matrix: &DenseMatrix| {
            row_bytes("a matrix", matrix.leading, bytes).map(|pitch| pitch.max(1))
        };
        let gradient = rows.gradient.unwrap_or(rows.logits);
        let mut params = CrossEntropyParams {
            logits: rows.logits.address,
            gradient: rows.gradient.map_or(0, |gradient| gradient.address),
            labels: rows.labels,
            partial: self.partial.address(),
            words: self.turns.counters().address(),
            loss: rows.loss,
            logit_bytes: pitch(&rows.logits)?,
            gradient_bytes: pitch(&gradient)?,
            ..self.params
        };
        let row = params.classes as usize * bytes;
        let whole = |at: u64, pitch: u32| at.is_multiple_of(16) && pitch.is_multiple_of(16);
        if row.is_multiple_of(16)
            && whole(params.logits, params.logit_bytes)
            && whole(params.gradient, params.gradient_bytes)
        {
            params.flags |= CROSS_ENTROPY_VECTORS;
        }
        // Both kernels wait for the previous launch before they read or write.
        let [counters, blocks] = self.blocks.map(|n| Grid::of([n, 1, 1]).early());
        self.turns.queue(true, queue.stream(), || {
            queue.launch(&self.count, counters, &params)?;
            queue.launch(&self.kernel, blocks, &params)
        })
    }
}
