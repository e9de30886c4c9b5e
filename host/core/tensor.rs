//! Tensors of a context: dense ones with a row stride in this file, sparse ones in their format in `sparse`.

mod copy;
#[cfg(feature = "cudarc")]
mod cudarc;
#[cfg(feature = "dlpack")]
mod dlpack;
mod dynamic;
mod foreign;
mod matrix;
mod operand;
mod shadow;
mod sparse;
mod upload;
mod view;

use std::marker::PhantomData;
use std::sync::Arc;

use einsparse_formats::Dense;

use crate::context::Context;
use crate::device::Device;
use crate::driver::{ABSENT_ADDRESS, DeviceMemory, RowBytes};
use crate::error::{Elsewhere, Error, Result, check_shape};
use crate::parallel;
use crate::registry::{Dtype, Scalar};
use crate::values::{Buffer, Slice, SliceMut, Sum};

pub(crate) use dynamic::DynamicOptions;
pub use dynamic::{Dynamic, SparsityHint};
pub use matrix::DenseMatrix;
pub(crate) use operand::{AnyOperand, Named, erase, row_major, volume};
pub use operand::{IntoOperand, Operand};
pub(crate) use shadow::ShadowOperands;
use sparse::LOST;
pub use sparse::SparseTensor;
pub(crate) use sparse::{
    AnySparseTensor, DeviceArrays, HostArrays, TransposedPattern, Transposes, VECTOR_ENTRIES,
    columns_of,
};
pub use view::{TensorView, TensorViewMut, ValuesMut};

/// A dense, row-major tensor in the memory of a [`Context`]. The last axis is contiguous. The row stride may exceed the
/// length of a row.
///
/// ```
/// use einsparse::formats::Dense;
/// let ctx = einsparse::Context::new();
/// let mut tensor = ctx.upload_dense(&Dense::new([2, 2], vec![1.0f32, 2.0, 3.0, 4.0])?)?;
/// tensor.write(&Dense::new([2, 2], vec![5.0, 6.0, 7.0, 8.0])?)?;
/// assert_eq!((tensor.shape(), tensor.to_dense()?.values()), (&[2, 2][..], &[5.0, 6.0, 7.0, 8.0][..]));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Tensor<T> {
    pub(crate) any: AnyTensor,
    element: PhantomData<T>,
}

/// A [`Tensor`] whose element type is a run-time value.
#[doc(hidden)]
#[derive(Debug)]
pub struct AnyTensor {
    dtype: Dtype,
    shape: Vec<usize>,
    leading: usize,
    /// Index of the first element in the storage, if the storage holds more than this tensor.
    part: Option<usize>,
    storage: Storage,
}

#[derive(Debug)]
enum Storage {
    Host(Buffer),
    Device(DeviceMemory, Arc<Device>),
    /// Address in a tensor that is borrowed while this value exists.
    Borrowed(u64, Arc<Device>),
}

/// Number of elements of a tensor with row stride `leading`, gaps included.
fn storage_len(shape: &[usize], leading: usize) -> Result<usize> {
    let width = shape.last().copied().unwrap_or(1);
    if leading < width {
        return Err(Error::stride("dense tensor", leading, format_args!("at least {width}")));
    }
    let rows = shape
        .split_last()
        .map_or(Some(1), |(_, outer)| outer.iter().try_fold(1usize, |n, &e| n.checked_mul(e)));
    rows.and_then(|r| r.checked_mul(leading)).filter(|n| *n <= isize::MAX as usize / 8).ok_or(
        Error::Overflow {
            what: "elements of a dense tensor".into(),
            value: shape.iter().fold(1u128, |n, &e| n.saturating_mul(e as u128)),
            limit: isize::MAX as u128 / 8,
        },
    )
}

impl AnyTensor {
    /// Creates a tensor of zeros.
    pub(crate) fn zeros(
        device: Option<&Arc<Device>>,
        dtype: Dtype,
        shape: &[usize],
        leading: usize,
    ) -> Result<Self> {
        let len = storage_len(shape, leading)?;
        let storage = match device {
            None => Storage::Host(Buffer::zeros(dtype, len)?),
            Some(device) => Storage::Device(device.zeros(len * dtype.bytes())?, Arc::clone(device)),
        };
        Ok(AnyTensor { dtype, shape: shape.to_vec(), leading, part: None, storage })
    }

