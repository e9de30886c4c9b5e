//! Sparse tensors of a context.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use einsparse_formats::{
    AnyPattern, AnySparse, AsSparse, Format, FormatError, NmPattern, PAD, Role, SharedPattern,
    allocate,
};

use super::view::{TensorView, ValuesMut};
use crate::device::Device;
use crate::driver::{ABSENT_ADDRESS, DeviceMemory, PinnedMemory};
use crate::error::{Error, Result};
use crate::registry::{Dtype, Scalar, block_of};
use crate::values::{Buffer, Slice, SliceMut, with_type};
use crate::worklist::Runs;
use einsparse_cuda::owner::Owner;

/// A sparse tensor in the memory of a [`Context`](crate::Context). A copy of the pattern is stored in host memory,
/// where plans read it.
///
/// ```
/// use einsparse::formats::{Csr, CsrPattern, Format};
/// let a = Csr::new(CsrPattern::new(2, 3, vec![0, 1, 3], vec![2, 0, 1])?, vec![2.0f32, 3.0, 4.0])?;
/// let a = einsparse::Context::new().upload(a)?;
/// let coo = a.to_entries(Format::Coo)?; // where it is
/// assert_eq!((coo.shape(), coo.to_host()?.values()), (&[2, 3][..], &[2.0, 3.0, 4.0][..]));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct SparseTensor<T> {
    pub(crate) any: AnySparseTensor,
    element: PhantomData<T>,
}

/// Gives read-only access to everything that does not depend on the element type, as for [`Tensor`](super::Tensor).
impl<T> Deref for SparseTensor<T> {
    type Target = AnySparseTensor;

    fn deref(&self) -> &AnySparseTensor {
        &self.any
    }
}

/// A [`SparseTensor`] whose element type is a run-time value.
#[doc(hidden)]
#[derive(Debug)]
pub struct AnySparseTensor {
    pub(super) dtype: Dtype,
    pub(super) pattern: SharedPattern,
    /// Values in host memory.
    pub(super) values: Option<Buffer>,
    /// Columns in page-locked memory, for copies to a GPU, if the values are page-locked.
    pub(super) pinned: Option<Pinned>,
    pub(super) runs: Option<Arc<Runs>>,
    /// Runs of a batch of matrices in COO, as one matrix.
    pub(super) batch: Option<Arc<Runs>>,
    pub(super) device: Option<DeviceArrays>,
    /// First slot and count of each row, on the device; only of unstructured formats.
    pub(super) spans: Option<Arc<DeviceMemory>>,
    pub(super) transposes: Arc<Transposes>,
}

/// Number of nonzeros that kernels load at once: both arrays are readable that far past their end.
pub(crate) const VECTOR_ENTRIES: usize = 8;

/// Device arrays that kernels read of a sparse matrix.
#[derive(Debug)]
pub(crate) struct DeviceArrays {
    /// Shared by tensors of one pattern.
    pub(crate) columns: Arc<DeviceMemory>,
    pub(crate) values: DeviceMemory,
    pub(crate) device: Arc<Device>,
}

/// Reason for the refusal of a tensor whose mutable view of the values was forgotten.
pub(super) const LOST: &str =
    "are gone: a view of them (`values_mut`) was forgotten, or another tensor was stored in it";

impl DeviceArrays {
    /// Returns these arrays with other values.
    fn with_values(&self, values: DeviceMemory) -> DeviceArrays {
        let (columns, device) = (Arc::clone(&self.columns), Arc::clone(&self.device));
        DeviceArrays { columns, values, device }
    }
}

/// Columns of a tensor in page-locked memory, which its plans copy in addition to the values.
#[derive(Debug)]
pub(super) struct Pinned {
    columns: PinnedMemory,
    device: Arc<Device>,
}

/// Transpose of a pattern on a GPU.
#[derive(Debug)]
pub struct TransposedPattern {
    /// Pairs of column and position, or columns.
    pub(crate) pattern: DeviceMemory,
    /// Position of each value, unless the pattern holds pairs.
    pub(crate) permutation: Option<DeviceMemory>,
    pub(crate) runs: Runs,
}

/// Transposes of a pattern. Plans over tensors of one pattern share them, and the last plan frees them.
#[derive(Debug, Default)]
pub struct Transposes([Mutex<Weak<TransposedPattern>>; 2]);

