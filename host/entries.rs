//! Formats of single entries made where the context works: from a dense matrix, between CSR, COO, GroupCOO and ELL, and
//! transposed; patterns that the GPU made, checked there. What a conversion allocates and reads back is for the
//! plans, which keep the pattern on the host; [`EntryConverter`] and [`PatternTransposer`] do neither.

use std::marker::PhantomData;
use std::sync::Arc;

use einsparse_formats::convert::dense_to_csr_by;
use einsparse_formats::stats::RowStats;
use einsparse_formats::{
    AnySparse, Coo, CooPattern, Csr, CsrPattern, Ell, EllPattern, Format, FormatError, GroupCoo,
    GroupCooPattern,
};

use crate::context::Context;
use crate::convert::padded;
use crate::device::Device;
use crate::driver::{DeviceMemory, RawStream, copy_dtod_async};
use crate::error::{Error, Result};
use crate::launch::{Conversion, Entries, SortOut, Steps, Transpose, check};
use crate::registry::Scalar;
use crate::tensor::{DeviceArrays, SparseTensor, Tensor, VECTOR_ENTRIES, host_zeros};

pub use crate::launch::{Order, RawEntries};
pub use einsparse_formats::convert::EntryChoice;

/// Converts matrices of one shape to and between formats of single entries on a GPU, as often as wanted, without
/// allocating and without waiting for the host: for matrices that the GPU itself makes, and for graphs.
#[derive(Debug)]
pub struct EntryConverter<T> {
    entries: Entries,
    element: PhantomData<T>,
}

impl<T: Scalar> EntryConverter<T> {
    /// For dense matrices of `m` x `k` to CSR: reads `source` and `leading`, writes `offsets`, `out_columns` and
    /// `out_values`.
    ///
    /// # Errors
    /// In a CPU context; for a threshold that makes no sense; where m times k does not fit u32.
    pub fn from_dense(
        context: &Context,
        (m, k): (usize, usize),
        choice: EntryChoice,
    ) -> Result<Self> {
        choice.check()?;
        let floor = match choice {
            EntryChoice::Above(threshold) => floor_bits::<T>(threshold),
            _ => 0,
        };
        Self::new(context, (m, k), Conversion::Dense(choice), floor)
    }

    /// From CSR to COO: reads `offsets`, writes `rows`; the other arrays are the same.
    ///
    /// # Errors
    /// In a CPU context, and where a size does not fit.
    pub fn to_coo(context: &Context, (m, k): (usize, usize)) -> Result<Self> {
        Self::new(context, (m, k), Conversion::ToCoo, 0)
    }

    /// From COO, ordered by row, to CSR: reads `capacity` words of `rows`, writes `offsets`; the other arrays are the same.
    ///
    /// # Errors
    /// As [`EntryConverter::to_coo`].
    pub fn from_coo(context: &Context, (m, k): (usize, usize)) -> Result<Self> {
        Self::new(context, (m, k), Conversion::FromCoo, 0)
    }

    /// From CSR to GroupCOO with groups of `group`: reads `source`, `offsets` and `columns`, writes `rows`, `out_columns`
    /// and `out_values`.
    ///
    /// # Errors
    /// As [`EntryConverter::to_coo`], and for a group of 0.
    pub fn to_group_coo(context: &Context, (m, k): (usize, usize), group: usize) -> Result<Self> {
        if group == 0 {
            let (found, expected) = ("0".into(), "at least 1".into());
            let what = "group";
            return Err(FormatError::Shape {
                what,
                found,
                expected,
            }
            .into());
        }
        Self::new(context, (m, k), Conversion::GroupCoo(group), 0)
    }

    /// From CSR to ELL of this width: reads `source`, `offsets` and `columns`, writes `out_columns` and `out_values`. No row
    /// has more entries than the width.
    ///
    /// # Errors
    /// As [`EntryConverter::to_coo`].
    pub fn to_ell(context: &Context, (m, k): (usize, usize), width: usize) -> Result<Self> {
        Self::new(context, (m, k), Conversion::Ell(width), 0)
    }

