//! Columns of items that hold something, and their values: module `channels`, two kernels a run.

use std::sync::Arc;

use einsparse_kernels::abi::Divisor;
use einsparse_kernels::families::{
    CHANNEL_COLUMNS, CHANNEL_ROOM, CHANNEL_VECTOR, CHANNEL_WIDTH, ChannelsParams, DETECT_THREADS,
    STEP_MARK_CHANNELS, STEP_PACK_CHANNELS,
};
use einsparse_kernels::table::{Row, kernels};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::convert::DenseMatrix;
use crate::families::discover::{DeviceLists, list_stride};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, MAX_GRID_Y, Turns, small, within};
use crate::registry::{Dtype, none_of};

/// How the rows of an item are dealt to thread blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deal {
    /// Thread blocks of an item, along its rows.
    parts: usize,
    /// Rows of each.
    block_rows: usize,
    /// Of those at once.
    step: usize,
}

impl Deal {
    /// To no more thread blocks than `wave` if the steps, of at most `step` rows each, allow it; `whole`: steps are of
    /// so many rows always, else all steps of a thread block are as long.
    fn new(rows: usize, wave: usize, step: usize, whole: bool) -> Self {
        let step = step.max(1);
        let block_rows = rows.div_ceil(wave.max(1)).max(1);
        let steps = block_rows.div_ceil(step);
        let step = if whole { step } else { block_rows.div_ceil(steps) };
        let block_rows = step * steps;
        Deal { parts: rows.div_ceil(block_rows), block_rows, step }
    }
}

/// A kernel with its geometry.
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
    /// Elements of all packed rows.
    packed: usize,
}

/// The kernel of a step.
fn find(step: u32, dtype: Dtype) -> Result<&'static Row> {
    let own = kernels().iter().filter(|row| row.module == "channels" && row.step == step);
    let fits = |row: &&Row| row.dtype.bytes() == dtype.bytes();
    own.clone().find(fits).ok_or_else(|| {
        let what = format!("columns of {} that hold something", dtype.name());
        none_of(own, what, |row| format!("is for elements of {} bytes", row.dtype.bytes()))
    })
}

/// Vectors of a row that a thread block marks, and such parts of a row: the marks of a part begin with a word.
fn strips(vectors: usize) -> (usize, usize) {
    let most = CHANNEL_WIDTH as usize;
    if vectors <= most {
        return (vectors.max(1), 1);
    }
    let width = vectors.div_ceil(vectors.div_ceil(most)).next_multiple_of(4);
    (width, vectors.div_ceil(width))
}

/// Rows that shared memory holds at once, with a vector of zeros behind each.
fn rows_at_once(vectors: usize) -> usize {
    CHANNEL_ROOM as usize / ((vectors + 1) * 16)
}

/// Elements of all packed rows.
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
    /// For `items` matrices of `rows` x `columns` elements of 2 bytes, one behind the other. `above`: what makes the
    /// top bit of an element that counts.
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
        // What the GPU holds at once, shared by the items.
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
            // Without columns there is nothing to find.
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

    /// The kernels, in the order of a run.
    pub(crate) fn names(&self) -> [&'static str; 2] {
        [self.mark.kernel.row().name, self.pack.kernel.row().name]
    }

    /// Room for the lists and the packed columns. `status`: a counter of 8 bytes for each item, then the marks.
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

    /// Queues both kernels: lists, counts and packed columns of `matrix`, whose items follow one another.
    ///
    /// # Errors
    /// [`Error::Operand`] if it, or a row of it, is not aligned to 16 bytes.
    /// `lists` are of [`ChannelsLaunch::lists`]; runs over the same ones follow one another.
    pub(crate) fn run(
        &self,
        matrix: DenseMatrix,
        lists: &DeviceLists,
        queue: Queue<'_>,
    ) -> Result<()> {
        let row_bytes = matrix.leading.saturating_mul(2);
        if !matrix.address.is_multiple_of(16) || !row_bytes.is_multiple_of(16) {
            let reason = format!(
                "address {:#x} and rows of {row_bytes} bytes must be multiples of 16 bytes",
                matrix.address
            );
            return Err(Error::operand("matrix", reason));
        }
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
            // Each waits for the one ahead before it reads.
            let grid = Grid::of(part.grid).early();
            queue.launch(&part.kernel, grid, &params)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every row and every vector has one thread block, shared memory holds a step, and parts begin with a word of
    /// marks.
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
