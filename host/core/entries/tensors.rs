//! Tensors of single entries from dense ones and from each other: memory allocated, the pattern read back for plans.

use std::sync::Arc;

use einsparse_formats::convert::{EntryChoice, dense_to_csr_by, transpose_csr};
use einsparse_formats::stats::RowStats;
use einsparse_formats::{
    AnyPattern, CooPattern, Csr, CsrPattern, EllPattern, Format, FormatError, GroupCooPattern,
};

use crate::context::Context;
use crate::convert::padded;
use crate::converter::{floor_of, not_zero};
use crate::device::Device;
use crate::driver::{DeviceMemory, copy_dtod_async};
use crate::error::{Error, Result};
use crate::families::convert::{Conversion, Entries, RawEntries, SortOut, Transpose};
use crate::operator::run_alone;
use crate::registry::Scalar;
use crate::tensor::{DeviceArrays, SparseTensor, Tensor, VECTOR_ENTRIES};

/// A format of the list, or the error that names it.
fn unsupported(from: Format, to: Format) -> Error {
    let expected = format!("csr (to coo, groupcoo or ell) or coo (to csr), not to {to}");
    Error::format("sparse", expected, from)
}

impl Context {
    /// Brings a dense matrix of this context into CSR, with the entries of `choice`: the same entries and bits on GPU
    /// and CPU. Waits for all work on the GPU.
    ///
    /// ```
    /// use einsparse::formats::Dense;
    /// use einsparse::Context;
    /// use einsparse::formats::convert::EntryChoice;
    ///
    /// let ctx = Context::new();
    /// let a = ctx.upload_dense(&Dense::new([2, 3], vec![1f32, -4.0, 0.0, 0.5, 2.0, -3.0])?)?;
    /// let csr = ctx.csr_from_dense(&a, EntryChoice::TopPerRow(1))?;
    /// assert_eq!(csr.to_host()?.values(), [-4.0, -3.0]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the tensor is not a matrix or lies elsewhere, its elements do not fit u32, the threshold is negative or NaN,
    /// or memory does not suffice.
    pub fn csr_from_dense<T: Scalar>(
        &self,
        dense: &Tensor<T>,
        choice: EntryChoice,
    ) -> Result<SparseTensor<T>> {
        let &[m, k] = dense.shape() else {
            let (found, expected) = (dense.shape().len().to_string(), "2".into());
            let what = "order";
            return Err(FormatError::Shape { what, found, expected }.into());
        };
        match (self.device(), dense.device()) {
            (None, None) => self.upload(dense_to_csr_by(&dense.to_dense()?, choice)?),
            (Some(device), Some(own)) if device.is_same(own) => {
                choice.check()?;
                let (floor, conversion) = (floor_of::<T>(choice), Conversion::Dense(choice));
                let entries = Entries::new(device, (m, k), T::DTYPE, conversion, floor)?;
                compacted(&entries, device, dense, (m, k))
            }
            _ => Err(Error::elsewhere("dense")),
        }
    }
}

/// Room for so many slots, with zeros behind them.
fn room<T: Scalar>(device: &Arc<Device>, slots: usize) -> Result<DeviceArrays> {
    if slots > u32::MAX as usize {
        let (what, value, limit) = ("slots", slots as u128, u32::MAX.into());
        return Err(FormatError::Overflow { what, value, limit }.into());
    }
    let bytes = size_of::<T>();
    Ok(DeviceArrays {
        columns: padded(device, slots * 4, VECTOR_ENTRIES * 4)?.into(),
        values: padded(device, slots * bytes, VECTOR_ENTRIES * bytes)?,
        device: Arc::clone(device),
    })
}