    fn new(
        context: &Context,
        shape: (usize, usize),
        conversion: Conversion,
        floor: u64,
    ) -> Result<Self> {
        Self::on(context.expect_device()?, shape, conversion, floor)
    }

    fn on(
        device: &Arc<Device>,
        shape: (usize, usize),
        conversion: Conversion,
        floor: u64,
    ) -> Result<Self> {
        Ok(EntryConverter {
            entries: Entries::new(device, shape, T::DTYPE, conversion, floor)?,
            element: PhantomData,
        })
    }

    /// Queues one conversion. Slots without an entry hold the column 4294967295 and zero.
    ///
    /// # Safety
    /// The addresses hold what [`RawEntries`] says, of this converter's shape and element type, until the work is done;
    /// inputs follow the rules of their format. Runs of one converter share its workspace and must not overlap. The stream
    /// belongs to the GPU's primary context.
    ///
    /// # Errors
    /// For rows of a dense matrix that overlap, or a capacity that is no whole number of groups or does not fit.
    pub unsafe fn run_raw(&self, raw: &RawEntries, stream: RawStream<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.entries.run(raw, stream) }
    }

    /// First group of every row and the number of groups, of the last run to GroupCOO; empty for others. Waits for all
    /// work on the GPU.
    pub fn groups(&self) -> Result<Vec<u32>> {
        self.entries.starts()
    }
}

/// Bits of the largest magnitude of this type that is not above the threshold.
fn floor_bits<T: Scalar>(threshold: f64) -> u64 {
    let nearest = T::from_f64(threshold);
    let mut bytes = [0; 8];
    let own = bytemuck::bytes_of(&nearest);
    bytes[..own.len()].copy_from_slice(own);
    let bits = u64::from_le_bytes(bytes);
    // Rounded up: one below. Bits of magnitudes ascend with them.
    if nearest.to_f64() > threshold {
        bits - 1
    } else {
        bits
    }
}

/// Brings patterns of one shape and number of entries to those of their transposes on a GPU, as often as wanted,
/// without allocating and without waiting for the host: a stable counting sort by column.
#[derive(Debug)]
pub struct PatternTransposer {
    transpose: Transpose,
    entries: usize,
}

/// Device addresses of one transposition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawTranspose {
    /// Row offsets, `u32[m + 1]`.
    pub offsets: u64,
    /// Columns, `u32[entries]`.
    pub columns: u64,
    /// Out: offsets of the transpose, `u32[k + 1]`.
    pub out_offsets: u64,
    /// Out: columns of the transpose, `u32[entries]`.
    pub out_columns: u64,
    /// Out: where each entry of the transpose stands in the matrix, `u32[entries]`.
    pub permutation: u64,
}

impl PatternTransposer {
    /// For CSR patterns of `m` x `k` with so many entries.
    ///
    /// # Errors
    /// In a CPU context, and where a size does not fit.
    pub fn new(context: &Context, shape: (usize, usize), entries: usize) -> Result<Self> {
        let dtype = crate::registry::Dtype::F32;
        let transpose = Transpose::new(context.expect_device()?, shape, entries, false, dtype)?;
        Ok(PatternTransposer { transpose, entries })
    }

    /// Device bytes of the workspace.
    pub fn bytes(&self) -> usize {
        self.transpose.bytes()
    }

    /// Queues one transposition.
    ///
    /// # Safety
    /// The addresses hold what [`RawTranspose`] says, of this shape, until the work is done, and the pattern follows the
    /// rules of [`CsrPattern`]. Runs must not overlap. The stream belongs to the GPU's primary context.
    ///
    /// # Errors
    /// If the driver refuses a launch.
    pub unsafe fn run_raw(&self, raw: &RawTranspose, stream: RawStream<'_>) -> Result<()> {
        let out = SortOut {
            first: raw.permutation,
            second: raw.out_columns,
            capacity: self.entries,
            ..SortOut::default()
        };
        let from = [raw.offsets, raw.columns];
        // SAFETY: the caller's promise.
        unsafe { self.transpose.run(from, raw.out_offsets, out, stream) }
    }
}

