//! Expansion of unstructured nonzeros: into a dense matrix, and lists for products that expand in shared memory.

use einsparse_kernels::abi::{Divisor, STRIP_COLUMNS, STRIP_STEP, StripDeal};
use einsparse_kernels::families::{
    EXPAND_PLACES, EXPAND_STRIPS, EXPAND_VALUES, ExpandParams, GROUP_BYTES,
};
use einsparse_kernels::table::{Row, rows_of};

use crate::cost::Machine;
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::within;
use crate::registry::Dtype;

/// First nonzero of each column group of a row, and the column of each nonzero within its group.
#[derive(Debug)]
struct Places {
    places: DeviceMemory,
    starts: DeviceMemory,
    row_groups: Divisor,
    /// Groups of all rows.
    groups: u32,
}

/// Offsets of the nonzeros in the dense form of their matrix, and the kernel that writes it.
#[derive(Debug)]
pub(crate) struct Expand {
    kernel: Kernel<ExpandParams>,
    own: Places,
    row_bytes: u64,
    /// Thread blocks that the GPU can run at once.
    at_once: u32,
}

/// Returns the kernel that writes elements of this size, if there is one.
fn writer(dtype: Dtype) -> Option<&'static Row> {
    rows_of::<ExpandParams>()
        .find(|row| row.step == EXPAND_VALUES && row.dtype.bytes() == dtype.bytes())
}

/// Returns the kernel of a step that runs once per pattern.
fn step(step: u32) -> Result<&'static Row> {
    let row = rows_of::<ExpandParams>().find(|row| row.step == step);
    row.ok_or_else(|| Error::no_kernel("expanding or listing columns", []))
}

/// Pattern of unstructured nonzeros in device memory. The columns of a row ascend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// Address of the columns.
    pub columns: u64,
    /// Number of columns, including padding.
    pub slots: usize,
    /// Address of the first nonzero and the count of each row.
    pub spans: u64,
    /// Rows.
    pub rows: usize,
}

impl Places {
    /// Queues the computation of the offsets. A row has `row_groups` groups of `group` (a power of two <= 256) columns.
    fn new(
        device: &Device,
        pattern: Placed,
        (group, row_groups): (u32, usize),
        queue: Queue<'_>,
    ) -> Result<Self> {
        let first = step(EXPAND_PLACES)?;
        let row_groups = row_groups.max(1);
        // Kernels compute indices past the last nonzero, up to the size of a warp's reads.
        let most = (u32::MAX - 4 * GROUP_BYTES) as usize;
        let entries = within("slots of a matrix made dense", pattern.slots, most)?;
        let rows = pattern.rows;
        let starts = within("groups of elements", rows.saturating_mul(row_groups + 1), most)?;
        let memory = |words: usize| DeviceMemory::alloc(device.context(), words.max(1) * 4);
        let own = Places {
            places: memory(pattern.slots.div_ceil(4))?,
            starts: memory(starts as usize)?,
            row_groups: Divisor::new(row_groups as u32),
            groups: starts - rows as u32,
        };
        let params = ExpandParams {
            columns: pattern.columns,
            spans: pattern.spans,
            rows: rows as u32,
            entries,
            group,
            ..own.params()
        };
        let blocks = starts.max(entries.div_ceil(4)).div_ceil(first.items);
        queue.launch(&Kernel::load(device, first)?, Grid::of([blocks, 1, 1]), &params)?;
        Ok(own)
    }

    fn params(&self) -> ExpandParams {
        ExpandParams {
            columns: 0,
            spans: 0,
            values: 0,
            places: self.places.address(),
            starts: self.starts.address(),
            out: 0,
            heads: 0,
            row_bytes: 0,
            row_groups: self.row_groups,
            groups: self.groups,
            rows: 0,
            entries: 0,
            group: 0,
            strip: 0,
            room: 0,
            deal: StripDeal { stages: self.row_groups.value, parts: 1, turns: 1 },
        }
    }

    fn bytes(&self) -> usize {
        self.places.bytes() + self.starts.bytes()
    }
}

impl Expand {
    /// Whether elements of this type can be expanded.
    pub(crate) fn takes(dtype: Dtype) -> bool {
        writer(dtype).is_some()
    }

