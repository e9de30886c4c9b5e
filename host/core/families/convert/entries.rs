//! Conversions of unstructured nonzeros. Kernels are loaded once, and the workspace is allocated once.

mod reorder;
mod sort;
mod steps;

use std::sync::Arc;

use einsparse_formats::convert::EntryChoice;
use einsparse_kernels::abi::Divisor;
use einsparse_kernels::families::{
    COMPACT_TOP, EntriesParams, FILL_ELL, SEGMENT_VECTORS, SEGMENTS, STEP_COMPACT,
    STEP_ENTRY_OFFSETS, STEP_ENTRY_ROWS, STEP_FILL_SLOTS, STEP_GROUP_STARTS, STEP_TOP_ENTRIES,
    TURNS_HEAD, WARP_SEGMENTS,
};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::kernel::Queue;
use crate::launch::{MAX_GRID_X, small, within};
use crate::registry::Dtype;
pub(crate) use reorder::Reorder;
pub use sort::Order;
pub(crate) use sort::{Sort, SortOut, Transpose, permute};
pub(crate) use steps::{Steps, check};
use steps::{copies, tiles};

/// Device addresses of one conversion of nonzeros. Addresses that a conversion does not use stay 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawEntries {
    /// The dense matrix `[m, k]`, row-major; or the values of CSR.
    pub source: u64,
    /// Row stride of the dense matrix, in elements.
    pub leading: usize,
    /// Row offsets of CSR, `u32[m + 1]`: input if the source is CSR, output if it is COO or dense.
    pub offsets: u64,
    /// Columns of CSR, u32.
    pub columns: u64,
    /// Row of each nonzero (COO: input or output) or of each group (GroupCOO: output), u32; 16-byte aligned.
    pub rows: u64,
    /// Output: columns, u32.
    pub out_columns: u64,
    /// Output: values.
    pub out_values: u64,
    /// Capacity of the outputs, in nonzeros (COO) or slots. Elements past the capacity are not written.
    pub capacity: usize,
}

/// Source and target of a conversion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Conversion {
    /// Dense to CSR.
    Dense(EntryChoice),
    /// CSR to COO: only the rows are written; the other arrays are equal.
    ToCoo,
    /// COO to CSR: only the offsets are written.
    FromCoo,
    /// CSR to GroupCOO.
    GroupCoo(usize),
    /// CSR to ELL of this width.
    Ell(usize),
}

/// Kernels and workspace for matrices of one shape.
#[derive(Debug)]
pub(crate) struct Entries {
    steps: Steps,
    conversion: Conversion,
    m: usize,
    k: usize,
    dtype: Dtype,
    /// Bits of the threshold: larger magnitudes are kept.
    floor: u64,
    turns: DeviceMemory,
    pivots: DeviceMemory,
    starts: DeviceMemory,
}

