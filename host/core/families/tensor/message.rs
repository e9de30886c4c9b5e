//! Gradient of the max message on a GPU: kernels `message`, prepared for one pattern.

use std::sync::Arc;

use einsparse_kernels::families::{
    LAST_OF_ROW, MESSAGE_FEATURES, MESSAGE_WHOLE, MessageParams, STEP_MESSAGE_FIRST,
    STEP_MESSAGE_PICK, STEP_MESSAGE_WEIGHTS,
};
use einsparse_kernels::table::{Row, rows_of};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::tensor::fibres::Fibres;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, Turns, row_bytes, small, within};
use crate::registry::Dtype;
use crate::tensor::VECTOR_ENTRIES;

/// Max nonzeros of an item; longer sums are cut.
const LONGEST: u32 = 128;

/// Device addresses of one run. Row strides are in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawMessage {
    /// Values, one per slot.
    pub values: u64,
    /// Features of the sources.
    pub x: (u64, usize),
    /// Result of the forward pass.
    pub y: (u64, usize),
    /// Gradient of the result.
    pub dy: (u64, usize),
    /// Output: the gradient of the features.
    pub dx: (u64, usize),
    /// Output: the gradient of the values, one per slot; 0 if it is not requested.
    pub dvalues: u64,
}

/// Kernels with the arrays of a pattern.
#[derive(Debug)]
pub(crate) struct MessageLaunch {
    /// Serializes runs, because they share the workspace of winners and partial sums.
    turns: Turns,
    device: Arc<Device>,
    kernels: [Kernel<MessageParams>; 3],
    /// Target, source and slot of each nonzero.
    places: [DeviceMemory; 3],
    items: DeviceMemory,
    cuts: DeviceMemory,
    counts: Counts,
    first: DeviceMemory,
    partial: DeviceMemory,
}

#[derive(Clone, Copy, Debug)]
struct Counts {
    entries: u32,
    slots: usize,
    items: u32,
    cuts: u32,
    features: u32,
}

/// Items `[source, start, len, slot]`, longest class first, and the items that add up cut sums.
#[derive(Debug, Default)]
struct Items {
    items: Vec<[u32; 4]>,
    cuts: Vec<[u32; 4]>,
    parts: u32,
}

impl Items {
    fn new(by_source: &Fibres) -> Items {
        let mut own = Items::default();
        let mut next = 0;
        for (rank, &(start, len)) in by_source.runs.rows.iter().enumerate() {
            let source = by_source.rows.as_ref().map_or(rank as u32, |r| r[rank]);
            own.empty(next..source);
            next = source + 1;
            if len <= LONGEST {
                own.items.push([source, start, len, MESSAGE_WHOLE]);
                continue;
            }
            let parts = len.div_ceil(LONGEST);
            let size = len.div_ceil(parts).next_multiple_of(4);
            let first = own.parts;
            for at in (0..len).step_by(size as usize) {
                own.items.push([source, start + at, size.min(len - at), own.parts]);
                own.parts += 1;
            }
            own.cuts.push([source, first, own.parts - first, MESSAGE_WHOLE]);
        }
        own.empty(next..by_source.count as u32);
        own.items.sort_by_key(|[_, _, len, _]| len.leading_zeros());
        own
    }

    /// Adds items for sources without nonzeros, whose gradients are zero.
    fn empty(&mut self, sources: std::ops::Range<u32>) {
        self.items.extend(sources.map(|source| [source, 0, 0, MESSAGE_WHOLE]));
    }
}

/// Returns target, source and slot of each nonzero.
fn places(by_source: &Fibres) -> [Vec<u32>; 3] {
    let entries = by_source.entries();
    let targets = by_source.places[0].iter();
    let targets = targets.map(|place| place & (LAST_OF_ROW - 1)).collect();
    let mut sources = vec![0u32; entries];
    for (rank, &(start, len)) in by_source.runs.rows.iter().enumerate() {
        let source = by_source.rows.as_ref().map_or(rank as u32, |r| r[rank]);
        sources[start as usize..(start + len) as usize].fill(source);
    }
    let slots = match &by_source.permutation {
        Some(slots) => slots.clone(),
        None => (0..entries as u32).collect(),
    };
    [targets, sources, slots]
}

fn kernel(device: &Device, dtype: Dtype, step: u32) -> Result<Kernel<MessageParams>> {
    let fits = |row: &&Row| (row.step, row.dtype) == (step, dtype);
    let row = rows_of::<MessageParams>().find(fits).ok_or_else(|| {
        Error::no_kernel(format!("the gradient of the maximum in {}", dtype.name()), [])
    })?;
    Kernel::load(device, row)
}