impl Transposes {
    /// Returns the transpose, with pairs or without, and makes it if no plan holds it.
    pub(crate) fn get(
        &self,
        pairs: bool,
        make: impl FnOnce() -> Result<TransposedPattern>,
    ) -> Result<Arc<TransposedPattern>> {
        let mut own = self.0[usize::from(pairs)].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = own.upgrade() {
            return Ok(held);
        }
        let made = Arc::new(make()?);
        *own = Arc::downgrade(&made);
        Ok(made)
    }
}

/// Arrays that a GPU copies from host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostArrays<'a> {
    pub(crate) columns: &'a [u32],
    pub(crate) values: Slice<'a>,
    /// Whether copies may continue after the call that queued them. Page-locked memory permits this, because its drop
    /// waits for them.
    pub(crate) pinned: bool,
}

/// The column (block column) of every slot; for N:M the words of positions; `None` for formats without columns.
pub(crate) fn columns_of(pattern: AnyPattern<'_>) -> Option<&[u32]> {
    let of_axis_1 = [Role::Coordinate { axis: 1 }, Role::Positions { axis: 1 }, Role::Bits];
    let arrays = pattern.arrays();
    let found = arrays.iter().find(|a| of_axis_1.contains(&a.role));
    found.map(|a| a.data)
}

/// Whether a matrix is unstructured, with nonzeros that kernels read row by row.
fn of_entries(pattern: AnyPattern<'_>) -> bool {
    !matches!(pattern, AnyPattern::Nm(_)) && block_of(&pattern.format()) == (1, 1)
}

/// The values, with zeros in edge blocks (groups) past the last row and column. Kernels multiply whole blocks, and a
/// NaN outside the matrix must not reach C.
fn values_inside<'v, T: Scalar>(pattern: AnyPattern<'_>, values: &'v [T]) -> Result<Cow<'v, [T]>> {
    if let AnyPattern::Nm(nm) = pattern {
        return Ok(groups_inside(nm, values));
    }
    let (bm, bk) = block_of(&pattern.format());
    let &[rows, columns] = pattern.shape() else {
        return Ok(Cow::Borrowed(values));
    };
    if rows.is_multiple_of(bm) && columns.is_multiple_of(bk) {
        return Ok(Cow::Borrowed(values));
    }
    let (Some(index), Some(runs)) = (columns_of(pattern), Runs::of_pattern(pattern)?) else {
        return Ok(Cow::Borrowed(values));
    };
    let mut values = Cow::Borrowed(values);
    for (block_row, &(start, len)) in runs.rows.iter().enumerate() {
        let inside = (rows - block_row * bm).min(bm);
        let blocks = start as usize..(start + len) as usize;
        for (block, &column) in blocks.clone().zip(&index[blocks]) {
            let first = block * bm;
            clear(&mut values, (first + inside) * bk..(first + bm) * bk);
            let inside = (columns - column as usize * bk).min(bk);
            for row in first..first + bm {
                clear(&mut values, row * bk + inside..(row + 1) * bk);
            }
        }
    }
    Ok(values)
}

/// Sets a range to zero. Copies only if the range has other values.
fn clear<T: Scalar>(values: &mut Cow<'_, [T]>, range: std::ops::Range<usize>) {
    if values[range.clone()].iter().any(|&v| v != T::ZERO) {
        values.to_mut()[range].fill(T::ZERO);
    }
}

fn groups_inside<'v, T: Scalar>(nm: &NmPattern, values: &'v [T]) -> Cow<'v, [T]> {
    let mut values = Cow::Borrowed(values);
    // Without columns, no row has a slot.
    let rows = if values.is_empty() { 0 } else { nm.rows() };
    for row in 0..rows {
        // All groups before the last one with columns are inside the matrix.
        let first = row * nm.row_slots() + 2 * nm.groups().saturating_sub(1);
        for slot in first..(row + 1) * nm.row_slots() {
            if values[slot] != T::ZERO && nm.is_outside(slot) {
                values.to_mut()[slot] = T::ZERO;
            }
        }
    }
    values
}

