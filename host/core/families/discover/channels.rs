//! Launches of device kernels `channels`, two kernels per run. They list the nonempty columns of items and pack their
//! values.

use std::sync::Arc;

use einsparse_kernels::abi::Divisor;
use einsparse_kernels::families::{
    CHANNEL_COLUMNS, CHANNEL_ROOM, CHANNEL_VECTOR, CHANNEL_WIDTH, ChannelsParams, DETECT_THREADS,
    STEP_MARK_CHANNELS, STEP_PACK_CHANNELS,
};
use einsparse_kernels::table::{Row, rows_of};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::discover::{DeviceLists, list_stride};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, MAX_GRID_Y, Turns, aligned_to, small, within};
use crate::registry::{Dtype, none_of};
use crate::tensor::DenseMatrix;

/// Distribution of the rows of an item over thread blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deal {
    /// Thread blocks per item, along its rows.
    parts: usize,
    /// Rows per thread block.
    block_rows: usize,
    /// Rows per step of a thread block.
    step: usize,
}

impl Deal {
    /// Distributes the rows over at most `wave` thread blocks, in steps of at most `step` rows. `whole`: each step has
    /// exactly `step` rows. Otherwise the steps of a thread block have the same length.
    fn new(rows: usize, wave: usize, step: usize, whole: bool) -> Self {
        let step = step.max(1);
        let block_rows = rows.div_ceil(wave.max(1)).max(1);
        let steps = block_rows.div_ceil(step);
        let step = if whole { step } else { block_rows.div_ceil(steps) };
        let block_rows = step * steps;
        Deal { parts: rows.div_ceil(block_rows), block_rows, step }
    }
}

/// Kernel with its geometry.
#[derive(Debug)]
struct Part {
    kernel: Kernel<ChannelsParams>,
    params: ChannelsParams,
    grid: [u32; 3],
}

/// Both kernels, for items of one shape.
#[derive(Debug)]
pub(crate) struct ChannelsLaunch {
    mark: Part,
    pack: Part,
    items: usize,
    /// Number of elements of all packed rows.
    packed: usize,
}

/// Returns the kernel of a step for elements of this size.
fn find(step: u32, dtype: Dtype) -> Result<&'static Row> {
    let own = rows_of::<ChannelsParams>().filter(|row| row.step == step);
    let fits = |row: &&Row| row.dtype.bytes() == dtype.bytes();
    own.clone().find(fits).ok_or_else(|| {
        let what = format!("columns of {} that hold something", dtype.name());
        none_of(own, what, |row| format!("is for elements of {} bytes", row.dtype.bytes()))
    })
}

/// Returns the vectors of a row that a thread block marks, and the number of such parts of a row. The marks of each
/// part begin at a word.
fn strips(vectors: usize) -> (usize, usize) {
    let most = CHANNEL_WIDTH as usize;
    if vectors <= most {
        return (vectors.max(1), 1);
    }
    let width = vectors.div_ceil(vectors.div_ceil(most)).next_multiple_of(4);
    (width, vectors.div_ceil(width))
}

/// Returns the rows that shared memory holds at once, each followed by a vector of zeros.
fn rows_at_once(vectors: usize) -> usize {
    CHANNEL_ROOM as usize / ((vectors + 1) * 16)
}

fn room(items: usize, rows: usize, stride: usize) -> Result<usize> {
    let packed = items.saturating_mul(rows).saturating_mul(stride);
    let limit = isize::MAX as usize / 16;
    if packed > limit {
        return Err(Error::Overflow {
            what: "elements of the packed columns".into(),
            value: packed as u128,
            limit: limit as u128,
        });
    }
    Ok(packed)
}