impl MessageLaunch {
    /// Creates the launch. `by_source`: the nonzeros grouped by source, with their targets.
    pub(crate) fn new(
        device: &Arc<Device>,
        dtype: Dtype,
        by_source: &Fibres,
        (targets, features): (usize, usize),
    ) -> Result<Self> {
        let kernels = [
            kernel(device, dtype, STEP_MESSAGE_FIRST)?,
            kernel(device, dtype, STEP_MESSAGE_PICK)?,
            kernel(device, dtype, STEP_MESSAGE_WEIGHTS)?,
        ];
        let [targets_of, sources, slots] = places(by_source);
        let list = Items::new(by_source);
        let upload = |words: &[u32]| device.upload_padded(words, VECTOR_ENTRIES);
        let room = |count: usize, bytes: usize| {
            let all = count.saturating_mul(features).saturating_mul(bytes);
            DeviceMemory::alloc(device.context(), all)
        };
        Ok(MessageLaunch {
            turns: Turns::new(device)?,
            kernels,
            places: [upload(&targets_of)?, upload(&sources)?, upload(&slots)?],
            items: device.upload(list.items.as_flattened())?,
            cuts: device.upload(list.cuts.as_flattened())?,
            counts: Counts {
                entries: small("entries", by_source.entries())?,
                slots: by_source.slots,
                items: small("items", list.items.len())?,
                cuts: small("cut sums", list.cuts.len())?,
                features: small("features", features)?,
            },
            first: room(targets, 4)?,
            partial: room(list.parts as usize, dtype.acc_bytes())?,
            device: Arc::clone(device),
        })
    }

    /// Workspace in device memory, bytes.
    pub(crate) fn bytes(&self) -> usize {
        let rest = [&self.items, &self.cuts, &self.first, &self.partial];
        let all = self.places.iter().chain(rest);
        all.map(DeviceMemory::bytes).sum()
    }

    /// Queues the gradients.
    pub(crate) fn run(&self, raw: &RawMessage, queue: Queue<'_>) -> Result<()> {
        let counts = self.counts;
        let element = self.kernels[0].row().dtype.bytes();
        let bytes = |(_, leading): (u64, usize)| row_bytes("features", leading, element);
        let params = MessageParams {
            targets: self.places[0].address(),
            sources: self.places[1].address(),
            slots: self.places[2].address(),
            values: raw.values,
            x: raw.x.0,
            y: raw.y.0,
            dy: raw.dy.0,
            out: raw.dx.0,
            first: self.first.address(),
            items: self.items.address(),
            partial: self.partial.address(),
            x_bytes: bytes(raw.x)?,
            y_bytes: bytes(raw.y)?,
            dy_bytes: bytes(raw.dy)?,
            out_bytes: bytes(raw.dx)?,
            count: counts.entries,
            features: counts.features,
            ..MessageParams::default()
        };
        let picked = MessageParams { count: counts.items, ..params };
        let cut =
            MessageParams { items: self.cuts.address(), count: counts.cuts, join: 1, ..params };
        let weights = MessageParams { out: raw.dvalues, ..params };
        self.device.context().set_current()?;
        self.turns.queue(true, queue.stream(), || {
            queue.fill(self.first.address(), 0xff, self.first.bytes())?;
            self.launch(0, &params, queue)?;
            self.launch(1, &picked, queue)?;
            self.launch(1, &cut, queue)?;
            if raw.dvalues == 0 {
                return Ok(());
            }
            queue.fill(raw.dvalues, 0, counts.slots * element)?;
            self.launch(2, &weights, queue)
        })
    }

    /// Queues a step. A warp processes four nonzeros, or one item and 32 features.
    fn launch(&self, step: usize, params: &MessageParams, queue: Queue<'_>) -> Result<()> {
        let kernel = &self.kernels[step];
        let chunks = match kernel.row().step {
            STEP_MESSAGE_PICK => params.features.div_ceil(MESSAGE_FEATURES),
            _ => 1,
        };
        let units = u64::from(params.count) * u64::from(chunks);
        let blocks = within(
            "thread blocks",
            units.div_ceil(u64::from(kernel.row().items)) as usize,
            MAX_GRID_X,
        )?;
        queue.launch(kernel, Grid::of([blocks, 1, 1]), params)
    }
}