/// Calls `upload` with the values of [`values_inside`].
fn upload_inside<R>(
    pattern: AnyPattern<'_>,
    values: Slice<'_>,
    upload: impl FnOnce(&[u8]) -> Result<R>,
) -> Result<R> {
    with_type!(values.dtype(), T => {
        let inside = values_inside::<T>(pattern, bytemuck::cast_slice(values.bytes()))?;
        upload(bytemuck::cast_slice(&inside))
    })
}

impl AnySparseTensor {
    /// Copies the values; with `None`, all values are zero.
    pub(crate) fn new(
        device: Option<&Arc<Device>>,
        pattern: SharedPattern,
        (dtype, values): (Dtype, Option<Slice<'_>>),
    ) -> Result<Self> {
        let view = pattern.view();
        let runs = Runs::of_pattern(view)?.map(Arc::new);
        let (batch, columns) = Runs::of_batch(view)?.unzip();
        let zeros = || Buffer::zeros(dtype, view.slots());
        let (values, device) = match (device, values) {
            (None, Some(values)) => (Some(Buffer::of(values)?), None),
            (None, None) => (Some(zeros()?), None),
            (Some(device), values) => {
                let own = columns_of(view).unwrap_or(&[PAD]);
                let columns = columns.as_deref().unwrap_or(own);
                let columns = Arc::new(device.upload_padded(columns, VECTOR_ENTRIES)?);
                let room = VECTOR_ENTRIES * dtype.bytes();
                let values = match values {
                    Some(values) => {
                        upload_inside(view, values, |inside| device.upload_padded(inside, room))?
                    }
                    None => device.zeros(view.slots() * dtype.bytes() + room)?,
                };
                let device = Arc::clone(device);
                let arrays = DeviceArrays { columns, values, device };
                (None, Some(arrays))
            }
        };
        let spans = match (&device, &runs) {
            (Some(arrays), Some(runs)) if of_entries(view) => {
                Some(Arc::new(arrays.device.upload(&runs.spans())?))
            }
            _ => None,
        };
        Ok(AnySparseTensor {
            dtype,
            values,
            pinned: None,
            runs,
            batch: batch.map(Arc::new),
            device,
            spans,
            pattern,
            transposes: Arc::default(),
        })
    }

    /// Returns a tensor with these device arrays and without host values, which shares the pattern and all that plans
    /// have derived from it.
    pub(super) fn with_arrays(&self, device: Option<DeviceArrays>) -> AnySparseTensor {
        AnySparseTensor {
            dtype: self.dtype,
            pattern: self.pattern.clone(),
            values: None,
            pinned: None,
            runs: self.runs.clone(),
            batch: self.batch.clone(),
            device,
            spans: self.spans.clone(),
            transposes: Arc::clone(&self.transposes),
        }
    }

    /// Returns a tensor without values that shares the pattern and its device arrays. Only
    /// [`zeros_like`](Self::zeros_like) reads it.
    pub(crate) fn structure(&self) -> Result<AnySparseTensor> {
        let device = self.device.as_ref().map(|own| {
            let values = DeviceMemory::alloc(own.device.context(), 0)?;
            Ok::<_, Error>(own.with_values(values))
        });
        Ok(self.with_arrays(device.transpose()?))
    }

    /// Creates a tensor of zeros with this pattern, in the memory of `device`. Device arrays of the pattern are shared.
    pub(crate) fn zeros_like(&self, device: Option<&Arc<Device>>) -> Result<AnySparseTensor> {
        let (dtype, slots) = (self.dtype, self.pattern().slots());
        match (&self.device, device) {
            (Some(own), Some(device)) if own.device.is_same(device) => {
                let values = device.zeros((slots + VECTOR_ENTRIES) * dtype.bytes())?;
                Ok(self.with_arrays(Some(own.with_values(values))))
            }
            (None, None) => {
                let values = Some(Buffer::zeros(dtype, slots)?);
                Ok(AnySparseTensor { values, ..self.with_arrays(None) })
            }
            _ => Self::new(device, self.pattern.clone(), (dtype, None)),
        }
    }

    /// Copies values and columns to page-locked host memory.
    pub(crate) fn pinned(
        device: &Arc<Device>,
        pattern: SharedPattern,
        values: Slice<'_>,
    ) -> Result<Self> {
        let view = pattern.view();
        let locked = |bytes: &[u8]| -> Result<PinnedMemory> {
            let mut memory = PinnedMemory::zeros(device.context(), bytes.len())?;
            memory.bytes_mut().copy_from_slice(bytes);
            Ok(memory)
        };
        let columns = columns_of(view).unwrap_or(&[]);
        let pinned =
            Pinned { columns: locked(bytemuck::cast_slice(columns))?, device: Arc::clone(device) };
        let (dtype, len) = (values.dtype(), values.len());
        let memory = locked(values.bytes())?;
        let start = memory.start();
        // SAFETY: the memory holds `len` values and is aligned to pages. No other code accesses it until the owner is
        // dropped.
        let values = unsafe { Buffer::foreign(dtype, start, len, Owner::new(memory)) };
        Ok(AnySparseTensor {
            dtype,
            values: Some(values),
            pinned: Some(pinned),
            runs: Runs::of_pattern(view)?.map(Arc::new),
            batch: None,
            device: None,
            spans: None,
            pattern,
            transposes: Arc::default(),
        })
    }

    /// Arrays that a GPU copies, for a matrix in row order in host memory.
    pub(crate) fn host_arrays(&self) -> Option<HostArrays<'_>> {
        let own = columns_of(self.pattern())?;
        Some(HostArrays {
            columns: match &self.pinned {
                Some(pinned) => bytemuck::cast_slice(pinned.columns.bytes()),
                None => own,
            },
            values: self.host()?,
            pinned: self.pinned.is_some(),
        })
    }