impl ChannelsLaunch {
    /// Loads the kernels for `items` contiguous matrices of `rows` x `columns` elements of 2 bytes. Added to a
    /// magnitude, `above` sets the top bit if the element is above the threshold.
    pub(crate) fn new(
        device: &Device,
        dtype: Dtype,
        [items, rows, columns]: [usize; 3],
        above: u32,
    ) -> Result<Self> {
        if !matches!(dtype, Dtype::F16 | Dtype::Bf16) {
            return Err(Error::NoKernel {
                indirect: format!("columns of {}", dtype.name()),
                tried: Vec::new(),
            });
        }
        let [mark, pack] = [STEP_MARK_CHANNELS, STEP_PACK_CHANNELS].map(|step| find(step, dtype));
        let (mark, pack) = (mark?, pack?);
        within("columns", columns, CHANNEL_COLUMNS as usize)?;
        within("items", items, MAX_GRID_Y)?;
        let vectors = columns.div_ceil(CHANNEL_VECTOR as usize);
        let (width, across) = strips(vectors);
        let stride = list_stride(columns);
        let packed = room(items, rows, stride)?;
        let shared = ChannelsParams {
            width: Divisor::new(width as u32),
            across: Divisor::new(across as u32),
            vectors: Divisor::new(small("vectors of a row", vectors)?),
            rows: within("rows", rows, i32::MAX as usize / 2)?,
            columns: columns as u32,
            words: columns.div_ceil(32) as u32,
            stride: small("places of a list", stride)?,
            above,
            ..ChannelsParams::default()
        };
        // Thread blocks that the GPU holds at once, divided by the number of items.
        let wave = |row: &Row| {
            let all = (row.min_blocks * device.machine().multiprocessors) as usize;
            all.checked_div(items).unwrap_or(all)
        };
        let side_by_side = DETECT_THREADS as usize / width;
        let marking = Deal::new(rows, wave(mark) / across, side_by_side, true);
        let packing = Deal::new(rows, wave(pack), rows_at_once(vectors), false);
        let part = |row: &'static Row, deal: Deal, across: usize| {
            let blocks = deal.parts.saturating_mul(across);
            let blocks = within("thread blocks", blocks, MAX_GRID_X)?;
            let kernel = Kernel::load(device, row)?;
            // Without columns, no kernel is launched.
            let items = if columns == 0 { 0 } else { items as u32 };
            Ok::<_, Error>(Part {
                kernel,
                params: ChannelsParams {
                    block_rows: small("rows of a thread block", deal.block_rows)?,
                    step: deal.step as u32,
                    parts: small("thread blocks of an item", deal.parts)?,
                    ..shared
                },
                grid: [blocks, items, 1],
            })
        };
        Ok(ChannelsLaunch {
            mark: part(mark, marking, across)?,
            pack: part(pack, packing, 1)?,
            items,
            packed,
        })
    }

    /// Returns the names of the kernels, in the order of a run.
    pub(crate) fn names(&self) -> [&'static str; 2] {
        [self.mark.kernel.row().name, self.pack.kernel.row().name]
    }

    /// Allocates the lists and the packed columns. `status` holds a counter of 8 bytes per item, then the marks.
    pub(crate) fn lists(&self, device: &Device) -> Result<DeviceLists> {
        let (items, p) = (self.items, &self.mark.params);
        Ok(DeviceLists {
            lists: device.zeros((items * p.stride as usize * 4).max(16))?,
            counts: device.zeros((items * 4).max(16))?,
            status: device.zeros((items * (8 + p.words as usize * 4)).max(16))?,
            packed: Some(device.zeros((self.packed * 2).max(16))?),
            turns: Arc::new(Turns::new(device)?),
        })
    }

    /// Queues both kernels: lists, counts and packed columns of `matrix`, whose items are contiguous. `lists` must be
    /// created by [`ChannelsLaunch::lists`]. The caller serializes runs with the same lists.
    ///
    /// # Errors
    /// [`Error::Alignment`] if the address or the row stride is not a multiple of 16 bytes.
    pub(crate) fn run(
        &self,
        matrix: DenseMatrix,
        lists: &DeviceLists,
        queue: Queue<'_>,
    ) -> Result<()> {
        let row_bytes = matrix.leading.saturating_mul(2);
        aligned_to("matrix", (matrix.address, row_bytes), 16)?;
        for part in [&self.mark, &self.pack] {
            if part.grid.contains(&0) {
                continue;
            }
            let status = lists.status.address();
            let params = ChannelsParams {
                source: matrix.address,
                row_bytes: row_bytes as u64,
                counters: status,
                marks: status + self.items as u64 * 8,
                lists: lists.lists.address(),
                counts: lists.counts.address(),
                packed: lists.packed.as_ref().map_or(0, DeviceMemory::address),
                ..part.params
            };
            // Each kernel waits for the previous launch before it reads.
            let grid = Grid::of(part.grid).early();
            queue.launch(&part.kernel, grid, &params)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that each row and each vector has one thread block, that shared memory holds a step, and that parts begin
    /// at a word of marks.
    #[test]
    fn rows_and_vectors_are_dealt_once() {
        for vectors in (1..140).chain([256, 513, 1023, 1024]) {
            let (width, across) = strips(vectors);
            assert!(width <= CHANNEL_WIDTH as usize && width * across >= vectors);
            assert!(width * (across - 1) < vectors, "{vectors}");
            assert!(across == 1 || width.is_multiple_of(4), "{vectors}");
            for rows in [1, 7, 49, 300, 3136, 1_000_003] {
                for wave in [0, 1, 16, 528] {
                    for (most, whole) in
                        [(DETECT_THREADS as usize / width, true), (rows_at_once(vectors), false)]
                    {
                        let deal = Deal::new(rows, wave, most, whole);
                        assert!((1..=most).contains(&deal.step), "{deal:?}");
                        assert!(deal.parts * deal.block_rows >= rows, "{deal:?}");
                        assert!((deal.parts - 1) * deal.block_rows < rows, "{deal:?}");
                        assert!(deal.parts <= wave.max(1), "{deal:?}");
                    }
                }
            }
        }
    }
}
