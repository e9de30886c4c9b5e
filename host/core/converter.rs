//! Conversions of raw addresses: created once for a shape, run any number of times.

use einsparse_formats::FormatError;
use einsparse_formats::convert::{BlockChoice, EntryChoice};

use crate::context::Context;
use crate::driver::RawStream;
use crate::error::{Error, Result};
use crate::families::convert::{
    Blocks, Conversion, Entries, RawBlocks, RawEntries, Request, SortOut, Transpose,
};
use crate::kernel::Queue;
use crate::registry::{Dtype, Scalar};

/// Converts matrices of one shape on a GPU, any number of times, without allocating and without waiting for the host.
/// It serves matrices that are computed on the GPU, and CUDA graphs. These functions convert tensors in one call:
/// [`Context::blocks_from_dense`], [`Context::csr_from_dense`], [`SparseTensor::to_blocks`],
/// [`SparseTensor::to_entries`], [`SparseTensor::transposed`].
///
/// Each conversion reads and writes some addresses of a [`RawConversion`], and ignores the others:
///
/// | made by | reads | writes |
/// |---|---|---|
/// | `blocks_from_dense` | `dense`, `leading` | `out_rows`, `out_columns`, `out_values` |
/// | `blocks_from_csr` | `offsets`, `columns`, `values` | `out_rows`, `out_columns`, `out_values` |
/// | `csr_from_dense` | `dense`, `leading` | `out_offsets`, `out_columns`, `out_values` |
/// | `csr_from_coo` | `rows` | `out_offsets` |
/// | `coo_from_csr` | `offsets` | `out_rows` |
/// | `group_coo_from_csr` | `offsets`, `columns`, `values` | `out_rows`, `out_columns`, `out_values` |
/// | `ell_from_csr` | `offsets`, `columns`, `values` | `out_columns`, `out_values` |
/// | `transpose` | `offsets`, `columns` | `out_offsets`, `out_columns`, `out_permutation` |
///
/// ```
/// use einsparse::raw::{DeviceMemory, RawConversion};
/// use einsparse::{Context, Converter};
/// let ctx = Context::new();
/// if let Some(device) = ctx.device() {
///     let stream = ctx.stream()?;
///     let (context, raw) = (device.context(), stream.raw());
///     let offsets = DeviceMemory::from_slice(context, &[0u32, 2, 2, 3], raw)?;
///     let rows = DeviceMemory::alloc(context, 4 * 4)?; // whole vectors of 16 bytes
///     let converter = Converter::coo_from_csr(&ctx, (3, 5))?;
///     let addresses = RawConversion::default().offsets(offsets.address()).out_rows(rows.address()).capacity(3);
///     // SAFETY: the arrays have these sizes and live until the stream has waited.
///     unsafe { converter.run_raw(&addresses, raw)? };
///     stream.synchronize()?;
///     let mut found = [0u32; 3];
///     rows.read(&mut found, raw)?;
///     assert_eq!(found, [0, 0, 2]);
/// }
/// # Ok::<(), einsparse::Error>(())
/// ```
///
/// [`SparseTensor::to_blocks`]: crate::SparseTensor::to_blocks
/// [`SparseTensor::to_entries`]: crate::SparseTensor::to_entries
/// [`SparseTensor::transposed`]: crate::SparseTensor::transposed
#[derive(Debug)]
pub struct Converter {
    kind: Kind,
    /// Rows and columns.
    shape: (usize, usize),
}

#[derive(Debug)]
enum Kind {
    Blocks(Box<Blocks>),
    Entries(Entries),
    Transpose(Transpose, usize),
}

/// Device addresses of one run of a [`Converter`]. The table of [`Converter`] lists which of them a conversion reads
/// and writes. All others stay 0.
///
/// ```
/// use einsparse::raw::RawConversion;
/// let raw = RawConversion::default().offsets(0x7000).out_rows(0x9000).capacity(3);
/// assert_eq!(raw.columns, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawConversion {
    /// The dense matrix `[m, k]`, row-major.
    pub dense: u64,
    /// Row stride of the dense matrix, in elements.
    pub leading: usize,
    /// Row offsets of CSR, `u32[m + 1]`.
    pub offsets: u64,
    /// Row of each nonzero of COO, in order, u32; 16-byte aligned.
    pub rows: u64,
    /// Columns of CSR, u32. For blocks: 16-byte aligned, and 4 elements past the end must be readable.
    pub columns: u64,
    /// Values of CSR.
    pub values: u64,
    /// Row offsets of CSR, `u32[m + 1]`; of the transpose `u32[k + 1]`.
    pub out_offsets: u64,
    /// Row of each nonzero of COO, or of each group of GroupCOO, 16-byte aligned; block row of each group of blocks.
    /// u32.
    pub out_rows: u64,
    /// Column of each nonzero or slot, or block column of each block, u32.
    pub out_columns: u64,
    /// Values; blocks as `[capacity, rows, columns]`, 16-byte aligned.
    pub out_values: u64,
    /// Index in the matrix of each nonzero of the transpose, u32.
    pub out_permutation: u64,
    /// Number of nonzeros of COO, or capacity of the outputs in nonzeros, slots or blocks, a multiple of the group
    /// size. Elements past the capacity are not written. A transpose uses the number of nonzeros that it was created
    /// for.
    pub capacity: usize,
}