    /// Whether the tensor is in page-locked host memory.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned.is_some()
    }

    /// The pattern.
    #[doc(hidden)]
    pub fn pattern(&self) -> AnyPattern<'_> {
        self.pattern.view()
    }

    /// The values in host memory.
    pub(crate) fn host(&self) -> Option<Slice<'_>> {
        self.values.as_ref().map(Buffer::view)
    }

    /// The values in a CPU context, mutable. Values in page-locked memory are excluded: a GPU may copy them at any
    /// time.
    pub(crate) fn host_mut(&mut self) -> Option<SliceMut<'_>> {
        let own = self.values.as_mut().filter(|_| self.pinned.is_none());
        own.map(Buffer::view_mut)
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.pattern().shape()
    }

    pub(crate) fn format(&self) -> Format {
        self.pattern().format()
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Copies the current values. Waits for all work on the GPU.
    fn read(&self, to: &mut [u8]) -> Result<()> {
        match (&self.device, self.host()) {
            (Some(arrays), _) => arrays.device.read(&arrays.values, to),
            (None, Some(own)) => {
                to.copy_from_slice(own.bytes());
                Ok(())
            }
            (None, None) => Err(Error::operand("values", LOST)),
        }
    }

    pub(crate) fn set_values(&mut self, values: Slice<'_>) -> Result<()> {
        let slots = self.pattern().slots();
        if values.len() != slots {
            let (array, found, expected) = ("values", values.len(), slots);
            return Err(FormatError::Length { array, found, expected }.into());
        }
        match (&self.device, &mut self.values, &self.pinned) {
            (Some(arrays), ..) => upload_inside(self.pattern.view(), values, |inside| {
                arrays.device.write(&arrays.values, inside)
            }),
            (None, Some(own), Some(pinned)) => {
                // Copies of earlier runs read the old values.
                pinned.device.context().synchronize()?;
                own.bytes_mut().copy_from_slice(values.bytes());
                Ok(())
            }
            (None, own, _) => {
                *own = Some(Buffer::of(values)?);
                Ok(())
            }
        }
    }

    pub(crate) fn columns_address(&self) -> Option<u64> {
        self.product_runs()?;
        self.device.as_ref().map(|d| d.columns.address())
    }

    pub(crate) fn values_address(&self) -> Option<u64> {
        self.device.as_ref().map(|d| d.values.address())
    }

    /// Addresses of the values and the columns as kernels receive them. For host memory they are in a simulated memory.
    pub(crate) fn places(&self) -> [u64; 2] {
        let own = self.device.as_ref();
        own.map_or([ABSENT_ADDRESS; 2], |own| [own.values.address(), own.columns.address()])
    }

    pub(crate) fn runs(&self) -> Option<&Arc<Runs>> {
        self.runs.as_ref()
    }

    /// Runs and columns of a matrix whose nonzeros or blocks are stored one by one in row order. `None` for formats
    /// with encoded positions.
    pub(crate) fn row_order(&self) -> Option<(&Arc<Runs>, &[u32])> {
        let coded = matches!(
            self.format(),
            Format::Nm { .. }
                | Format::Bitmap
                | Format::Bytemap
                | Format::SlicedEll
                | Format::HybridGroupCoo
        );
        let runs = self.runs.as_ref().filter(|_| !coded)?;
        Some((runs, columns_of(self.pattern())?))
    }

    /// The runs that products process: of a matrix, or of a batch of matrices as one.
    pub(crate) fn product_runs(&self) -> Option<&Arc<Runs>> {
        self.runs.as_ref().or(self.batch.as_ref())
    }

    pub(crate) fn spans(&self) -> Option<&Arc<DeviceMemory>> {
        self.spans.as_ref()
    }

    /// Transposes of the pattern that plans have made.
    pub(crate) fn transposes(&self) -> &Transposes {
        &self.transposes
    }

    pub(crate) fn device(&self) -> Option<&DeviceArrays> {
        self.device.as_ref()
    }
}