/// Orders the rows of CSR matrices by length on a GPU: `order[i]` is the row that comes at place i.
#[derive(Debug)]
pub struct RowSorter {
    steps: Steps,
    sort: crate::launch::Sort,
    order: Order,
    k: usize,
}

impl RowSorter {
    /// For matrices of `m` x `k`.
    ///
    /// # Errors
    /// In a CPU context, and where a size does not fit.
    pub fn new(context: &Context, (m, k): (usize, usize), order: Order) -> Result<Self> {
        let device = context.expect_device()?;
        Ok(RowSorter {
            steps: Steps::new(device, crate::registry::Dtype::F32)?,
            sort: order.sort(device, m, k)?,
            order,
            k,
        })
    }

    /// Queues one sort of the rows that `offsets` are of into `out`, `u32[m]`.
    ///
    /// # Safety
    /// `offsets` holds m + 1 words that ascend and `out` has room for m until the work is done. Runs must not overlap. The
    /// stream belongs to the GPU's primary context.
    ///
    /// # Errors
    /// If the driver refuses a launch.
    pub unsafe fn run_raw(&self, offsets: u64, out: u64, stream: RawStream<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            self.sort
                .rows(&self.steps, self.order, self.k, [offsets, out], stream)
        }
    }
}

/// A format of the list, or the error that names it.
fn unsupported(from: Format, to: Format) -> Error {
    Error::Operand {
        name: "sparse".into(),
        reason: format!(
            "is {from}, and entries are brought from csr to coo, groupcoo and ell, and from coo to csr, not to {to}"
        ),
    }
}

impl Context {
    /// Brings a dense matrix of this context into CSR, with the entries of `choice`: the same entries and bits on GPU and
    /// CPU. Waits for all work on the GPU.
    ///
    /// ```
    /// use einsparse::formats::Dense;
    /// use einsparse::{Context, EntryChoice};
    ///
    /// let ctx = Context::new();
    /// let a = ctx.upload_dense(&Dense::new([2, 3], vec![1f32, -4.0, 0.0, 0.5, 2.0, -3.0])?)?;
    /// let csr = ctx.csr_from_dense(&a, EntryChoice::TopPerRow(1))?;
    /// assert_eq!(csr.to_host()?.values(), [-4.0, -3.0]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the tensor is not a matrix or lies elsewhere, its elements do not fit u32, the threshold is negative or NaN, or
    /// memory does not suffice.
    pub fn csr_from_dense<T: Scalar>(
        &self,
        dense: &Tensor<T>,
        choice: EntryChoice,
    ) -> Result<SparseTensor<T>> {
        let &[m, k] = dense.shape() else {
            let (found, expected) = (dense.shape().len().to_string(), "2".into());
            let what = "order";
            return Err(FormatError::Shape {
                what,
                found,
                expected,
            }
            .into());
        };
        match (self.device(), dense.device()) {
            (None, None) => self.upload(dense_to_csr_by(&dense.to_dense()?, choice)?),
            (Some(device), Some(own)) if device.is_same(own) => {
                let converter = EntryConverter::<T>::from_dense(self, (m, k), choice)?;
                converter.compacted(device, dense, (m, k))
            }
            _ => Err(Error::Operand {
                name: "dense".into(),
                reason: "is not in the memory of this context".into(),
            }),
        }
    }

