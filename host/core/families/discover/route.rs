//! Routing on a GPU: a router's choices sorted by expert, and the sums of the experts' outputs.

use std::ops::Range;
use std::sync::Arc;

use einsparse_kernels::abi::Divisor;
use einsparse_kernels::families::{
    ROUTE_BLOCKS, ROUTE_EXPERTS, ROUTE_PANEL, ROUTE_RECORD, ROUTE_SHARE, RouteParams,
    STEP_ROUTE_COUNT, STEP_ROUTE_GATE, STEP_ROUTE_GATE_GRADIENT, STEP_ROUTE_GRADIENT,
    STEP_ROUTE_PLACE, STEP_ROUTE_SUM,
};
use einsparse_kernels::table::rows_of;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{Turns, aligned, row_bytes, small, within};
use crate::registry::{Dtype, of_type};
use crate::tensor::DenseMatrix;

#[derive(Debug)]
struct Step {
    kernel: Kernel<RouteParams>,
}

impl Step {
    fn new(device: &Device, step: u32, dtype: Dtype) -> Result<Self> {
        let own = rows_of::<RouteParams>().filter(|row| row.step == step);
        let what = format!("rows of {} routed to experts", dtype.name());
        let row = of_type(own, dtype, what)?;
        let kernel = Kernel::load(device, row)?;
        Ok(Step { kernel })
    }

    fn run(&self, blocks: u32, params: &RouteParams, queue: Queue<'_>) -> Result<()> {
        // The kernel waits for the previous launch before it reads or writes.
        let grid = Grid::of([blocks, 1, 1]).early();
        queue.launch(&self.kernel, grid, params)
    }
}

/// Choices sorted by expert, in device memory.
#[derive(Debug)]
pub struct DeviceRoutes {
    counts: DeviceMemory,
    /// Choice of each slot.
    pub order: DeviceMemory,
    /// First slot of each expert and of the choices without an expert, then the number of slots.
    pub offsets: DeviceMemory,
    /// Number of row blocks, then the record of each row block.
    pub panels: DeviceMemory,
    /// Order of the launches that write or read the routes.
    pub turns: Arc<Turns>,
}

impl DeviceRoutes {
    pub(crate) fn bytes(&self) -> usize {
        [&self.counts, &self.order, &self.offsets, &self.panels]
            .map(DeviceMemory::bytes)
            .iter()
            .sum()
    }
}

/// Kernels that sort a number of choices.
#[derive(Debug)]
pub struct RouteLaunch {
    steps: [Step; 2],
    params: RouteParams,
}

impl RouteLaunch {
    /// Creates the routing of `count` choices to these experts.
    pub(crate) fn new(device: &Device, count: usize, experts: Range<usize>) -> Result<Self> {
        let steps = [STEP_ROUTE_COUNT, STEP_ROUTE_PLACE];
        let [counted, placed] = steps.map(|step| Step::new(device, step, Dtype::F32));
        // The last multiples that a thread block computes stay below 2^32.
        let count = within("choices", count, i32::MAX as usize)?;
        let first = within("experts", experts.start, i32::MAX as usize)?;
        let experts = within("experts", experts.len(), ROUTE_EXPERTS as usize)?;
        let share = count.div_ceil(ROUTE_BLOCKS).next_multiple_of(ROUTE_SHARE);
        let share = share.max(ROUTE_SHARE);
        Ok(RouteLaunch {
            steps: [counted?, placed?],
            params: RouteParams {
                bins: Divisor::new(experts + 1),
                count,
                share,
                blocks: count.div_ceil(share),
                first,
                ..RouteParams::default()
            },
        })
    }

    /// Returns the max number of row blocks: each expert has at most one that is not full.
    pub(crate) fn panels(&self) -> usize {
        let count = self.params.count as usize;
        let experts = self.params.bins.value as usize - 1;
        count / ROUTE_PANEL as usize + experts.min(count)
    }