/// A copy of columns and values.
pub(super) fn copied<T: Scalar>(
    device: &Arc<Device>,
    slots: usize,
    [columns, values]: [u64; 2],
) -> Result<DeviceArrays> {
    let own = room::<T>(device, slots)?;
    let stream = device.after_all()?;
    // SAFETY: both sides hold that many slots, and live past the wait below.
    unsafe {
        copy_dtod_async(own.columns.address(), columns, slots * 4, stream)?;
        copy_dtod_async(own.values.address(), values, slots * size_of::<T>(), stream)?;
    }
    // Who uses the copy does so on a stream of their own.
    stream.synchronize()?;
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
    SparseTensor::made(pattern, own)
}

/// Runs twice: the first run counts.
fn compacted<T: Scalar>(
    entries: &Entries,
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
    run_alone(device, |queue| entries.run(&raw, queue))?;
    let mut offsets = vec![0u32; m + 1];
    device.read(&starts, &mut offsets)?;
    let count = offsets[m] as usize;
    let own = room::<T>(device, count)?;
    let raw = RawEntries {
        out_columns: own.columns.address(),
        out_values: own.values.address(),
        capacity: count,
        ..raw
    };
    run_alone(device, |queue| entries.run(&raw, queue))?;
    csr_of(device, (m, k), &starts, own, count)
}
impl<T: Scalar> SparseTensor<T> {
    /// Brings a matrix of single entries into another such format where it is: CSR to COO, GroupCOO and ELL, COO to
    /// CSR, as in [`AnySparse::convert`](crate::formats::AnySparse::convert). Waits for all work on the GPU.
    ///
    /// # Errors
    /// For other formats, a group of 0, slots that do not fit u32, or if memory does not suffice.
    pub fn to_entries(&self, format: Format) -> Result<SparseTensor<T>> {
        let known = match (self.pattern(), format) {
            (AnyPattern::Coo(_), Format::Csr) => self.shape().len() == 2,
            (AnyPattern::Csr(_), Format::Coo | Format::Ell) => true,
            (AnyPattern::Csr(_), Format::GroupCoo { axis, .. }) => axis == 0,
            _ => false,
        };
        if !known {
            return Err(unsupported(self.format(), format));
        }
        let Some(arrays) = self.device() else {
            return SparseTensor::new(None, self.to_host()?.convert(format)?);
        };
        match (self.pattern(), format) {
            (AnyPattern::Csr(a), Format::GroupCoo { group, .. }) => self.grouped(a, arrays, group),
            (AnyPattern::Csr(a), Format::Ell) => self.in_ell(a, arrays),
            (AnyPattern::Csr(a), _) => self.in_coo(a, arrays),
            (AnyPattern::Coo(a), _) => self.in_csr(a, arrays),
            (_, to) => Err(unsupported(self.format(), to)),
        }
    }

    fn in_coo(&self, p: &CsrPattern, arrays: &DeviceArrays) -> Result<SparseTensor<T>> {
        let (device, shape, entries) = (&arrays.device, (p.rows(), p.cols()), p.columns().len());
        let converter = Entries::new(device, shape, T::DTYPE, Conversion::ToCoo, 0)?;
        let offsets = device.upload(p.offsets())?;
        let rows = DeviceMemory::alloc(device.context(), 4 * entries.next_multiple_of(4))?;
        let raw = RawEntries {
            offsets: offsets.address(),
            rows: rows.address(),
            capacity: entries,
            ..RawEntries::default()
        };
        run_alone(device, |queue| converter.run(&raw, queue))?;
        let mut of_entries = vec![0u32; entries];
        device.read(&rows, &mut of_entries)?;
        let coords = vec![of_entries, p.columns().to_vec()];
        let pattern = CooPattern::new(vec![p.rows(), p.cols()], coords)?;
        let from = [arrays.columns.address(), arrays.values.address()];
        let own = copied::<T>(device, entries, from)?;
        SparseTensor::made(pattern, own)
    }