    /// Takes CSR arrays that the GPU made: checks them there, by the rules of [`CsrPattern::new`], and copies them.
    /// Waits for all work on the GPU.
    ///
    /// # Safety
    /// `offsets` holds m + 1 words, `columns` as many as `entries`, and `values` as many elements, in the memory of this
    /// context's GPU, and no work that is still queued writes them.
    ///
    /// # Errors
    /// In a CPU context; [`Error::Format`] with array, place and numbers where a rule is broken; where a size does not fit.
    pub unsafe fn csr_from_raw<T: Scalar>(
        &self,
        (m, k): (usize, usize),
        entries: usize,
        [offsets, columns, values]: [u64; 3],
    ) -> Result<SparseTensor<T>> {
        let device = self.expect_device()?;
        let steps = Steps::new(device, T::DTYPE)?;
        let report = device.zeros(8)?;
        let stream = device.after_all()?;
        // SAFETY: the caller's promise; the report has two words.
        unsafe {
            check(
                &steps,
                (m, k, entries),
                [offsets, columns, report.address()],
                stream,
            )?
        };
        let mut found = [0u32; 2];
        device.read(&report, &mut found)?;
        let word = |array: u64, at: u32| -> Result<u32> {
            let one = DeviceMemory::alloc(device.context(), 4)?;
            let mut value = [0u32];
            // SAFETY: the report names places of the arrays.
            unsafe {
                copy_dtod_async(
                    one.address(),
                    array + u64::from(at) * 4,
                    4,
                    device.after_all()?,
                )?
            };
            device.read(&one, &mut value)?;
            Ok(value[0])
        };
        if let Some(fault) = fault((m, k, entries), found, |array, at| {
            word(if array == 0 { offsets } else { columns }, at)
        })? {
            return Err(fault.into());
        }
        let own = copied::<T>(device, entries, [columns, values])?;
        let starts = DeviceMemory::alloc(device.context(), 4 * (m + 1))?;
        // SAFETY: the caller's promise.
        unsafe { copy_dtod_async(starts.address(), offsets, 4 * (m + 1), device.after_all()?)? };
        csr_of(device, (m, k), &starts, own, entries)
    }
}

/// What the report means: offsets are judged first, then entries, as the host does.
fn fault(
    (m, k, entries): (usize, usize, usize),
    [offset, entry]: [u32; 2],
    word: impl Fn(usize, u32) -> Result<u32>,
) -> Result<Option<FormatError>> {
    if offset != u32::MAX {
        let value = word(0, offset)?;
        if offset == 0 && value != 0 {
            return Ok(Some(FormatError::InvalidIndex {
                array: "offsets",
                position: 0,
                value: value.into(),
                bound: 1,
            }));
        }
        let previous = if offset == 0 { 0 } else { word(0, offset - 1)? };
        if previous > value {
            return Ok(Some(FormatError::Order {
                array: "offsets",
                position: offset as usize,
                previous: previous.into(),
                value: value.into(),
            }));
        }
        debug_assert_eq!(offset as usize, m);
        return Ok(Some(FormatError::Length {
            array: "columns",
            found: entries,
            expected: value as usize,
        }));
    }
    if entry == u32::MAX {
        return Ok(None);
    }
    let value = word(1, entry)?;
    Ok(Some(if value as usize >= k {
        FormatError::InvalidIndex {
            array: "columns",
            position: entry as usize,
            value: value.into(),
            bound: k as u64,
        }
    } else {
        FormatError::Order {
            array: "columns",
            position: entry as usize,
            previous: word(1, entry - 1)?.into(),
            value: value.into(),
        }
    }))
}

/// Room for so many slots, with zeros behind them.
fn room<T: Scalar>(device: &Arc<Device>, slots: usize) -> Result<DeviceArrays> {
    if slots > u32::MAX as usize {
        let (what, value, limit) = ("slots", slots as u128, u32::MAX.into());
        return Err(FormatError::Overflow { what, value, limit }.into());
    }
    let bytes = size_of::<T>();
    Ok(DeviceArrays {
        columns: padded(device, slots * 4, VECTOR_ENTRIES * 4)?,
        values: padded(device, slots * bytes, VECTOR_ENTRIES * bytes)?,
        device: Arc::clone(device),
    })
}