setters! {
    RawConversion { dense: u64, leading: usize, offsets: u64, rows: u64, columns: u64, values: u64, out_offsets: u64, out_rows: u64, out_columns: u64, out_values: u64, out_permutation: u64, capacity: usize }
}

pub(crate) fn not_zero(what: &'static str, size: usize) -> Result<()> {
    if size > 0 {
        return Ok(());
    }
    let (found, expected) = ("0".into(), "at least 1".into());
    Err(FormatError::Shape { what, found, expected }.into())
}

/// Checks that block extents and group size are not 0.
pub(crate) fn check_blocks(block: (usize, usize), group: usize) -> Result<()> {
    not_zero("block rows", block.0)?;
    not_zero("block columns", block.1)?;
    not_zero("group", group)
}

impl Converter {
    /// Creates a conversion of dense matrices of `m` x `k` to blocks of `block` rows and columns, in groups of `group`.
    ///
    /// # Errors
    /// In a CPU context; if a block extent, the group size or the threshold is invalid; if a size is too large.
    pub fn blocks_from_dense<T: Scalar>(
        context: &Context,
        shape: (usize, usize),
        block: (usize, usize),
        group: usize,
        choice: BlockChoice,
    ) -> Result<Self> {
        choice.check()?;
        Self::blocks::<T>(context, shape, block, group, Some(choice))
    }

    /// Creates a conversion of CSR matrices of `m` x `k` to blocks. Every block with a nonzero is stored.
    ///
    /// # Errors
    /// As [`Converter::blocks_from_dense`].
    pub fn blocks_from_csr<T: Scalar>(
        context: &Context,
        shape: (usize, usize),
        block: (usize, usize),
        group: usize,
    ) -> Result<Self> {
        Self::blocks::<T>(context, shape, block, group, None)
    }

    fn blocks<T: Scalar>(
        context: &Context,
        (m, k): (usize, usize),
        block: (usize, usize),
        group: usize,
        choice: Option<BlockChoice>,
    ) -> Result<Self> {
        let device = context.expect_device()?;
        check_blocks(block, group)?;
        let dtype = T::DTYPE;
        let request = Request { m, k, block, group, choice, dtype };
        let kind = Kind::Blocks(Box::new(Blocks::new(device, request)?));
        let shape = (m, k);
        Ok(Converter { kind, shape })
    }

    /// Creates a conversion of dense matrices of `m` x `k` to CSR, with the nonzeros that `choice` selects.
    ///
    /// # Errors
    /// In a CPU context; if the threshold is invalid; if m times k exceeds u32.
    pub fn csr_from_dense<T: Scalar>(
        context: &Context,
        shape: (usize, usize),
        choice: EntryChoice,
    ) -> Result<Self> {
        choice.check()?;
        let floor = floor_of::<T>(choice);
        Self::entries(context, T::DTYPE, shape, Conversion::Dense(choice), floor)
    }

    /// Creates a conversion of CSR matrices of `m` x `k` to COO. Columns and values do not change.
    ///
    /// # Errors
    /// In a CPU context, or if a size is too large.
    pub fn coo_from_csr(context: &Context, shape: (usize, usize)) -> Result<Self> {
        Self::entries(context, Dtype::F32, shape, Conversion::ToCoo, 0)
    }

    /// Creates a conversion of COO matrices of `m` x `k`, ordered by row, with `capacity` nonzeros, to CSR. Columns and
    /// values do not change.
    ///
    /// # Errors
    /// As [`Converter::coo_from_csr`].
    pub fn csr_from_coo(context: &Context, shape: (usize, usize)) -> Result<Self> {
        Self::entries(context, Dtype::F32, shape, Conversion::FromCoo, 0)
    }