    /// Allocates the results of a run.
    pub(crate) fn routes(&self, device: &Device) -> Result<DeviceRoutes> {
        let bins = self.params.bins.value as usize;
        let record = ROUTE_RECORD as usize * 4;
        Ok(DeviceRoutes {
            counts: device.zeros((self.params.blocks as usize * bins * 4).max(16))?,
            order: device.zeros((self.params.count as usize * 4).max(16))?,
            offsets: device.zeros((bins + 1) * 4)?,
            panels: device.zeros((1 + self.panels()) * record)?,
            turns: Arc::new(Turns::new(device)?),
        })
    }

    /// Queues the two kernels, or only the second if one thread block has all choices. `choices` holds as many words as
    /// planned. The routes must be created by this launch.
    pub(crate) fn run(&self, choices: u64, routes: &DeviceRoutes, queue: Queue<'_>) -> Result<()> {
        let alone = self.params.blocks == 1;
        let params = RouteParams {
            choices,
            counts: if alone { 0 } else { routes.counts.address() },
            order: routes.order.address(),
            offsets: routes.offsets.address(),
            panels: routes.panels.address(),
            ..self.params
        };
        for step in &self.steps[usize::from(alone)..] {
            step.run(self.params.blocks, &params, queue)?;
        }
        Ok(())
    }
}

/// Kernel that adds the rows of each token.
#[derive(Debug)]
pub struct SumLaunch {
    step: Step,
    extents: [usize; 3],
    experts: Range<usize>,
    blocks: u32,
}

impl SumLaunch {
    /// Creates the sums of `[tokens, top, width]` along the second axis, of the outputs of these experts.
    pub fn new(
        device: &Device,
        dtype: Dtype,
        extents: [usize; 3],
        experts: Range<usize>,
    ) -> Result<Self> {
        let step = Step::new(device, STEP_ROUTE_SUM, dtype)?;
        let [tokens, top, width] = extents;
        within("rows", tokens.saturating_mul(top), i32::MAX as usize)?;
        let vectors = width.div_ceil(step.kernel.row().vector as usize);
        let threads = tokens.saturating_mul(vectors);
        let threads = within("vectors", threads, (i32::MAX as usize) & !1023)?;
        Ok(SumLaunch {
            blocks: threads.div_ceil(step.kernel.row().threads),
            step,
            extents,
            experts,
        })
    }

    /// Queues the kernel. `choices` is an address, or 0. With an address, choices of other experts are skipped.
    pub fn run(
        &self,
        choices: u64,
        rows: DenseMatrix,
        sums: DenseMatrix,
        queue: Queue<'_>,
    ) -> Result<()> {
        let [tokens, top, width] = self.extents;
        let row = self.step.kernel.row();
        aligned(row, "rows", rows.address, rows.leading)?;
        aligned(row, "sums", sums.address, sums.leading)?;
        let bytes = |of: &str, leading: usize| row_bytes(of, leading, row.dtype.bytes());
        let params = RouteParams {
            choices,
            first: within("experts", self.experts.start, i32::MAX as usize)?,
            bins: Divisor::new(small("experts", self.experts.len())? + 1),
            rows: rows.address,
            sums: sums.address,
            vectors: Divisor::new(width.div_ceil(row.vector as usize) as u32),
            tokens: small("tokens", tokens)?,
            top: small("choices of a token", top)?,
            row_bytes: bytes("slots", rows.leading)?,
            sum_bytes: bytes("sums", sums.leading)?,
            ..RouteParams::default()
        };
        self.step.run(self.blocks, &params, queue)
    }
}

/// Kernel that multiplies hidden rows by their gates.
#[derive(Debug)]
pub struct GateLaunch {
    step: Step,
    params: RouteParams,
    blocks: u32,
}