/// A copy of columns and values.
fn copied<T: Scalar>(
    device: &Arc<Device>,
    slots: usize,
    [columns, values]: [u64; 2],
) -> Result<DeviceArrays> {
    let own = room::<T>(device, slots)?;
    let stream = device.after_all()?;
    // SAFETY: both sides hold that many slots; the caller's arrays are borrowed, and later work waits for all.
    unsafe {
        copy_dtod_async(own.columns.address(), columns, slots * 4, stream)?;
        copy_dtod_async(own.values.address(), values, slots * size_of::<T>(), stream)?;
    }
    Ok(own)
}

/// The tensor of arrays that are there; its pattern is checked like one of a user.
fn csr_of<T: Scalar>(
    device: &Device,
    (m, k): (usize, usize),
    starts: &DeviceMemory,
    own: DeviceArrays,
    entries: usize,
) -> Result<SparseTensor<T>> {
    let (mut offsets, mut columns) = (vec![0u32; m + 1], vec![0u32; entries]);
    device.read(starts, &mut offsets)?;
    device.read(&own.columns, &mut columns)?;
    let pattern = CsrPattern::new(m, k, offsets, columns)?;
    let host = Csr::new(pattern, host_zeros(entries)?)?;
    Ok(SparseTensor::made(host.into(), own))
}

impl<T: Scalar> EntryConverter<T> {
    /// Twice: the first run counts.
    fn compacted(
        &self,
        device: &Arc<Device>,
        dense: &Tensor<T>,
        (m, k): (usize, usize),
    ) -> Result<SparseTensor<T>> {
        let starts = DeviceMemory::alloc(device.context(), 4 * (m + 1))?;
        let raw = RawEntries {
            source: dense.address().unwrap_or(0),
            leading: dense.leading(),
            offsets: starts.address(),
            ..RawEntries::default()
        };
        // SAFETY: the dense matrix is borrowed until the waits below, the outputs have the room that `capacity` says.
        unsafe { self.entries.run(&raw, device.after_all()?)? };
        let mut offsets = vec![0u32; m + 1];
        device.read(&starts, &mut offsets)?;
        let entries = offsets[m] as usize;
        let own = room::<T>(device, entries)?;
        let raw = RawEntries {
            out_columns: own.columns.address(),
            out_values: own.values.address(),
            capacity: entries,
            ..raw
        };
        // SAFETY: as above.
        unsafe { self.entries.run(&raw, device.after_all()?)? };
        csr_of(device, (m, k), &starts, own, entries)
    }
}

impl<T: Scalar> SparseTensor<T> {
    /// Brings a matrix of single entries into another such format where it is: CSR to COO, GroupCOO and ELL, COO to CSR, as
    /// in [`AnySparse::convert`]. Waits for all work on the GPU.
    ///
    /// # Errors
    /// For other formats, a group of 0, slots that do not fit u32, or if memory does not suffice.
    pub fn to_entries(&self, format: Format) -> Result<SparseTensor<T>> {
        let known = match (self.pattern(), format) {
            (AnySparse::Coo(_), Format::Csr) => self.shape().len() == 2,
            (AnySparse::Csr(_), Format::Coo | Format::Ell) => true,
            (AnySparse::Csr(_), Format::GroupCoo { axis, .. }) => axis == 0,
            _ => false,
        };
        if !known {
            return Err(unsupported(self.format(), format));
        }
        let Some(arrays) = self.device() else {
            return SparseTensor::new(None, self.pattern().convert(format)?);
        };
        match (self.pattern(), format) {
            (AnySparse::Csr(a), Format::GroupCoo { group, .. }) => {
                self.grouped(a.pattern(), arrays, group)
            }
            (AnySparse::Csr(a), Format::Ell) => self.in_ell(a.pattern(), arrays),
            (AnySparse::Csr(a), _) => self.in_coo(a.pattern(), arrays),
            (AnySparse::Coo(a), _) => self.in_csr(a.pattern(), arrays),
            (_, to) => Err(unsupported(self.format(), to)),
        }
    }