    /// Creates a tensor without gaps and without elements in memory, for planning only.
    pub(crate) fn of_shape(
        device: Option<&Arc<Device>>,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<Self> {
        Self::of_rows(device, dtype, shape, shape.last().copied().unwrap_or(1))
    }

    /// Creates a tensor without elements in memory, for planning only.
    pub(crate) fn of_rows(
        device: Option<&Arc<Device>>,
        dtype: Dtype,
        shape: &[usize],
        leading: usize,
    ) -> Result<Self> {
        storage_len(shape, leading)?;
        let storage = match device {
            None => Storage::Host(Buffer::zeros(dtype, 0)?),
            Some(device) => Storage::Borrowed(ABSENT_ADDRESS, Arc::clone(device)),
        };
        Ok(AnyTensor { dtype, shape: shape.to_vec(), leading, part: None, storage })
    }

    /// Copies values into a tensor without gaps.
    pub(crate) fn of(
        device: Option<&Arc<Device>>,
        shape: &[usize],
        values: Slice<'_>,
    ) -> Result<Self> {
        let storage = match device {
            None => Storage::Host(Buffer::of(values)?),
            Some(device) => Storage::Device(device.upload(values.bytes())?, Arc::clone(device)),
        };
        Ok(AnyTensor {
            dtype: values.dtype(),
            shape: shape.to_vec(),
            leading: shape.last().copied().unwrap_or(1),
            part: None,
            storage,
        })
    }

    /// The values of a sparse tensor, with one axis. On a GPU the result refers to them and must not outlive the
    /// tensor; on a CPU it is a copy.
    pub(crate) fn of_values(sparse: &AnySparseTensor) -> Result<Self> {
        let slots = sparse.pattern().slots();
        let Some(arrays) = sparse.device() else {
            let values = sparse.host().ok_or_else(|| Error::operand("values", LOST))?;
            return AnyTensor::of(None, &[slots], values);
        };
        let storage = Storage::Borrowed(arrays.values.address(), Arc::clone(&arrays.device));
        Ok(AnyTensor {
            dtype: sparse.dtype(),
            shape: vec![slots],
            leading: slots,
            part: None,
            storage,
        })
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Number of elements that belong to this tensor, of the `rest` elements from its first one on. After a part, the
    /// elements of other parts follow.
    fn reach(&self, rest: usize) -> usize {
        match self.part {
            None => rest,
            Some(_) => storage_len(&self.shape, self.leading).map_or(rest, |own| own.min(rest)),
        }
    }

    /// Index of the first element in the storage.
    fn first(&self) -> usize {
        self.part.unwrap_or(0)
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn leading(&self) -> usize {
        self.leading
    }

    pub(crate) fn address(&self) -> Option<u64> {
        match &self.storage {
            Storage::Host(_) => None,
            Storage::Device(memory, _) => {
                Some(memory.address() + (self.first() * self.dtype.bytes()) as u64)
            }
            Storage::Borrowed(address, _) => Some(*address),
        }
    }

    /// Address of the first element as kernels receive it. For host memory: an address of equal alignment in the memory
    /// of a simulated GPU.
    #[doc(hidden)]
    pub fn place(&self) -> u64 {
        let first = (self.first() * self.dtype.bytes()) as u64;
        match &self.storage {
            Storage::Host(values) => match values.misalignment() {
                Some(bytes) => ABSENT_ADDRESS + bytes + first,
                None => 0,
            },
            Storage::Device(memory, _) => memory.address() + first,
            Storage::Borrowed(address, _) => *address,
        }
    }

    pub(crate) fn device(&self) -> Option<&Arc<Device>> {
        match &self.storage {
            Storage::Host(_) => None,
            Storage::Device(_, device) | Storage::Borrowed(_, device) => Some(device),
        }
    }

    pub(crate) fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.shape.len()];
        for axis in (0..self.shape.len().saturating_sub(1)).rev() {
            let inner = if axis + 2 == self.shape.len() {
                self.leading
            } else {
                strides[axis + 1] * self.shape[axis + 1]
            };
            strides[axis] = inner;
        }
        strides
    }

    /// The values in host memory; `None` on a GPU.
    #[doc(hidden)]
    pub fn host(&self) -> Option<Slice<'_>> {
        match &self.storage {
            Storage::Host(values) => {
                let rest = values.view().from(self.first().min(values.view().len()));
                Some(rest.first(self.reach(rest.len())))
            }
            Storage::Device(..) | Storage::Borrowed(..) => None,
        }
    }