impl<T: Scalar> SparseTensor<T> {
    pub(crate) fn new(device: Option<&Arc<Device>>, tensor: impl AsSparse<T>) -> Result<Self> {
        let tensor = tensor.as_sparse();
        let values = (T::DTYPE, Some(Slice::of(tensor.values())));
        let pattern = tensor.pattern().shared();
        Ok(Self::of(AnySparseTensor::new(device, pattern, values)?))
    }

    /// Copies to page-locked host memory. Without a GPU, to ordinary memory.
    pub(crate) fn pinned(device: Option<&Arc<Device>>, tensor: impl AsSparse<T>) -> Result<Self> {
        let Some(device) = device else {
            return Self::new(None, tensor);
        };
        let tensor = tensor.as_sparse();
        let (pattern, values) = (tensor.pattern().shared(), Slice::of(tensor.values()));
        AnySparseTensor::pinned(device, pattern, values).map(Self::of)
    }

    /// Creates a tensor of zeros.
    #[doc(hidden)]
    pub fn zeros(device: Option<&Arc<Device>>, pattern: SharedPattern) -> Result<Self> {
        let any = AnySparseTensor::new(device, pattern, (T::DTYPE, None))?;
        Ok(Self::of(any))
    }

    pub(crate) fn of(any: AnySparseTensor) -> Self {
        let element = PhantomData;
        SparseTensor { any, element }
    }

    /// Creates a tensor from arrays that were computed on the GPU.
    ///
    /// # Errors
    /// If memory for the runs of its rows is exhausted.
    pub(crate) fn made(pattern: impl Into<SharedPattern>, arrays: DeviceArrays) -> Result<Self> {
        let pattern = pattern.into();
        let runs = Runs::of_pattern(pattern.view())?.map(Arc::new);
        Ok(Self::of(AnySparseTensor {
            dtype: T::DTYPE,
            runs,
            batch: None,
            pattern,
            values: None,
            pinned: None,
            device: Some(arrays),
            spans: None,
            transposes: Arc::default(),
        }))
    }

    /// The values in a CPU context.
    pub(crate) fn host(&self) -> Option<&[T]> {
        self.any.host()?.typed()
    }

    /// Extents.
    pub fn shape(&self) -> &[usize] {
        self.any.shape()
    }

    /// Copies the tensor to host memory, with its current values. Waits for all work on the GPU.
    pub fn to_host(&self) -> Result<AnySparse<T>> {
        let slots = self.pattern().slots();
        let mut values = allocate::filled("values", slots, T::ZERO)?;
        self.any.read(bytemuck::cast_slice_mut(&mut values))?;
        Ok(self.any.pattern.clone().with_values(values)?)
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.any.format()
    }

    /// Sets new values for the same pattern: one per slot, in the order of the values of [`SparseTensor::to_host`].
    /// Waits for all work on the GPU.
    ///
    /// # Errors
    /// [`Error::Format`](crate::Error::Format) unless the number of values is the number of slots.
    pub fn set_values(&mut self, values: &[T]) -> Result<()> {
        self.any.set_values(Slice::of(values))
    }