    /// Creates a conversion of CSR matrices of `m` x `k` to GroupCOO with groups of `group`.
    ///
    /// # Errors
    /// As [`Converter::coo_from_csr`], and if the group size is 0.
    pub fn group_coo_from_csr<T: Scalar>(
        context: &Context,
        shape: (usize, usize),
        group: usize,
    ) -> Result<Self> {
        not_zero("group", group)?;
        Self::entries(context, T::DTYPE, shape, Conversion::GroupCoo(group), 0)
    }

    /// Creates a conversion of CSR matrices of `m` x `k` to ELL of this width. Rows must not have more nonzeros than
    /// `width`.
    ///
    /// # Errors
    /// As [`Converter::coo_from_csr`].
    pub fn ell_from_csr<T: Scalar>(
        context: &Context,
        shape: (usize, usize),
        width: usize,
    ) -> Result<Self> {
        Self::entries(context, T::DTYPE, shape, Conversion::Ell(width), 0)
    }

    fn entries(
        context: &Context,
        dtype: Dtype,
        shape: (usize, usize),
        conversion: Conversion,
        floor: u64,
    ) -> Result<Self> {
        let device = context.expect_device()?;
        let kind = Kind::Entries(Entries::new(device, shape, dtype, conversion, floor)?);
        Ok(Converter { kind, shape })
    }

    /// Creates a conversion of CSR patterns of `m` x `k` with `entries` nonzeros to those of their transposes, by a
    /// stable counting sort. The permutation holds the index in the matrix of each value of the transpose.
    ///
    /// # Errors
    /// In a CPU context, or if a size is too large.
    pub fn transpose(context: &Context, shape: (usize, usize), entries: usize) -> Result<Self> {
        let device = context.expect_device()?;
        let transpose = Transpose::new(device, shape, entries, false, Dtype::F32)?;
        let kind = Kind::Transpose(transpose, entries);
        Ok(Converter { kind, shape })
    }

    /// Device bytes of the workspace.
    pub fn workspace_bytes(&self) -> usize {
        match &self.kind {
            Kind::Blocks(blocks) => blocks.bytes(),
            Kind::Entries(entries) => entries.bytes(),
            Kind::Transpose(transpose, _) => transpose.bytes(),
        }
    }

    /// Queues one conversion. Slots without a nonzero, and blocks that fill up a group, have column 4294967295 and
    /// zeros.
    ///
    /// # Safety
    /// - Until the work is done, the addresses hold the arrays that [`RawConversion`] describes, of this converter's
    ///   shape and element type.
    /// - The inputs follow the rules of their format.
    /// - Runs of one converter share its workspace and must not overlap.
    /// - The stream belongs to the GPU's primary context.
    ///
    /// # Errors
    /// [`Error::RowStride`] if rows of the dense matrix overlap, [`Error::OutOfRange`] if the capacity is not a
    /// multiple of the group size, [`Error::MissingOperand`] if a required address is 0; [`Error::Overflow`] if the
    /// capacity is too large.
    pub unsafe fn run_raw(&self, raw: &RawConversion, stream: RawStream<'_>) -> Result<()> {
        self.check(raw)?;
        // SAFETY: guaranteed by the caller.
        let queue = unsafe { Queue::new(stream) };
        match &self.kind {
            Kind::Blocks(blocks) => {
                let raw = raw.of_blocks(blocks.request().choice.is_some());
                blocks.survey(&raw, queue)?;
                blocks.write(&raw, queue)
            }
            Kind::Entries(entries) => entries.run(&raw.of_entries(entries.conversion()), queue),
            Kind::Transpose(transpose, entries) => {
                let out = SortOut {
                    first: raw.out_permutation,
                    second: raw.out_columns,
                    capacity: *entries,
                    ..SortOut::default()
                };
                transpose.run([raw.offsets, raw.columns], raw.out_offsets, out, queue)
            }
        }
    }