    /// The values in host memory, mutable; `None` on a GPU.
    #[doc(hidden)]
    pub fn host_mut(&mut self) -> Option<SliceMut<'_>> {
        let first = self.first();
        let rest = match &self.storage {
            Storage::Host(values) => values.view().len().checked_sub(first)?,
            Storage::Device(..) | Storage::Borrowed(..) => return None,
        };
        let reach = self.reach(rest);
        match &mut self.storage {
            Storage::Host(values) => Some(values.view_mut().part(first, reach)),
            Storage::Device(..) | Storage::Borrowed(..) => None,
        }
    }

    /// Overwrites the first `width` elements of each of `rows` rows in host memory. `sum` adds to zeros. `None` on a
    /// GPU.
    #[doc(hidden)]
    pub fn store_rows<A: Sum>(
        &mut self,
        rows: usize,
        width: usize,
        sum: &(dyn Fn(usize, &mut [A]) + Sync),
    ) -> Option<()> {
        let pitch = self.leading;
        let values = self.host_mut()?;
        if width == 0 {
            parallel::each(rows, &|row| sum(row, &mut []));
        } else if rows > 0 {
            let mut sums = vec![A::ZERO; values.len().min(rows * pitch)];
            parallel::chunks(&mut sums, pitch, &|row, sums| sum(row, &mut sums[..width]));
            values.narrow((rows, width, pitch), &sums);
        }
        Some(())
    }

    /// Length of a row and row stride, in bytes.
    fn row_bytes(&self) -> RowBytes {
        let width = self.shape.last().copied().unwrap_or(1);
        (width * self.dtype.bytes(), self.leading * self.dtype.bytes())
    }

    /// All stored elements, gaps between rows included.
    fn storage(&self) -> Result<Buffer> {
        match &self.storage {
            Storage::Host(values) => Ok(values.clone()),
            Storage::Device(memory, device) => {
                let len = memory.bytes() / self.dtype.bytes();
                let mut values = Buffer::zeros(self.dtype, len)?;
                device.read(memory, values.bytes_mut())?;
                Ok(values)
            }
            Storage::Borrowed(..) => Err(borrowed()),
        }
    }

    /// Copies the rows to `to`, without the gaps. Waits for all work on the GPU.
    fn read(&self, to: &mut [u8]) -> Result<()> {
        let (rows, first) = (self.row_bytes(), self.first() * self.dtype.bytes());
        match &self.storage {
            Storage::Host(values) => {
                let own = &values.view().bytes()[first..];
                let (width, pitch) = as_one(rows, to.len());
                for (to, from) in to.chunks_mut(width).zip(own.chunks(pitch)) {
                    to.copy_from_slice(&from[..width]);
                }
                Ok(())
            }
            Storage::Device(memory, device) => device.read_rows(memory, first, rows, to),
            Storage::Borrowed(..) => Err(borrowed()),
        }
    }

    /// Overwrites the rows and leaves the gaps between them. Waits for all work on the GPU.
    fn write_rows(&mut self, values: &[u8]) -> Result<()> {
        let (rows, first) = (self.row_bytes(), self.first() * self.dtype.bytes());
        match &mut self.storage {
            Storage::Host(own) => {
                let own = &mut own.bytes_mut()[first..];
                let (width, pitch) = as_one(rows, values.len());
                for (to, from) in own.chunks_mut(pitch).zip(values.chunks(width)) {
                    to[..width].copy_from_slice(from);
                }
                Ok(())
            }
            Storage::Device(memory, device) => device.write_rows(memory, first, rows, values),
            Storage::Borrowed(..) => Err(borrowed()),
        }
    }

    /// Creates a tensor with row stride `leading` and fills the gaps between rows with `gap`.
    fn strided(
        device: Option<&Arc<Device>>,
        (shape, values): (&[usize], Slice<'_>),
        leading: usize,
        gap: &[u8],
    ) -> Result<Self> {
        let mut tensor = Self::zeros(None, values.dtype(), shape, leading)?;
        if let Storage::Host(all) = &mut tensor.storage {
            let all = all.bytes_mut().chunks_mut(gap.len());
            all.for_each(|to| to.copy_from_slice(gap));
        }
        tensor.write_rows(values.bytes())?;
        if let (Storage::Host(all), Some(device)) = (&tensor.storage, device) {
            let there = device.upload(all.view().bytes())?;
            tensor.storage = Storage::Device(there, Arc::clone(device));
        }
        Ok(tensor)
    }

    /// Overwrites the contents with those of a tensor of the same shape.
    pub(crate) fn copy(&mut self, other: &AnyTensor) -> Result<()> {
        let (width, _) = other.row_bytes();
        let rows: usize = other.shape.iter().rev().skip(1).product();
        let mut values = vec![0; rows * width];
        other.read(&mut values)?;
        self.write(&other.shape, &values)
    }

    fn write(&mut self, shape: &[usize], values: &[u8]) -> Result<()> {
        if shape != self.shape {
            return Err(Error::Shape {
                index: "write".into(),
                left: format!("the tensor is {:?}", self.shape),
                right: format!("the data {shape:?}"),
            });
        }
        self.write_rows(values)
    }
}