    /// The values as a tensor of shape `[slots]`, in the order of the values of [`SparseTensor::to_host`]. Optimizers,
    /// norms and other operations on tensors read them in place.
    ///
    /// ```
    /// use einsparse::formats::{Csr, CsrPattern};
    /// let ctx = einsparse::Context::new();
    /// let a = ctx.upload(Csr::new(CsrPattern::new(2, 3, vec![0, 1, 3], vec![2, 0, 1])?, vec![2.0f32, 3.0, 4.0])?)?;
    /// assert_eq!(a.values()?.shape(), [3]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Operand`](crate::Error::Operand) if an earlier mutable view was forgotten.
    pub fn values(&self) -> Result<TensorView<'_, T>> {
        TensorView::of_values(&self.any)
    }

    /// The values as a mutable tensor of shape `[slots]`. Work that is queued on it is done in the order of its stream,
    /// as for all tensors. In blocks at the edge, elements outside the matrix must stay zero.
    ///
    /// ```
    /// use einsparse::formats::{Csr, CsrPattern, Dense};
    /// use einsparse::nn::{Sgd, SgdOptions};
    /// let ctx = einsparse::Context::new();
    /// let weights = Csr::new(CsrPattern::new(2, 3, vec![0, 1, 3], vec![2, 0, 1])?, vec![2.0f32, 3.0, 4.0])?;
    /// let mut weights = ctx.upload(weights)?;
    /// let gradient = ctx.upload_dense(&Dense::new([3], vec![1.0f32, 0.0, -1.0])?)?;
    /// let (mut sgd, stream) = (Sgd::new(&ctx, &[3], &SgdOptions { rate: 0.5, ..Default::default() })?, ctx.stream()?);
    /// sgd.step(&mut *weights.values_mut()?, &gradient, &stream)?;
    /// stream.synchronize()?;
    /// assert_eq!(weights.to_host()?.values(), [1.5, 3.0, 4.5]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`values`](Self::values); [`Error::OperandKind`](crate::Error::OperandKind) for values in page-locked memory,
    /// which a GPU may read at any time.
    pub fn values_mut(&mut self) -> Result<ValuesMut<'_, T>> {
        ValuesMut::of(&mut self.any)
    }

    /// Device address of the column (block column) of every slot, as [`RawSpmm`](crate::raw::RawSpmm) expects it.
    /// `None` in a CPU context and for formats that are not in row order.
    pub fn columns_address(&self) -> Option<u64> {
        self.any.columns_address()
    }

    /// Device address of the values; `None` in a CPU context.
    pub fn values_address(&self) -> Option<u64> {
        self.any.values_address()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use einsparse_formats::{Bsr, BsrPattern, Nm};

    #[test]
    fn edge_blocks_reach_the_device_without_what_lies_past_the_columns() {
        // 2 x 5 in blocks of 2 x 2: the second column of the block in columns 4 and 5 is outside the matrix.
        let pattern = BsrPattern::new(2, 5, (2, 2), vec![0, 2], vec![0, 2]).unwrap();
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, f32::NAN, 7.0, f32::INFINITY];
        let a = AnySparse::from(Bsr::new(pattern, values.to_vec()).unwrap());
        let wanted = [1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 7.0, 0.0];
        assert_eq!(values_inside(a.pattern(), &values).unwrap()[..], wanted);
        assert!(matches!(values_inside(a.pattern(), &wanted), Ok(Cow::Borrowed(_))));
    }

    #[test]
    fn edge_groups_reach_the_device_without_what_lies_past_the_columns() {
        // 1 x 5: positions 0 and 1 of the second group are columns 4 and 5, and column 5 is outside the matrix.
        let pattern = NmPattern::new(1, 5, vec![0x4444_4444]).unwrap();
        let values: Vec<f32> = (1..=16).map(|v| v as f32).collect();
        let a = AnySparse::from(Nm::new(pattern, values.clone()).unwrap());
        let mut wanted = [0.0; 16];
        wanted[..3].copy_from_slice(&[1.0, 2.0, 3.0]);
        assert_eq!(values_inside(a.pattern(), &values).unwrap()[..], wanted);
        assert!(matches!(values_inside(a.pattern(), &wanted), Ok(Cow::Borrowed(_))));
        assert_eq!(columns_of(a.pattern()), Some(&[0x4444_4444][..]));
    }
}