impl Entries {
    /// Creates kernels and workspace. `floor`: bits of the largest magnitude that is not kept. It applies unless the
    /// selection is top-k per row.
    pub(crate) fn new(
        device: &Arc<Device>,
        (m, k): (usize, usize),
        dtype: Dtype,
        conversion: Conversion,
        floor: u64,
    ) -> Result<Self> {
        within("rows", m, MAX_GRID_X - 1)?;
        small("columns", k)?;
        let dense = matches!(conversion, Conversion::Dense(_));
        if dense {
            within("elements of the matrix", m.saturating_mul(k), u32::MAX as usize)?;
        }
        let grouped = matches!(conversion, Conversion::GroupCoo(_));
        // Unaligned matrices have the narrowest segments and therefore the most thread blocks.
        let blocks = match conversion {
            Conversion::Dense(_) => segments(k, 1).0.saturating_mul(m).div_ceil(SEGMENTS as usize),
            _ if grouped => tiles(m + 1),
            _ => 0,
        };
        let top = matches!(conversion, Conversion::Dense(EntryChoice::TopPerRow(1..)));
        Ok(Entries {
            steps: Steps::new(device, dtype)?,
            turns: device.zeros(TURNS_HEAD as usize + 8 * blocks)?,
            pivots: device.zeros(if top { 16 * m } else { 0 })?,
            starts: device.zeros(if grouped { 4 * (m + 1) } else { 0 })?,
            conversion,
            m,
            k,
            dtype,
            floor,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.turns.bytes() + self.pivots.bytes() + self.starts.bytes()
    }

    pub(crate) fn conversion(&self) -> Conversion {
        self.conversion
    }

    /// Returns the first group of each row and the number of groups, from the last conversion to GroupCOO.
    pub(crate) fn starts(&self) -> Result<Vec<u32>> {
        let mut starts = vec![0; self.starts.bytes() / 4];
        self.steps.device.read(&self.starts, &mut starts)?;
        Ok(starts)
    }

    /// Queues one conversion. No other run may use the workspace meanwhile.
    pub(crate) fn run(&self, raw: &RawEntries, queue: Queue<'_>) -> Result<()> {
        self.steps.device.context().set_current()?;
        let params = self.params(raw)?;
        match self.conversion {
            Conversion::Dense(_) => self.compact(raw, params, queue),
            Conversion::ToCoo => {
                let blocks = if self.m == 0 { 0 } else { tiles(raw.capacity) };
                self.steps.launch(STEP_ENTRY_ROWS, (false, true), blocks, queue, &params)
            }
            Conversion::FromCoo => self.steps.launch(
                STEP_ENTRY_OFFSETS,
                (false, true),
                tiles(raw.capacity + 1),
                queue,
                &params,
            ),
            Conversion::GroupCoo(group) => {
                self.survey(raw, queue)?;
                self.fill_groups(raw, group, queue)
            }
            Conversion::Ell(_) => {
                let blocks = copies(params.capacity as usize);
                self.steps.launch(STEP_FILL_SLOTS, (false, true), blocks, queue, &params)
            }
        }
    }

    /// Queues the starts of the groups, the first half of a conversion to GroupCOO.
    pub(crate) fn survey(&self, raw: &RawEntries, queue: Queue<'_>) -> Result<()> {
        self.steps.device.context().set_current()?;
        let params = self.params(raw)?;
        let blocks = params.tiles as usize;
        self.steps.launch(STEP_GROUP_STARTS, (false, true), blocks, queue, &params)
    }

    /// Queues rows, columns and values of the groups, the second half.
    pub(crate) fn fill_groups(
        &self,
        raw: &RawEntries,
        group: usize,
        queue: Queue<'_>,
    ) -> Result<()> {
        self.steps.device.context().set_current()?;
        let params = self.params(raw)?;
        let groups = raw.capacity / group;
        let of_groups = EntriesParams {
            offsets: self.starts.address(),
            capacity: small("groups", groups)?,
            ..params
        };
        let blocks = if self.m == 0 { 0 } else { tiles(groups) };
        self.steps.launch(STEP_ENTRY_ROWS, (false, false), blocks, queue, &of_groups)?;
        let blocks = if self.m == 0 { 0 } else { copies(groups * group) };
        self.steps.launch(STEP_FILL_SLOTS, (false, false), blocks, queue, &params)
    }

    fn compact(&self, raw: &RawEntries, params: EntriesParams, queue: Queue<'_>) -> Result<()> {
        if self.m == 0 || self.k == 0 {
            return queue.fill_words(raw.offsets, 0, self.m + 1);
        }
        let vector = 16 / self.dtype.bytes();
        let whole = [self.k, raw.leading].iter().all(|e| e.is_multiple_of(vector));
        let aligned = whole && raw.source.is_multiple_of(16);
        let (across, columns) = segments(self.k, if aligned { vector } else { 1 });
        // Fewer thread blocks with more segments each, because a multiprocessor holds only [`RESIDENT`] thread blocks.
        let all = across * self.m;
        let resident = self.steps.device.machine().multiprocessors as usize * RESIDENT;
        let each = (all / (resident * SEGMENTS as usize)).clamp(1, WARP_SEGMENTS as usize);
        let blocks = all.div_ceil(SEGMENTS as usize * each);
        let params = EntriesParams {
            count: each as u32,
            segments: Divisor::new(across as u32),
            segment_columns: columns as u32,
            tiles: blocks as u32,
            ..params
        };
        let top = params.flags & COMPACT_TOP != 0;
        if top {
            self.steps.launch(STEP_TOP_ENTRIES, (false, true), self.m, queue, &params)?;
        }
        self.steps.launch(STEP_COMPACT, (aligned, !top), blocks, queue, &params)
    }

    /// Validates the arguments and returns the geometry of the outputs.
    fn shape_of(&self, raw: &RawEntries) -> Result<Shape> {
        let (m, k) = (self.m, self.k);
        let mut shape = Shape { flags: 0, top: 0, group: 1, capacity: raw.capacity };
        match self.conversion {
            Conversion::Dense(choice) => {
                if m > 1 && raw.leading < k {
                    return Err(Error::stride("dense", raw.leading, format_args!("at least {k}")));
                }
                // The top 0 of each row: the selection uses `floor` and no pivots.
                if let EntryChoice::TopPerRow(count @ 1..) = choice {
                    shape.flags = COMPACT_TOP;
                    shape.top = count.min(k);
                }
            }
            Conversion::GroupCoo(group) => {
                shape.group = group;
                if !raw.capacity.is_multiple_of(group) {
                    let allowed = format!("a multiple of the group size {group}");
                    return Err(Error::range("capacity", raw.capacity, allowed));
                }
            }
            Conversion::Ell(width) => {
                shape.flags = FILL_ELL;
                shape.group = width;
                shape.capacity = raw.capacity.min(m.saturating_mul(width));
            }
            Conversion::ToCoo | Conversion::FromCoo => {}
        }
        Ok(shape)
    }

    fn params(&self, raw: &RawEntries) -> Result<EntriesParams> {
        let (m, k) = (self.m, self.k);
        let Shape { flags, top, group, capacity } = self.shape_of(raw)?;
        let from_coo = self.conversion == Conversion::FromCoo;
        let made = from_coo || matches!(self.conversion, Conversion::Dense(_));
        Ok(EntriesParams {
            source: raw.source,
            row_bytes: (raw.leading as u64).saturating_mul(self.dtype.bytes() as u64),
            offsets: raw.offsets,
            columns: raw.columns,
            keys: raw.rows,
            rows: raw.rows,
            starts: if made { raw.offsets } else { self.starts.address() },
            out_columns: raw.out_columns,
            out_values: raw.out_values,
            turns: self.turns.address(),
            pivots: self.pivots.address(),
            floor: self.floor,
            m: small("rows", m)?,
            k: small("columns", k)?,
            count: if from_coo { small("entries", raw.capacity)? } else { 0 },
            capacity: small("slots", capacity)?,
            tiles: tiles(m + 1) as u32,
            top: small("entries of a row", top)?,
            group: Divisor::new(small("group", group)?),
            flags,
            ..EntriesParams::default()
        })
    }
}

/// Geometry of the outputs of a conversion.
struct Shape {
    flags: u32,
    /// Max nonzeros of a row.
    top: usize,
    /// Slots of a group.
    group: usize,
    /// Total slots.
    capacity: usize,
}

/// Resident thread blocks of a compaction per multiprocessor.
const RESIDENT: usize = 3;

/// Returns the segments of a row of `k` elements, read `vector` elements at a time, and the columns of a segment.
fn segments(k: usize, vector: usize) -> (usize, usize) {
    let line = 32 * vector;
    let vectors = k.div_ceil(line).clamp(1, SEGMENT_VECTORS as usize);
    (k.div_ceil(vectors * line), vectors * line)
}