impl<T> Tensor<T> {
    /// The tensor without its element type.
    #[doc(hidden)]
    pub fn any(&self) -> &AnyTensor {
        &self.any
    }

    /// The tensor without its element type, for writing.
    ///
    /// # Safety
    /// The caller does not store a tensor of another element type.
    #[doc(hidden)]
    pub unsafe fn any_mut(&mut self) -> &mut AnyTensor {
        &mut self.any
    }

    /// [`AnyTensor::place`].
    #[doc(hidden)]
    pub fn place(&self) -> u64 {
        self.any.place()
    }
}

impl<T: Scalar> Tensor<T> {
    pub(crate) fn of(any: AnyTensor) -> Self {
        let element = PhantomData;
        Tensor { any, element }
    }

    /// Creates a tensor of zeros.
    pub(crate) fn new(
        device: Option<&Arc<Device>>,
        shape: &[usize],
        leading: usize,
    ) -> Result<Self> {
        AnyTensor::zeros(device, T::DTYPE, shape, leading).map(Self::of)
    }

    /// Extents.
    pub fn shape(&self) -> &[usize] {
        self.any.shape()
    }

    /// Changes the extents. The elements keep their order and are not moved.
    ///
    /// ```
    /// let mut x = einsparse::Context::cpu().zeros::<f32>(&[2, 3, 4])?;
    /// x.reshape(&[6, 4])?;
    /// assert_eq!((x.shape(), x.leading()), (&[6, 4][..], 4));
    /// assert!(x.reshape(&[5, 5]).is_err());
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] if the number of elements differs, or if rows have gaps. [`Error::Overflow`] if the number of
    /// elements exceeds the address space. On an error the tensor is unchanged.
    pub fn reshape(&mut self, shape: &[usize]) -> Result<()> {
        let leading = shape.last().copied().unwrap_or(1);
        let own: usize = self.shape().iter().product();
        let width = self.shape().last().copied().unwrap_or(1);
        if storage_len(shape, leading)? != own || self.leading() != width {
            let found =
                format!("{:?} with a row stride of {} elements", self.shape(), self.leading());
            return Err(Error::shape("tensor", found, format!("the new shape is {shape:?}")));
        }
        self.any.shape = shape.to_vec();
        self.any.leading = leading;
        Ok(())
    }

    /// Row stride (distance of rows of the last axis), in elements.
    pub fn leading(&self) -> usize {
        self.any.leading()
    }

    /// Device address of the first element; `None` in a CPU context.
    pub fn address(&self) -> Option<u64> {
        self.any.address()
    }

    /// GPU whose memory holds the tensor; `None` in a CPU context.
    pub fn device(&self) -> Option<&Arc<Device>> {
        self.any.device()
    }

    /// Stride of each axis, in elements.
    pub fn strides(&self) -> Vec<usize> {
        self.any.strides()
    }

    /// Copies to host memory, without the gaps between rows. Waits for all work on the GPU.
    pub fn to_dense(&self) -> Result<Dense<T>> {
        let mut dense = Dense::zeros(self.shape())?;
        self.any.read(bytemuck::cast_slice_mut(dense.values_mut()))?;
        Ok(dense)
    }

    /// All stored elements, gaps between rows included. For tests of the elements that a kernel must not write.
    #[doc(hidden)]
    pub fn to_storage(&self) -> Result<Vec<T>> {
        let all = self.any.storage()?;
        Ok(all.view().typed().unwrap_or_default().to_vec())
    }

    /// Overwrites the contents with those of a tensor of equal shape. Waits for all work on the GPU.
    pub fn write(&mut self, dense: &Dense<T>) -> Result<()> {
        let values = bytemuck::cast_slice(dense.values());
        self.any.write(dense.shape(), values)
    }

    /// # Errors
    /// If the shape differs from the planned one, or the tensor is in another context.
    #[doc(hidden)]
    pub fn check(&self, name: &str, context: &Context, planned: &[usize]) -> Result<()> {
        check_shape(name, planned, self.shape())?;
        match context.holds(self.device()) {
            true => Ok(()),
            false => Err(Error::elsewhere(name)),
        }
    }

    #[doc(hidden)]
    pub fn host(&self) -> Option<&[T]> {
        self.any.host()?.typed()
    }

    /// Returns the storage in host memory and the row stride.
    #[doc(hidden)]
    pub fn host_rows(&self, name: &str) -> Result<(&[T], usize)> {
        Ok((self.host().or_elsewhere(name)?, self.leading()))
    }

    /// Returns the storage in host memory, for writing, and the row stride.
    #[doc(hidden)]
    pub fn host_rows_mut(&mut self, name: &str) -> Result<(&mut [T], usize)> {
        let leading = self.leading();
        Ok((self.host_mut().or_elsewhere(name)?, leading))
    }

    #[doc(hidden)]
    pub fn host_mut(&mut self) -> Option<&mut [T]> {
        self.any.host_mut()?.typed()
    }
}

