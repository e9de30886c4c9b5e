//! Block formats created on the device of a context: from a dense matrix, by a choice of blocks, and from CSR. On a GPU
//! the values are never copied to the host. The pattern is copied to the host, because plans read it there.

use std::sync::Arc;

use einsparse_formats::convert::{
    BlockChoice, dense_to_block_coo, dense_to_block_group_coo, dense_to_bsr,
};
use einsparse_formats::stats::RowStats;
use einsparse_formats::{
    AnyPattern, AnySparse, BlockCooPattern, BlockGroupCooPattern, BsrPattern, Format, FormatError,
    Pattern, SharedPattern, allocate,
};

use crate::context::Context;
use crate::converter::check_blocks;
use crate::device::Device;
use crate::driver::{DeviceMemory, memset_d8_async};
use crate::error::{Error, Result};
use crate::families::convert::{Blocks, RawBlocks, Request};
use crate::kernel::Queue;
use crate::operator::run_alone;
use crate::registry::Scalar;
use crate::tensor::{DeviceArrays, SparseTensor, Tensor, VECTOR_ENTRIES};

/// Block extents and group size of a block format. The size is 1 for formats without groups, and `None` if it is left
/// open.
fn blocks_of(format: Format) -> Result<((usize, usize), Option<usize>)> {
    match format {
        Format::Bsr { block } | Format::BlockCoo { block } => Ok((block, Some(1))),
        Format::BlockGroupCoo { block, group } => Ok((block, group)),
        other => {
            Err(Error::range("format", other, "a format of blocks: bsr, blockcoo or blockgroupcoo"))
        }
    }
}

impl Context {
    /// Converts a dense matrix of this context to a block format (`bsr`, `blockcoo`, `blockgroupcoo`), with the blocks
    /// that `choice` selects. Blocks are stored whole, with zeros past the edges of the matrix. Blocks and bits are
    /// equal on GPU and CPU. Waits for all work on the GPU.
    ///
    /// ```
    /// use einsparse::formats::{Dense, Format};
    /// use einsparse::Context;
    /// use einsparse::formats::convert::BlockChoice;
    ///
    /// let ctx = Context::new();
    /// let a = ctx.upload_dense(&Dense::from_fn([64, 64], |i| if i[0] / 16 == i[1] / 16 { 1f32 } else { 0.0 })?)?;
    /// let format: Format = "blockgroupcoo:16x16".parse()?;
    /// let blocks = ctx.blocks_from_dense(&a, format, BlockChoice::NonZero)?;
    /// assert_eq!(blocks.to_host()?.nnz(), 4 * 16 * 16);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the tensor is not a matrix or is in another context, the format has no blocks, a size is 0 or exceeds u32,
    /// the threshold is negative or NaN, or memory is exhausted.
    pub fn blocks_from_dense<T: Scalar>(
        &self,
        dense: &Tensor<T>,
        format: Format,
        choice: BlockChoice,
    ) -> Result<SparseTensor<T>> {
        let (block, group) = blocks_of(format)?;
        let &[m, k] = dense.shape() else {
            let (found, expected) = (dense.shape().len().to_string(), "2".into());
            return Err(FormatError::Shape { what: "order", found, expected }.into());
        };
        match (self.device(), dense.device()) {
            (None, None) => {
                let dense = dense.to_dense()?;
                self.upload(match format {
                    Format::Bsr { .. } => dense_to_bsr(&dense, block, choice)?.into(),
                    Format::BlockCoo { .. } => dense_to_block_coo(&dense, block, choice)?.into(),
                    _ => AnySparse::from(dense_to_block_group_coo(&dense, block, choice, group)?),
                })
            }
            (Some(device), Some(own)) if device.is_same(own) => {
                choice.check()?;
                let blocks = on::<T>(device, (m, k), block, group, Some(choice))?;
                let raw = RawBlocks {
                    source: dense.address().unwrap_or(0),
                    leading: dense.leading(),
                    ..RawBlocks::default()
                };
                blocks.convert(device, raw, format, group, None)
            }
            _ => Err(Error::elsewhere("dense")),
        }
    }
}

impl<T: Scalar> SparseTensor<T> {
    /// Converts a CSR matrix to a block format (`bsr`, `blockcoo`, `blockgroupcoo`) on its own device. Every block with
    /// a nonzero becomes dense, as in [`AnySparse::convert`]. Waits for all work on the GPU.
    ///
    /// # Errors
    /// If the tensor is not in CSR, the format has no blocks, a size is 0 or exceeds u32, or memory is exhausted.
    pub fn to_blocks(&self, format: Format) -> Result<SparseTensor<T>> {
        let (block, group) = blocks_of(format)?;
        let AnyPattern::Csr(p) = self.pattern() else {
            return Err(Error::format("sparse", "csr", self.format()));
        };
        let Some(arrays) = self.device() else {
            return SparseTensor::new(None, self.to_host()?.convert(format)?);
        };
        let device = &arrays.device;
        let shape = (p.rows(), p.cols());
        let blocks = on::<T>(device, shape, block, group, None)?;
        let offsets = device.upload(p.offsets())?;
        let raw = RawBlocks {
            source: arrays.values.address(),
            offsets: offsets.address(),
            columns: arrays.columns.address(),
            ..RawBlocks::default()
        };
        let held = allocate::bytes_of(&p.arrays()) + (p.nnz() * size_of::<T>()) as u64;
        blocks.convert(device, raw, format, group, Some(held))
    }
}

