//! Kernel maps made on a GPU: hash table of voxels, neighbours, sort by the sets of offsets, schedule of tiles.

use std::sync::Arc;

use einsparse_kernels::families::{
    CONV_ARRANGE, CONV_FIRST, CONV_INSERT, CONV_KEYS, CONV_NEIGHBOURS, CONV_SCHEDULE,
    CONV_STEP_THREADS, CONV_STRIDE, CONV_TAKE, CONV_TRANSPOSE, ConvStepParams, EntriesParams,
};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::families::convert::{Sort, SortOut, Steps};
use crate::families::gather_gemm::conv::conv_step;
use crate::families::gather_gemm::kernel_map::{ABSENT, ConvGeometry, HALF, MapArrays, ROWS};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, Turns, small, within};
use crate::registry::Dtype;

fn alloc(device: &Device, words: usize) -> Result<DeviceMemory> {
    DeviceMemory::alloc(device.context(), words.saturating_mul(4))
}

/// Returns the grid of a step with this many items.
fn blocks(items: u32) -> [u32; 3] {
    [items.div_ceil(CONV_STEP_THREADS), 1, 1]
}

/// Returns the slots of a hash table of this many voxels.
fn slots(voxels: usize) -> usize {
    (2 * voxels).next_power_of_two().max(2)
}

/// Kernels and workspace of maps of one size.
#[derive(Debug)]
pub(crate) struct MapSteps {
    device: Arc<Device>,
    kernels: Vec<Kernel<ConvStepParams>>,
    entries: Steps,
    rows: usize,
    volume: usize,
    params: ConvStepParams,
    sort: Sort,
    tiles: Sort,
    /// Hash table; offsets and ranks; unsorted neighbours; sort keys.
    table: DeviceMemory,
    offsets: DeviceMemory,
    raw: DeviceMemory,
    keys: DeviceMemory,
    /// Serializes runs, which share this workspace.
    turns: Turns,
}

impl MapSteps {
    /// Creates the steps of maps of `rows` rows. The hash table holds `inputs` voxels; 0 for transposed maps.
    pub(crate) fn new(
        device: &Arc<Device>,
        (inputs, rows): (usize, usize),
        offsets: &[[i32; 3]],
        ranks: &[u32],
        strides: [usize; 3],
    ) -> Result<Self> {
        let volume = ranks.len();
        let limit = MAX_GRID_X - ROWS;
        within("voxels", inputs, limit)?;
        let tiles = rows.div_ceil(ROWS);
        let mut words: Vec<u32> = offsets.iter().flatten().map(|&x| x as u32).collect();
        words.resize(volume * 3, 0);
        words.extend(ranks);
        let offsets = device.upload(&words)?;
        let table = alloc(device, slots(inputs))?;
        let raw = alloc(device, rows.saturating_mul(volume))?;
        let keys = alloc(device, rows.max(tiles))?;
        let step = |step: u32| conv_step(device, step, |_| true);
        let all =
            [CONV_INSERT, CONV_NEIGHBOURS, CONV_ARRANGE, CONV_SCHEDULE, CONV_TRANSPOSE, CONV_KEYS];
        Ok(MapSteps {
            turns: Turns::new(device)?,
            kernels: all.into_iter().map(step).collect::<Result<_>>()?,
            entries: Steps::new(device, Dtype::F32)?,
            sort: Sort::new(device, rows, volume.min(32) as u32, false)?,
            tiles: Sort::new(device, tiles, volume.ilog2() + 1, false)?,
            params: ConvStepParams {
                table: table.address(),
                offsets: offsets.address(),
                raw: raw.address(),
                keys: keys.address(),
                rows: within("rows of the map", rows, limit)?,
                volume: small("offsets", volume)?,
                last: small("slots", slots(inputs) - 1)?,
                stride: small("positions", rows.next_multiple_of(ROWS))?,
                words: small("words of a mask", volume.div_ceil(32))?,
                strides: strides.map(|s| s as u32),
                ..ConvStepParams::default()
            },
            device: Arc::clone(device),
            rows,
            volume,
            table,
            offsets,
            raw,
            keys,
        })
    }