    fn in_coo(&self, p: &CsrPattern, arrays: &DeviceArrays) -> Result<SparseTensor<T>> {
        let (device, shape, entries) = (&arrays.device, (p.rows(), p.cols()), p.columns().len());
        let converter = EntryConverter::<T>::on(device, shape, Conversion::ToCoo, 0)?;
        let offsets = device.upload(p.offsets())?;
        let rows = DeviceMemory::alloc(device.context(), 4 * entries.next_multiple_of(4))?;
        let raw = RawEntries {
            offsets: offsets.address(),
            rows: rows.address(),
            capacity: entries,
            ..RawEntries::default()
        };
        // SAFETY: the arrays have these sizes and live past the read below.
        unsafe { converter.run_raw(&raw, device.after_all()?)? };
        let mut of_entries = vec![0u32; entries];
        device.read(&rows, &mut of_entries)?;
        let coords = vec![of_entries, p.columns().to_vec()];
        let pattern = CooPattern::new(vec![p.rows(), p.cols()], coords)?;
        let own = copied::<T>(
            device,
            entries,
            [arrays.columns.address(), arrays.values.address()],
        )?;
        Ok(SparseTensor::made(
            Coo::new(pattern, host_zeros(entries)?)?.into(),
            own,
        ))
    }

    fn in_csr(&self, p: &CooPattern, arrays: &DeviceArrays) -> Result<SparseTensor<T>> {
        let (&[m, k], device) = (self.shape(), &arrays.device) else {
            return Err(unsupported(self.format(), Format::Csr));
        };
        let entries = p.coords()[0].len();
        let converter = EntryConverter::<T>::on(device, (m, k), Conversion::FromCoo, 0)?;
        let rows = device.upload(&p.coords()[0])?;
        let starts = DeviceMemory::alloc(device.context(), 4 * (m + 1))?;
        let raw = RawEntries {
            offsets: starts.address(),
            rows: rows.address(),
            capacity: entries,
            ..RawEntries::default()
        };
        // SAFETY: the arrays have these sizes and live past the read below.
        unsafe { converter.run_raw(&raw, device.after_all()?)? };
        let own = copied::<T>(
            device,
            entries,
            [arrays.columns.address(), arrays.values.address()],
        )?;
        csr_of(device, (m, k), &starts, own, entries)
    }

    fn in_ell(&self, p: &CsrPattern, arrays: &DeviceArrays) -> Result<SparseTensor<T>> {
        let (device, shape) = (&arrays.device, (p.rows(), p.cols()));
        let longest = p.offsets().windows(2).map(|w| w[1] - w[0]).max();
        let width = longest.unwrap_or(0) as usize;
        let slots = p.rows().saturating_mul(width);
        let own = room::<T>(device, slots)?;
        let converter = EntryConverter::<T>::on(device, shape, Conversion::Ell(width), 0)?;
        let offsets = device.upload(p.offsets())?;
        let raw = self.raw_of(arrays, &offsets, &own, slots);
        // SAFETY: the arrays have these sizes and live past the read below.
        unsafe { converter.run_raw(&raw, device.after_all()?)? };
        let mut columns = vec![0u32; slots];
        device.read(&own.columns, &mut columns)?;
        let pattern = EllPattern::new(p.rows(), p.cols(), width, columns)?;
        Ok(SparseTensor::made(
            Ell::new(pattern, host_zeros(slots)?)?.into(),
            own,
        ))
    }