    /// Queues the computation of the offsets. The dense form has a row stride of `leading` elements, a multiple of 16
    /// bytes.
    pub(crate) fn new(
        device: &Device,
        dtype: Dtype,
        pattern: Placed,
        leading: usize,
        queue: Queue<'_>,
    ) -> Result<Self> {
        let row = writer(dtype)
            .ok_or_else(|| Error::no_kernel(format!("expanding values of {}", dtype.name()), []))?;
        let row_bytes = leading * dtype.bytes();
        let row_groups = row_bytes.div_ceil(GROUP_BYTES as usize);
        let group = GROUP_BYTES / dtype.bytes() as u32;
        Ok(Expand {
            kernel: Kernel::load(device, row)?,
            own: Places::new(device, pattern, (group, row_groups), queue)?,
            row_bytes: row_bytes as u64,
            at_once: device.machine().multiprocessors * row.min_blocks,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.own.bytes()
    }

    /// Queues the write of the whole dense matrix at `out`, from the values of the planned pattern.
    pub(crate) fn run(&self, values: u64, out: u64, queue: Queue<'_>) -> Result<()> {
        let params = ExpandParams { values, out, row_bytes: self.row_bytes, ..self.own.params() };
        let blocks = self.own.groups.div_ceil(self.kernel.row().items);
        let blocks = blocks.min(self.at_once);
        queue.launch(&self.kernel, Grid::of([blocks, 1, 1]), &params)
    }
}

/// Lists of the nonzeros of strips of rows, for the products that expand them in shared memory.
#[derive(Debug)]
pub(crate) struct Strips {
    heads: DeviceMemory,
    words: DeviceMemory,
    room: u32,
}

/// Max size of the lists: this multiple of 6 bytes per slot, plus these bytes. Uneven rows leave most of it empty.
const UNEVEN: (usize, usize) = (4, 16 << 20);

impl Strips {
    /// Makes the lists for strips of `strip` rows, `of_tile` strips per tile, and waits for them. If the longest list
    /// would leave too much space of the others empty, it returns the reason instead.
    pub(crate) fn new(
        device: &Device,
        pattern: Placed,
        ([strip, of_tile], deal): ([u32; 2], StripDeal),
        queue: Queue<'_>,
    ) -> Result<std::result::Result<Self, String>> {
        let (times, more) = UNEVEN;
        let most = pattern.slots.saturating_mul(6 * times).saturating_add(more);
        let over = |what: String, bytes: usize| {
            format!("lists strips of rows: {what} would take {bytes} bytes, over {most}")
        };
        let starts = pattern.rows.saturating_mul((deal.stages as usize + 1) * 4);
        if starts > most {
            let what = format!("first entries of {} stages of each row", deal.stages);
            return Ok(Err(over(what, starts)));
        }
        let places = Places::new(device, pattern, (STRIP_COLUMNS, deal.stages as usize), queue)?;
        let row = step(EXPAND_STRIPS)?;
        let kernel = Kernel::load(device, row)?;
        // Rounds up to whole tiles and whole thread blocks. Strips after the last row are empty.
        let tiles = within("strips of rows", pattern.rows, i32::MAX as usize)?
            .div_ceil(strip * of_tile)
            .max(1);
        let count = (tiles * of_tile).next_multiple_of(row.items);
        let lists = count as usize * (deal.parts * deal.turns) as usize;
        let longest: DeviceMemory = device.zeros(4)?;
        let launch = |out: u64, heads: u64, room: u32| {
            let params = ExpandParams {
                out,
                heads,
                rows: pattern.rows as u32,
                strip,
                room,
                deal,
                ..places.params()
            };
            let grid = Grid::of([count / row.items, 1, 1]);
            queue.launch(&kernel, grid, &params)?;
            queue.stream().synchronize()
        };
        launch(0, longest.address(), 0)?;
        let mut room = [0];
        longest.read(&mut room, queue.stream())?;
        let room = room[0].max(1);
        let words = lists.saturating_mul(room as usize).saturating_mul(4 * STRIP_STEP as usize);
        let heads = lists.saturating_mul(deal.head() as usize * 4);
        let bytes = words.saturating_add(heads);
        if room == u32::MAX || bytes > most {
            let what = format!("{lists} lists of the longest's {room} steps");
            return Ok(Err(over(what, bytes)));
        }
        let own = Strips {
            heads: device.zeros(heads.max(4))?,
            // Kernels that prefetch read the first steps of a list regardless of its length.
            words: device.zeros(words + 8 * 4 * STRIP_STEP as usize)?,
            room,
        };
        launch(own.words.address(), own.heads.address(), room)?;
        Ok(Ok(own))
    }

    /// Returns the address of the heads.
    pub(crate) fn heads(&self) -> u64 {
        self.heads.address()
    }

    /// Returns the address of the lists.
    pub(crate) fn words(&self) -> u64 {
        self.words.address()
    }

    /// Returns the capacity of a list in steps.
    pub(crate) fn room(&self) -> u32 {
        self.room
    }

    pub(crate) fn bytes(&self) -> usize {
        self.heads.bytes() + self.words.bytes()
    }
}

/// Kernel start, and the wait of the next kernel for its end, in microseconds.
const START_US: f64 = 2.9;
/// Share of the L2 rate that the writes reach.
const WRITES: f64 = 0.46;
/// Share of the read time that the writes do not hide.
const READS: f64 = 0.6;

/// Predicts the microseconds to write `out` bytes from `values` bytes of values. Fitted to DLMC and to 4096 x 4096.
pub(crate) fn expand_us(out: f64, values: f64, machine: &Machine) -> f64 {
    // Each value of 2 or 4 bytes has an offset of one byte.
    let read_us = values * 1.5 / machine.hbm * 1e6;
    START_US + out / (machine.l2 * WRITES) * 1e6 + READS * read_us
}