/// Row length and stride for `bytes` bytes of rows. Rows without gaps count as one row.
fn as_one((width, pitch): RowBytes, bytes: usize) -> RowBytes {
    match width == pitch {
        true => (bytes.max(1), bytes.max(1)),
        false => (width.max(1), pitch),
    }
}

/// Error of values that belong to another tensor.
fn borrowed() -> Error {
    Error::operand("values", "belong to another tensor, which reads and writes them")
}

#[cfg(test)]
mod tests {
    use super::*;
    use einsparse_formats::FormatError;

    #[test]
    fn sizes_past_memory_are_errors() {
        let cpu = Context::cpu();
        let overflow = cpu.zeros::<f32>(&[usize::MAX; 5]).unwrap_err();
        assert!(matches!(overflow, Error::Overflow { .. }), "{overflow}");
        let memory = cpu.zeros::<f32>(&[1 << 30, 1 << 29]).unwrap_err();
        let bytes = 1u128 << 61;
        assert!(
            matches!(memory, Error::Format(FormatError::Memory { bytes: b, .. }) if b == bytes),
            "{memory}"
        );
    }

    #[test]
    fn writing_keeps_the_gaps_between_rows() {
        let cpu = Context::cpu();
        let dense = |x: f64| Dense::new(vec![2, 2], vec![x; 4]).unwrap();
        let mut tensor = cpu.upload_strided(&dense(1.0), 3, 9.0).unwrap();
        tensor.write(&dense(2.0)).unwrap();
        assert_eq!(tensor.to_storage().unwrap(), [2.0, 2.0, 9.0, 2.0, 2.0, 9.0]);
        assert_eq!(tensor.to_dense().unwrap(), dense(2.0));
    }
}
