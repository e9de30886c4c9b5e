//! Conversion of CSR to sliced ELLPACK on a GPU: orders the rows, counts chunks, and fills slices. The host adds up the
//! counts, because it allocates the memory.

use einsparse_formats::SlicedEllPattern;
use einsparse_kernels::families::{
    CHUNK_SLOTS, CHUNK_STEPS, RUN_CHUNKS, SLICE, SLICING_COUNT, SLICING_FILL, SLICING_ORDER,
    SLICING_VALUES, SlicingParams,
};
use einsparse_kernels::table::{Row, rows_of};

use crate::cost::Machine;
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, within};

/// Returns the kernel of a step, for elements of `bytes` bytes.
fn step(step: u32, bytes: usize) -> Result<&'static Row> {
    let fits = |row: &&Row| {
        let any = ![SLICING_FILL, SLICING_VALUES].contains(&step) || row.dtype.bytes() == bytes;
        row.step == step && any
    };
    rows_of::<SlicingParams>()
        .find(fits)
        .ok_or_else(|| Error::no_kernel(format!("slicing elements of {bytes} bytes"), []))
}

/// Queues one step.
fn launch(
    device: &Device,
    row: &'static Row,
    params: &SlicingParams,
    queue: Queue<'_>,
) -> Result<()> {
    let of_block = row.items as usize;
    let items = match row.step {
        SLICING_ORDER => params.slices as usize * SLICE,
        _ => params.slices as usize,
    };
    let blocks = within("thread blocks", items.div_ceil(of_block), MAX_GRID_X)?;
    if blocks == 0 {
        return Ok(());
    }
    let kernel = Kernel::load(device, row)?;
    queue.launch(&kernel, Grid::of([blocks, 1, 1]), params)
}

/// Queues the order of the rows and the chunks of each slice. `order` has a word per lane and `counts` one per slice.
pub(crate) fn survey_slices(
    device: &Device,
    params: &SlicingParams,
    queue: Queue<'_>,
) -> Result<()> {
    launch(device, step(SLICING_ORDER, 0)?, params, queue)?;
    launch(device, step(SLICING_COUNT, 0)?, params, queue)
}

/// Queues windows, columns and values, of elements of `bytes` bytes. [`survey_slices`] ran with the same order. The
/// outputs have the capacity for the number of chunks that ends `starts`.
pub(crate) fn fill_slices(
    device: &Device,
    params: &SlicingParams,
    bytes: usize,
    queue: Queue<'_>,
) -> Result<()> {
    launch(device, step(SLICING_FILL, bytes)?, params, queue)
}

/// Offsets of the first values of each run of chunks: 128 bytes for up to 16 chunks, instead of one number per value.
#[derive(Debug)]
pub(crate) struct SliceValues {
    row: &'static Row,
    firsts: DeviceMemory,
    starts: DeviceMemory,
    runs: u32,
}

impl SliceValues {
    /// Prepares the offsets. `slots` states for each slot of `pattern` the number of its value, counted from 1, or 0.
    /// The numbers of a row are consecutive.
    pub(crate) fn new(
        device: &Device,
        bytes: usize,
        pattern: &SlicedEllPattern,
        slots: &[i32],
    ) -> Result<SliceValues> {
        let (mut starts, mut firsts) = (Vec::new(), Vec::new());
        let chunks = pattern.windows().len() / 2;
        for slice in 0..pattern.offsets().len() - 1 {
            let all = pattern.chunks(slice);
            for start in all.clone().step_by(RUN_CHUNKS) {
                let run = start..all.end.min(start + RUN_CHUNKS);
                starts.push(start as u32);
                firsts.extend((0..SLICE).map(|lane| {
                    let first = |chunk: usize| slots[chunk * CHUNK_SLOTS + lane * CHUNK_STEPS];
                    let found = run.clone().map(first).find(|&slot| slot > 0);
                    found.map_or(0, |slot| slot as u32 - 1)
                }));
            }
        }
        let runs = starts.len() as u32;
        starts.push(chunks as u32);
        Ok(SliceValues {
            row: step(SLICING_VALUES, bytes)?,
            firsts: device.upload(&firsts)?,
            starts: device.upload(&starts)?,
            runs,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.firsts.bytes() + self.starts.bytes()
    }

    /// Queues the copy of `values` to the slots at `out` that hold a nonzero according to `columns`. The addresses are
    /// those of the arrays of the planned pattern.
    pub(crate) fn run(
        &self,
        device: &Device,
        [values, columns, out]: [u64; 3],
        queue: Queue<'_>,
    ) -> Result<()> {
        let params = SlicingParams {
            offsets: 0,
            columns: 0,
            values,
            order: self.firsts.address(),
            counts: 0,
            starts: self.starts.address(),
            windows: 0,
            local_columns: columns,
            slot_values: out,
            rows: 0,
            slices: self.runs,
        };
        launch(device, self.row, &params, queue)
    }
}

/// Kernel start, and the wait of the next kernel for its end, in microseconds.
const START_US: f64 = 2.0;
/// Bytes of device memory traffic per byte of values: values, columns and padding.
const MOVED: f64 = 1.6;

/// Predicts the microseconds to write `values` bytes of new values.
pub(crate) fn slices_us(values: f64, machine: &Machine) -> f64 {
    START_US + values * MOVED / machine.hbm * 1e6
}