    fn in_csr(&self, p: &CooPattern, arrays: &DeviceArrays) -> Result<SparseTensor<T>> {
        let (&[m, k], device) = (self.shape(), &arrays.device) else {
            return Err(unsupported(self.format(), Format::Csr));
        };
        let entries = p.coords()[0].len();
        let converter = Entries::new(device, (m, k), T::DTYPE, Conversion::FromCoo, 0)?;
        let rows = device.upload(&p.coords()[0])?;
        let starts = DeviceMemory::alloc(device.context(), 4 * (m + 1))?;
        let raw = RawEntries {
            offsets: starts.address(),
            rows: rows.address(),
            capacity: entries,
            ..RawEntries::default()
        };
        run_alone(device, |queue| converter.run(&raw, queue))?;
        let from = [arrays.columns.address(), arrays.values.address()];
        let own = copied::<T>(device, entries, from)?;
        csr_of(device, (m, k), &starts, own, entries)
    }

    fn in_ell(&self, p: &CsrPattern, arrays: &DeviceArrays) -> Result<SparseTensor<T>> {
        let (device, shape) = (&arrays.device, (p.rows(), p.cols()));
        let longest = p.offsets().windows(2).map(|w| w[1] - w[0]).max();
        let width = longest.unwrap_or(0) as usize;
        let slots = p.rows().saturating_mul(width);
        let own = room::<T>(device, slots)?;
        let converter = Entries::new(device, shape, T::DTYPE, Conversion::Ell(width), 0)?;
        let offsets = device.upload(p.offsets())?;
        let raw = self.raw_of(arrays, &offsets, &own, slots);
        run_alone(device, |queue| converter.run(&raw, queue))?;
        let mut columns = vec![0u32; slots];
        device.read(&own.columns, &mut columns)?;
        let pattern = EllPattern::new(p.rows(), p.cols(), width, columns)?;
        SparseTensor::made(pattern, own)
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
        not_zero("group", group)?;
        let conversion = Conversion::GroupCoo(group);
        let converter = Entries::new(device, shape, T::DTYPE, conversion, 0)?;
        let offsets = device.upload(p.offsets())?;
        let survey = RawEntries { offsets: offsets.address(), ..RawEntries::default() };
        run_alone(device, |queue| converter.survey(&survey, queue))?;
        let groups = converter.starts()?.last().map_or(0, |&n| n as usize);
        let slots = groups.saturating_mul(group);
        let own = room::<T>(device, slots)?;
        let rows = DeviceMemory::alloc(device.context(), 4 * groups.next_multiple_of(4))?;
        let raw = RawEntries { rows: rows.address(), ..self.raw_of(arrays, &offsets, &own, slots) };
        run_alone(device, |queue| converter.fill_groups(&raw, group, queue))?;
        let (mut index, mut columns) = (vec![0u32; groups], vec![0u32; slots]);
        device.read(&rows, &mut index)?;
        device.read(&own.columns, &mut columns)?;
        let shape = vec![p.rows(), p.cols()];
        let pattern = GroupCooPattern::new(shape, 0, group, index, vec![columns])?;
        SparseTensor::made(pattern, own)
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

    /// The transpose of a CSR matrix, in CSR, made where it is: a sort of the pattern, and the values gathered.
    /// Products with the transpose, `C[k,n] = A[m,k] * B[m,n]`, do not need it. Waits for all work on the GPU.
    ///
    /// # Errors
    /// For other formats, or if memory does not suffice.
    pub fn transposed(&self) -> Result<SparseTensor<T>> {
        let AnyPattern::Csr(p) = self.pattern() else {
            return Err(unsupported(self.format(), Format::Csr));
        };
        let Some(arrays) = self.device() else {
            let own = self.host().unwrap_or_default().to_vec();
            let transposed = transpose_csr(&Csr::new(p.clone(), own)?)?;
            return SparseTensor::new(None, transposed);
        };
        let device = &arrays.device;
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
        let values = [arrays.values.address(), permutation.address(), own.values.address()];
        run_alone(device, |queue| {
            transpose.run(from, starts.address(), out, queue)?;
            transpose.gather(values, entries, queue)
        })?;
        csr_of(device, (k, m), &starts, own, entries)
    }
}