    fn grouped(
        &self,
        p: &CsrPattern,
        arrays: &DeviceArrays,
        group: Option<usize>,
    ) -> Result<SparseTensor<T>> {
        let (device, shape) = (&arrays.device, (p.rows(), p.cols()));
        let lengths = p.offsets().windows(2).map(|w| (w[1] - w[0]) as usize);
        // As on the CPU: by the rows that have entries.
        let group =
            group.unwrap_or_else(|| RowStats::from_counts(lengths.filter(|&n| n > 0)).group());
        let context = Context::of(device);
        let converter = EntryConverter::<T>::to_group_coo(&context, shape, group)?;
        let offsets = device.upload(p.offsets())?;
        let survey = RawEntries {
            offsets: offsets.address(),
            ..RawEntries::default()
        };
        // SAFETY: the offsets live past the read below.
        unsafe { converter.entries.survey(&survey, device.after_all()?)? };
        let groups = converter.groups()?.last().map_or(0, |&n| n as usize);
        let slots = groups.saturating_mul(group);
        let own = room::<T>(device, slots)?;
        let rows = DeviceMemory::alloc(device.context(), 4 * groups.next_multiple_of(4))?;
        let raw = RawEntries {
            rows: rows.address(),
            ..self.raw_of(arrays, &offsets, &own, slots)
        };
        // SAFETY: the arrays have these sizes and live past the reads below.
        unsafe {
            converter
                .entries
                .fill_groups(&raw, group, device.after_all()?)?
        };
        let (mut index, mut columns) = (vec![0u32; groups], vec![0u32; slots]);
        device.read(&rows, &mut index)?;
        device.read(&own.columns, &mut columns)?;
        let shape = vec![p.rows(), p.cols()];
        let pattern = GroupCooPattern::new(shape, 0, group, index, vec![columns])?;
        Ok(SparseTensor::made(
            GroupCoo::new(pattern, host_zeros(slots)?)?.into(),
            own,
        ))
    }

    fn raw_of(
        &self,
        arrays: &DeviceArrays,
        offsets: &DeviceMemory,
        own: &DeviceArrays,
        slots: usize,
    ) -> RawEntries {
        RawEntries {
            source: arrays.values.address(),
            offsets: offsets.address(),
            columns: arrays.columns.address(),
            out_columns: own.columns.address(),
            out_values: own.values.address(),
            capacity: slots,
            ..RawEntries::default()
        }
    }

    /// The transpose of a CSR matrix, in CSR, made where it is: a sort of the pattern, and the values gathered. Products with
    /// the transpose, `C[k,n] = A[m,k] * B[m,n]`, do not need it. Waits for all work on the GPU.
    ///
    /// # Errors
    /// For other formats, or if memory does not suffice.
    pub fn transposed(&self) -> Result<SparseTensor<T>> {
        let AnySparse::Csr(csr) = self.pattern() else {
            return Err(unsupported(self.format(), Format::Csr));
        };
        let Some(arrays) = self.device() else {
            let turned = einsparse_formats::convert::transpose_csr(csr)?;
            return SparseTensor::new(None, turned.into());
        };
        let (p, device) = (csr.pattern(), &arrays.device);
        let (m, k, entries) = (p.rows(), p.cols(), p.columns().len());
        let transpose = Transpose::new(device, (m, k), entries, false, T::DTYPE)?;
        let own = room::<T>(device, entries)?;
        let [starts, permutation] =
            [k + 1, entries].map(|words| DeviceMemory::alloc(device.context(), 4 * words));
        let (starts, permutation) = (starts?, permutation?);
        let offsets = device.upload(p.offsets())?;
        let out = SortOut {
            first: permutation.address(),
            second: own.columns.address(),
            capacity: entries,
            ..SortOut::default()
        };
        let from = [offsets.address(), arrays.columns.address()];
        let values = [
            arrays.values.address(),
            permutation.address(),
            own.values.address(),
        ];
        let stream = device.after_all()?;
        // SAFETY: the arrays have these sizes and live past the reads in `csr_of`.
        unsafe {
            transpose.run(from, starts.address(), out, stream)?;
            transpose.gather(values, entries, stream)?;
        }
        csr_of(device, (k, m), &starts, own, entries)
    }
}