/// Creates the block converter of a matrix. Groups have size 1 until a size is chosen.
fn on<T: Scalar>(
    device: &Arc<Device>,
    (m, k): (usize, usize),
    block: (usize, usize),
    group: Option<usize>,
    choice: Option<BlockChoice>,
) -> Result<Blocks> {
    let (group, dtype) = (group.unwrap_or(1), T::DTYPE);
    check_blocks(block, group)?;
    let request = Request { m, k, block, group, choice, dtype };
    Blocks::new(device, request)
}

impl Blocks {
    /// Counts the blocks, allocates, and writes the output; `raw` holds the addresses of the source. A sparse source
    /// occupies `held` bytes, which limit the output as on the CPU.
    fn convert<T: Scalar>(
        mut self,
        device: &Arc<Device>,
        raw: RawBlocks,
        format: Format,
        group: Option<usize>,
        held: Option<u64>,
    ) -> Result<SparseTensor<T>> {
        let starts = run_alone(device, |queue| self.starts_of(&raw, group, queue))?;
        let Request { block: (bm, bk), group, .. } = *self.request();
        let groups = starts.last().map_or(0, |&n| n as usize);
        let slots = groups.saturating_mul(group);
        let elements = [bm, bk].iter().fold(slots as u128, |n, &e| n * e as u128);
        if elements > u128::from(u32::MAX) {
            let (what, limit) = ("slots", u32::MAX.into());
            return Err(FormatError::Overflow { what, value: elements, limit }.into());
        }
        if let Some(held) = held {
            let bytes = elements * size_of::<T>() as u128 + 4 * slots as u128;
            allocate::extent_bytes("slots with padding", elements, bytes, held)?;
        }
        let columns = padded(device, slots * 4, VECTOR_ENTRIES * 4)?;
        let values =
            padded(device, elements as usize * size_of::<T>(), VECTOR_ENTRIES * size_of::<T>())?;
        let group_rows = DeviceMemory::alloc(device.context(), groups * 4)?;
        let raw = RawBlocks {
            slot_columns: columns.address(),
            group_rows: group_rows.address(),
            values: values.address(),
            capacity: slots,
            ..raw
        };
        run_alone(device, |queue| self.write(&raw, queue))?;
        let mut slot_columns = allocate::zeroed("columns", slots)?;
        device.read(&columns, &mut slot_columns)?;
        let pattern = self.pattern(format, starts, slot_columns)?;
        let device = Arc::clone(device);
        SparseTensor::made(pattern, DeviceArrays { columns: columns.into(), values, device })
    }

    /// First group of each block row, then the number of groups. If no group size is given, the best one is chosen.
    fn starts_of(
        &mut self,
        raw: &RawBlocks,
        group: Option<usize>,
        queue: Queue<'_>,
    ) -> Result<Vec<u32>> {
        self.survey(raw, queue)?;
        if group.is_none() {
            let counts = self.counts()?;
            let best = RowStats::from_counts(counts.iter().map(|&n| n as usize)).group();
            self.regroup(best)?;
            self.place(queue)?;
        }
        self.starts()
    }

    /// The pattern in host memory, validated as if a user had passed it.
    fn pattern(
        &self,
        format: Format,
        starts: Vec<u32>,
        columns: Vec<u32>,
    ) -> Result<SharedPattern> {
        let Request { m, k, block, group, .. } = *self.request();
        let rows = || {
            let runs = (0u32..).zip(starts.windows(2));
            runs.flat_map(|(row, w)| std::iter::repeat_n(row, (w[1] - w[0]) as usize)).collect()
        };
        Ok(match format {
            Format::Bsr { .. } => BsrPattern::new(m, k, block, starts, columns)?.into(),
            Format::BlockCoo { .. } => BlockCooPattern::new(m, k, block, rows(), columns)?.into(),
            _ => BlockGroupCooPattern::new(m, k, block, group, rows(), columns)?.into(),
        })
    }
}

/// Device memory of `bytes` bytes, followed by `room` bytes of zeros: kernels load whole vectors.
pub(crate) fn padded(device: &Device, bytes: usize, room: usize) -> Result<DeviceMemory> {
    let memory = DeviceMemory::alloc(device.context(), bytes + room)?;
    // SAFETY: the range is the end of the allocation, which outlives all work: freeing waits for it.
    unsafe { memset_d8_async(memory.address() + bytes as u64, 0, room, device.after_all()?)? };
    Ok(memory)
}