    /// Refuses an address of 0 for an array with elements. The number of nonzeros of a CSR input is not known on the
    /// host.
    fn check(&self, raw: &RawConversion) -> Result<()> {
        let (m, k) = self.shape;
        let dense = ("dense", raw.dense, m > 0 && k > 0);
        let room = raw.capacity > 0;
        let offsets = ("offsets", raw.offsets, true);
        let out_offsets = ("out_offsets", raw.out_offsets, true);
        let out_rows = ("out_rows", raw.out_rows, room);
        let out_columns = ("out_columns", raw.out_columns, room);
        let out_values = ("out_values", raw.out_values, room);
        let given = match &self.kind {
            Kind::Blocks(blocks) => {
                let source = match blocks.request().choice {
                    Some(_) => dense,
                    None => offsets,
                };
                vec![source, out_rows, out_columns, out_values]
            }
            Kind::Entries(entries) => match entries.conversion() {
                Conversion::Dense(_) => vec![dense, out_offsets, out_columns, out_values],
                Conversion::ToCoo => vec![offsets, out_rows],
                Conversion::FromCoo => vec![("rows", raw.rows, room), out_offsets],
                Conversion::GroupCoo(_) => vec![offsets, out_rows, out_columns, out_values],
                Conversion::Ell(_) => vec![offsets, out_columns, out_values],
            },
            Kind::Transpose(_, entries) => {
                let some = *entries > 0;
                vec![
                    offsets,
                    ("columns", raw.columns, some),
                    out_offsets,
                    ("out_columns", raw.out_columns, some),
                    ("out_permutation", raw.out_permutation, some),
                ]
            }
        };
        match given.iter().find(|(_, address, has)| *has && *address == 0) {
            Some((name, ..)) => Err(Error::at_zero(name)),
            None => Ok(()),
        }
    }

    /// First group of each row, or of each block row, then the number of groups, of the last run to blocks or GroupCOO.
    /// Empty for other conversions. Waits for all work on the GPU.
    pub fn groups(&self) -> Result<Vec<u32>> {
        match &self.kind {
            Kind::Blocks(blocks) => blocks.starts(),
            Kind::Entries(entries) => entries.starts(),
            Kind::Transpose(..) => Ok(Vec::new()),
        }
    }
}

impl RawConversion {
    fn of_blocks(&self, dense: bool) -> RawBlocks {
        RawBlocks {
            source: if dense { self.dense } else { self.values },
            leading: self.leading,
            offsets: self.offsets,
            columns: self.columns,
            slot_columns: self.out_columns,
            group_rows: self.out_rows,
            values: self.out_values,
            capacity: self.capacity,
        }
    }

    fn of_entries(&self, conversion: Conversion) -> RawEntries {
        let dense = matches!(conversion, Conversion::Dense(_));
        let from_coo = conversion == Conversion::FromCoo;
        RawEntries {
            source: if dense { self.dense } else { self.values },
            leading: self.leading,
            offsets: match dense || from_coo {
                true => self.out_offsets,
                false => self.offsets,
            },
            columns: self.columns,
            rows: if from_coo { self.rows } else { self.out_rows },
            out_columns: self.out_columns,
            out_values: self.out_values,
            capacity: self.capacity,
        }
    }
}

/// Bits of the magnitude that selected elements must exceed. It is 0 if the choice is the k largest of each row.
pub(crate) fn floor_of<T: Scalar>(choice: EntryChoice) -> u64 {
    match choice {
        EntryChoice::Above(threshold) => floor_bits::<T>(threshold),
        // No magnitude exceeds this value.
        EntryChoice::TopPerRow(0) => u64::MAX,
        _ => 0,
    }
}

/// Bits of the largest magnitude of this type that is not above the threshold.
fn floor_bits<T: Scalar>(threshold: f64) -> u64 {
    // A zero of either sign is the threshold 0.
    let nearest = T::from_f64(threshold.abs());
    let mut bytes = [0; 8];
    let own = bytemuck::bytes_of(&nearest);
    bytes[..own.len()].copy_from_slice(own);
    let bits = u64::from_le_bytes(bytes);
    // If the threshold was rounded up, use the next smaller magnitude. Bits of magnitudes ascend with the magnitudes.
    if nearest.to_f64() > threshold { bits - 1 } else { bits }
}

#[cfg(test)]
mod tests {
    use super::floor_bits;
    use einsparse_formats::f16;

    /// A magnitude exceeds the threshold if and only if its bits exceed these.
    #[test]
    fn thresholds_are_rounded_down() {
        assert_eq!(floor_bits::<f32>(0.0), 0);
        assert_eq!(floor_bits::<f32>(-0.0), 0);
        assert_eq!(floor_bits::<f32>(1.0), u64::from(1f32.to_bits()));
        let largest = u64::from(f16::MAX.to_bits());
        assert_eq!(floor_bits::<f16>(1e6), largest);
        assert_eq!(floor_bits::<f16>(f64::INFINITY), largest + 1);
        let above = 1.0 + 1e-12;
        assert_eq!(floor_bits::<f32>(above), u64::from(1f32.to_bits()));
        let below = 1.0 - 1e-12;
        assert_eq!(floor_bits::<f32>(below), u64::from(1f32.to_bits()) - 1);
    }
}