impl GateLaunch {
    /// Creates the kernel for hidden rows `[slots, width]` of sums `[slots, 2 width]`; `flags` selects the activation.
    pub fn new(
        device: &Device,
        dtype: Dtype,
        [slots, width]: [usize; 2],
        flags: u32,
    ) -> Result<Self> {
        let step = Step::new(device, STEP_ROUTE_GATE, dtype)?;
        let vectors = width.div_ceil(step.kernel.row().vector as usize);
        let threads =
            within("vectors", slots.saturating_mul(vectors), (i32::MAX as usize) & !1023)?;
        Ok(GateLaunch {
            blocks: threads.div_ceil(step.kernel.row().threads),
            step,
            params: RouteParams {
                vectors: Divisor::new(vectors as u32),
                count: small("slots", slots)?,
                flags,
                ..RouteParams::default()
            },
        })
    }

    pub fn run(&self, sums: DenseMatrix, hidden: DenseMatrix, queue: Queue<'_>) -> Result<()> {
        let row = self.step.kernel.row();
        aligned(row, "gates", sums.address, sums.leading)?;
        aligned(row, "hidden rows", hidden.address, hidden.leading)?;
        let bytes = |of: &str, leading: usize| row_bytes(of, leading, row.dtype.bytes());
        let params = RouteParams {
            gates: sums.address,
            rows: hidden.address,
            gate_bytes: bytes("gates", sums.leading)?,
            row_bytes: bytes("hidden rows", hidden.leading)?,
            ..self.params
        };
        self.step.run(self.blocks, &params, queue)
    }
}

/// Kernel that weights hidden rows and their gradients, and computes the gradient of the weights.
#[derive(Debug)]
pub struct WeighLaunch {
    step: Step,
    params: RouteParams,
    blocks: u32,
}

impl WeighLaunch {
    /// Creates the kernel for hidden rows `[slots, width]`; the extents are `[slots, experts, width]`. `gate`: flags of
    /// the activation of gated rows.
    pub fn new(
        device: &Device,
        dtype: Dtype,
        extents: [usize; 3],
        gate: Option<u32>,
    ) -> Result<Self> {
        let number = match gate {
            None => STEP_ROUTE_GRADIENT,
            Some(_) => STEP_ROUTE_GATE_GRADIENT,
        };
        let step = Step::new(device, number, dtype)?;
        let [slots, experts, width] = extents;
        let warps = step.kernel.row().threads / 32;
        let params = RouteParams {
            bins: Divisor::new(within("experts", experts, ROUTE_EXPERTS as usize)? + 1),
            vectors: Divisor::new(small(
                "columns",
                width.div_ceil(step.kernel.row().vector as usize),
            )?),
            count: within("slots", slots, i32::MAX as usize / 64)?,
            flags: gate.unwrap_or(0),
            ..RouteParams::default()
        };
        Ok(WeighLaunch { blocks: params.count.div_ceil(warps), step, params })
    }

    /// Queues the kernel. `words` are the addresses of the weights and of their gradients, one per choice. `gates` are
    /// inputs and multiplicands of the gates; their gradients overwrite them. The routes are those of the rows.
    pub fn run(
        &self,
        routes: &DeviceRoutes,
        [hidden, gradients]: [DenseMatrix; 2],
        gates: Option<DenseMatrix>,
        words: [u64; 2],
        queue: Queue<'_>,
    ) -> Result<()> {
        let row = self.step.kernel.row();
        aligned(row, "hidden rows", hidden.address, hidden.leading)?;
        aligned(row, "hidden gradients", gradients.address, gradients.leading)?;
        let bytes = |of: &str, leading: usize| row_bytes(of, leading, row.dtype.bytes());
        let (gates, gate_bytes) = match gates {
            None => (0, 0),
            Some(gates) => {
                aligned(row, "gates", gates.address, gates.leading)?;
                (gates.address, bytes("gates", gates.leading)?)
            }
        };
        let params = RouteParams {
            gates,
            gate_bytes,
            order: routes.order.address(),
            offsets: routes.offsets.address(),
            rows: hidden.address,
            sums: gradients.address,
            weights: words[0],
            gradient: words[1],
            row_bytes: bytes("hidden rows", hidden.leading)?,
            sum_bytes: bytes("hidden gradients", gradients.leading)?,
            ..self.params
        };
        self.step.run(self.blocks, &params, queue)
    }
}