    pub(crate) fn arrays(&self) -> Result<MapArrays<DeviceMemory>> {
        let stride = self.params.stride as usize;
        let room = |words: usize| alloc(&self.device, words);
        Ok(MapArrays {
            neighbours: room(stride.saturating_mul(self.volume))?,
            order: room(stride)?,
            masks: room(stride / HALF * self.params.words as usize)?,
            schedule: room(stride / ROWS)?,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        let own = [&self.table, &self.offsets, &self.raw, &self.keys];
        own.iter().map(|m| m.bytes()).sum::<usize>() + self.sort.bytes() + self.tiles.bytes()
    }

    fn step(&self, step: u32, items: u32, params: &ConvStepParams, queue: Queue<'_>) -> Result<()> {
        let kernel = self.kernels.iter().find(|k| k.row().step == step);
        match kernel {
            Some(kernel) => queue.launch(kernel, Grid::of(blocks(items)), params),
            None => Ok(()),
        }
    }

    /// Queues the map of `inputs` voxels at address `voxels` to the output voxels at address `out`. The arrays must be
    /// created by [`MapSteps::arrays`].
    pub(crate) fn run(
        &self,
        [voxels, out]: [u64; 2],
        inputs: usize,
        to: &MapArrays<DeviceMemory>,
        queue: Queue<'_>,
    ) -> Result<()> {
        self.device.context().set_current()?;
        let params = ConvStepParams { source: voxels, out, ..self.params };
        let insert = ConvStepParams { rows: small("voxels", inputs)?, ..params };
        let slots = self.table.bytes() / 4;
        self.turns.queue(true, queue.stream(), || {
            queue.fill_words(self.table.address(), ABSENT, slots)?;
            self.step(CONV_INSERT, insert.rows, &insert, queue)?;
            self.step(CONV_NEIGHBOURS, params.rows, &params, queue)?;
            self.arrange(to, queue)
        })
    }

    /// Queues the transposed map of `from`, which has `positions` positions.
    pub(crate) fn transpose(
        &self,
        from: &MapArrays<DeviceMemory>,
        positions: usize,
        to: &MapArrays<DeviceMemory>,
        queue: Queue<'_>,
    ) -> Result<()> {
        self.device.context().set_current()?;
        let params = ConvStepParams {
            neighbours: from.neighbours.address(),
            order: from.order.address(),
            stride: small("positions", positions)?,
            ..self.params
        };
        self.turns.queue(true, queue.stream(), || {
            let words = self.rows * self.volume;
            queue.fill_words(self.raw.address(), ABSENT, words)?;
            self.step(CONV_TRANSPOSE, params.stride, &params, queue)?;
            self.step(CONV_KEYS, params.rows, &params, queue)?;
            self.arrange(to, queue)
        })
    }

    /// Queues the steps after neighbours and keys.
    fn arrange(&self, to: &MapArrays<DeviceMemory>, queue: Queue<'_>) -> Result<()> {
        let params = ConvStepParams {
            order: to.order.address(),
            neighbours: to.neighbours.address(),
            masks: to.masks.address(),
            ..self.params
        };
        let tiles = ConvStepParams { rows: self.rows.div_ceil(ROWS) as u32, ..params };
        let sorted = |out: u64, capacity: u32| SortOut {
            first: out,
            capacity: capacity as usize,
            ..SortOut::default()
        };
        let keys =
            EntriesParams { keys: self.keys.address(), k: u32::MAX, ..EntriesParams::default() };
        // The kernels that compute the keys do not launch their dependents early, hence `alone` (the last argument).
        let order = sorted(to.order.address(), params.rows);
        self.sort.run(&self.entries, keys, order, true, queue)?;
        queue.fill_words(to.masks.address(), 0, to.masks.bytes() / 4)?;
        self.step(CONV_ARRANGE, params.stride, &params, queue)?;
        self.step(CONV_SCHEDULE, tiles.rows, &tiles, queue)?;
        let schedule = sorted(to.schedule.address(), tiles.rows);
        self.tiles.run(&self.entries, keys, schedule, true, queue)
    }
}

/// Returns the output voxels of a strided convolution, each once, in the order of their first input voxel, and their
/// number. `voxels` is the address of `inputs` voxels. Synchronizes with the stream.
pub(crate) fn strided(
    device: &Arc<Device>,
    voxels: u64,
    inputs: usize,
    geometry: &ConvGeometry,
    queue: Queue<'_>,
) -> Result<(DeviceMemory, usize)> {
    let steps = StrideSteps::new(device, inputs, geometry)?;
    steps.find(voxels, queue)?;
    queue.stream().synchronize()?;
    let mut outputs = [0u32];
    steps.count.read(&mut outputs, queue.stream())?;
    let outputs = outputs[0] as usize;
    let out = alloc(device, outputs * 4)?;
    steps.take(out.address(), outputs, queue)?;
    queue.stream().synchronize()?;
    Ok((out, outputs))
}

/// Kernels and workspace that find the output voxels of a strided convolution.
#[derive(Debug)]
pub(crate) struct StrideSteps {
    device: Arc<Device>,
    kernels: [Kernel<ConvStepParams>; 4],
    entries: Steps,
    sort: Sort,
    params: ConvStepParams,
    all: DeviceMemory,
    table: DeviceMemory,
    keys: DeviceMemory,
    order: DeviceMemory,
    count: DeviceMemory,
    /// Serializes runs, which share this workspace.
    turns: Turns,
}

impl StrideSteps {
    /// Creates the steps for `inputs` input voxels.
    pub(crate) fn new(
        device: &Arc<Device>,
        inputs: usize,
        geometry: &ConvGeometry,
    ) -> Result<Self> {
        let rows = within("voxels", inputs, MAX_GRID_X - ROWS)?;
        let (all, table) = (alloc(device, inputs * 4)?, alloc(device, slots(inputs))?);
        let (keys, order) = (alloc(device, inputs)?, alloc(device, inputs)?);
        let count = device.zeros(4)?;
        let step = |step: u32| conv_step(device, step, |_| true);
        Ok(StrideSteps {
            kernels: [step(CONV_STRIDE)?, step(CONV_INSERT)?, step(CONV_FIRST)?, step(CONV_TAKE)?],
            entries: Steps::new(device, Dtype::F32)?,
            sort: Sort::new(device, inputs, 1, false)?,
            params: ConvStepParams {
                source: all.address(),
                table: table.address(),
                keys: keys.address(),
                order: order.address(),
                count: count.address(),
                rows,
                last: small("slots", slots(inputs) - 1)?,
                strides: geometry.stride().map(|s| s as u32),
                ..ConvStepParams::default()
            },
            turns: Turns::new(device)?,
            device: Arc::clone(device),
            all,
            table,
            keys,
            order,
            count,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        let own = [&self.all, &self.table, &self.keys, &self.order, &self.count];
        own.iter().map(|m| m.bytes()).sum::<usize>() + self.sort.bytes()
    }

    /// Queues the output voxels of the voxels at `voxels` to `out`, which has capacity `outputs`.
    pub(crate) fn run(
        &self,
        [voxels, out]: [u64; 2],
        outputs: usize,
        queue: Queue<'_>,
    ) -> Result<()> {
        self.turns.queue(true, queue.stream(), || {
            self.find(voxels, queue)?;
            self.take(out, outputs, queue)
        })
    }

    /// Queues the order and the number of the output voxels.
    fn find(&self, voxels: u64, queue: Queue<'_>) -> Result<()> {
        let params = self.params;
        let stride = ConvStepParams { source: voxels, out: self.all.address(), ..params };
        let keyed =
            EntriesParams { keys: self.keys.address(), k: u32::MAX, ..EntriesParams::default() };
        let sorted = SortOut {
            first: self.order.address(),
            capacity: params.rows as usize,
            ..SortOut::default()
        };
        self.device.context().set_current()?;
        queue.fill_words(self.table.address(), ABSENT, self.table.bytes() / 4)?;
        queue.fill_words(self.count.address(), 0, 1)?;
        let grid = || Grid::of(blocks(params.rows));
        let [strides, insert, first, _] = &self.kernels;
        queue.launch(strides, grid(), &stride)?;
        queue.launch(insert, grid(), &params)?;
        queue.launch(first, grid(), &params)?;
        self.sort.run(&self.entries, keyed, sorted, true, queue)
    }

    /// Queues a copy of the first `outputs` output voxels; voxels after the last one are padding.
    fn take(&self, out: u64, outputs: usize, queue: Queue<'_>) -> Result<()> {
        let take = ConvStepParams { out, rows: small("voxels", outputs)?, ..self.params };
        queue.launch(&self.kernels[3], Grid::of(blocks(take.rows)), &take)
    }
}
