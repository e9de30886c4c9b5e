//! Views of tensors without a copy: columns of a wider matrix, elements of a longer vector.

use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use super::sparse::{AnySparseTensor, DeviceArrays, LOST};
use super::{AnyTensor, Storage, Tensor, storage_len};
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::registry::Scalar;
use crate::values::Buffer;
use einsparse_cuda::owner::Owner;

/// View of a part of a tensor, for reading: [`Tensor::columns`], [`Tensor::part`]. Operations accept it as the tensor
/// that it derefs to. On a GPU, only the whole tensor can be copied to host memory.
#[derive(Debug)]
pub struct TensorView<'a, T> {
    tensor: Tensor<T>,
    of: PhantomData<&'a Tensor<T>>,
}

impl<T> Deref for TensorView<'_, T> {
    type Target = Tensor<T>;

    fn deref(&self) -> &Tensor<T> {
        &self.tensor
    }
}

/// View of a part of a tensor, for writing: [`Tensor::columns_mut`], [`Tensor::part_mut`]. Operations accept it as the
/// tensor that it derefs to. If another tensor is stored in the view, or the view is forgotten ([`mem::forget`]), the
/// whole tensor becomes empty, with shape `[0]`.
#[derive(Debug)]
pub struct TensorViewMut<'a, T> {
    /// Owns the storage of the whole tensor, which is returned to it on drop.
    tensor: Tensor<T>,
    /// Empty while the view exists, so that it is a valid tensor even if the view is forgotten.
    whole: &'a mut AnyTensor,
    /// Shape, row stride and first element of the whole tensor.
    extents: (Vec<usize>, usize, Option<usize>),
    place: (u64, usize),
}

impl<T> Deref for TensorViewMut<'_, T> {
    type Target = Tensor<T>;

    fn deref(&self) -> &Tensor<T> {
        &self.tensor
    }
}

impl<T> DerefMut for TensorViewMut<'_, T> {
    fn deref_mut(&mut self) -> &mut Tensor<T> {
        &mut self.tensor
    }
}

impl<T> Drop for TensorViewMut<'_, T> {
    fn drop(&mut self) {
        let own = &mut self.tensor.any;
        if own.storage.place() == self.place {
            let whole = &mut *self.whole;
            mem::swap(&mut own.storage, &mut whole.storage);
            (whole.shape, whole.leading, whole.part) = mem::take(&mut self.extents);
        }
    }
}

/// Mutable view of the values of a sparse tensor: [`SparseTensor::values_mut`](super::SparseTensor::values_mut).
/// Operations accept it as the tensor that it derefs to. If another tensor is stored in the view, or the view is
/// forgotten ([`mem::forget`]), the sparse tensor loses its values, and operations refuse it.
#[derive(Debug)]
pub struct ValuesMut<'a, T> {
    /// Owns the values, which are returned to the sparse tensor on drop.
    tensor: Tensor<T>,
    /// Without values while the view exists.
    whole: &'a mut AnySparseTensor,
    columns: Option<Arc<DeviceMemory>>,
    place: (u64, usize),
}

impl<'a, T: Scalar> ValuesMut<'a, T> {
    pub(super) fn of(whole: &'a mut AnySparseTensor) -> Result<Self> {
        if whole.is_pinned() {
            return Err(Error::kind("values", "values that a run may write", "page-locked values"));
        }
        let slots = whole.pattern().slots();
        let (storage, columns) = match (whole.device.take(), whole.values.take()) {
            (Some(own), _) => (Storage::Device(own.values, own.device), Some(own.columns)),
            (None, Some(own)) => (Storage::Host(own), None),
            (None, None) => return Err(Error::operand("values", LOST)),
        };
        let place = storage.place();
        let (dtype, shape) = (T::DTYPE, vec![slots]);
        let any = AnyTensor { dtype, shape, leading: slots, part: None, storage };
        Ok(ValuesMut { tensor: Tensor::of(any), whole, columns, place })
    }
}

impl<T> Deref for ValuesMut<'_, T> {
    type Target = Tensor<T>;

    fn deref(&self) -> &Tensor<T> {
        &self.tensor
    }
}

impl<T> DerefMut for ValuesMut<'_, T> {
    fn deref_mut(&mut self) -> &mut Tensor<T> {
        &mut self.tensor
    }
}

impl<T> Drop for ValuesMut<'_, T> {
    fn drop(&mut self) {
        let own = &mut self.tensor.any;
        if own.storage.place() != self.place {
            return;
        }
        let Ok(empty) = Buffer::zeros(own.dtype, 0) else { return };
        match (mem::replace(&mut own.storage, Storage::Host(empty)), self.columns.take()) {
            (Storage::Device(values, device), Some(columns)) => {
                self.whole.device = Some(DeviceArrays { columns, values, device });
            }
            (Storage::Host(values), None) => self.whole.values = Some(values),
            _ => {}
        }
    }
}

impl<T: Scalar> TensorView<'_, T> {
    /// View of the values of a sparse tensor.
    pub(super) fn of_values(whole: &AnySparseTensor) -> Result<Self> {
        let storage = match (whole.device(), whole.host()) {
            (Some(own), _) => Storage::Borrowed(own.values.address(), Arc::clone(&own.device)),
            (None, Some(own)) => {
                let start = own.bytes().as_ptr().cast_mut();
                // SAFETY: the view borrows the tensor that owns the values. It is aligned as they are, and gives no
                // access for writing.
                Storage::Host(unsafe {
                    Buffer::foreign(T::DTYPE, start, own.len(), Owner::new(()))
                })
            }
            (None, None) => return Err(Error::operand("values", LOST)),
        };
        let (dtype, slots) = (T::DTYPE, whole.pattern().slots());
        let any = AnyTensor { dtype, shape: vec![slots], leading: slots, part: None, storage };
        Ok(TensorView { tensor: Tensor::of(any), of: PhantomData })
    }
}

impl Storage {
    /// Address and size of the storage.
    fn place(&self) -> (u64, usize) {
        match self {
            Storage::Host(values) => {
                let bytes = values.view().bytes();
                (bytes.as_ptr() as u64, bytes.len())
            }
            Storage::Device(memory, _) => (memory.address(), memory.bytes()),
            Storage::Borrowed(address, _) => (*address, 0),
        }
    }
}

/// Shape and row stride of a part, and the index of its first element.
struct Part {
    shape: Vec<usize>,
    leading: usize,
    first: usize,
}

impl<T: Scalar> Tensor<T> {
    /// View of some columns of all rows. Its row stride is that of the whole tensor.
    ///
    /// ```
    /// use einsparse::formats::Dense;
    /// let ctx = einsparse::Context::cpu();
    /// let whole = ctx.upload_dense(&Dense::new([2, 3], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?)?;
    /// let part = whole.columns(1..3)?;
    /// assert_eq!((part.shape(), part.leading()), (&[2, 2][..], 3));
    /// assert_eq!(part.to_dense()?.values(), [2.0, 3.0, 5.0, 6.0]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] if a column is past the last one.
    pub fn columns(&self, columns: Range<usize>) -> Result<TensorView<'_, T>> {
        self.view(self.column_part(columns)?)
    }

    /// Mutable view of some columns of all rows. Other columns are unchanged.
    ///
    /// ```
    /// use einsparse::formats::Dense;
    /// let ctx = einsparse::Context::cpu();
    /// let mut whole = ctx.zeros::<f32>(&[2, 3])?;
    /// whole.columns_mut(0..1)?.write(&Dense::new([2, 1], vec![7.0, 8.0])?)?;
    /// assert_eq!(whole.to_dense()?.values(), [7.0, 0.0, 0.0, 8.0, 0.0, 0.0]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`columns`](Self::columns).
    pub fn columns_mut(&mut self, columns: Range<usize>) -> Result<TensorViewMut<'_, T>> {
        let part = self.column_part(columns)?;
        self.view_mut(part)
    }

    /// View of shape `shape` in a tensor without gaps, from element `first` on. For example, one vector can hold the
    /// parameters of many layers, which an optimizer updates in one step.
    ///
    /// ```
    /// use einsparse::formats::Dense;
    /// let ctx = einsparse::Context::cpu();
    /// let all = ctx.upload_dense(&Dense::new([5], vec![1.0f32, 2.0, 3.0, 4.0, 5.0])?)?;
    /// assert_eq!(all.part(1, &[2, 2])?.to_dense()?.get(&[1, 0]), Some(4.0));
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] if an element is past the last one, or if rows have gaps.
    pub fn part(&self, first: usize, shape: &[usize]) -> Result<TensorView<'_, T>> {
        self.view(self.element_part(first, shape)?)
    }

    /// Mutable view of shape `shape` in a tensor without gaps, from element `first` on.
    ///
    /// # Errors
    /// As [`part`](Self::part).
    pub fn part_mut(&mut self, first: usize, shape: &[usize]) -> Result<TensorViewMut<'_, T>> {
        let part = self.element_part(first, shape)?;
        self.view_mut(part)
    }

    fn column_part(&self, columns: Range<usize>) -> Result<Part> {
        let width = self.shape().last().copied().unwrap_or(0);
        if columns.start > columns.end || columns.end > width {
            return Err(Error::Shape {
                index: "columns".into(),
                left: format!("{columns:?}"),
                right: format!("the tensor is {:?}", self.shape()),
            });
        }
        let mut shape = self.shape().to_vec();
        shape.pop();
        shape.push(columns.len());
        Ok(Part {
            shape,
            leading: self.leading(),
            // Without elements, the first index is 0.
            first: if self.shape().contains(&0) { 0 } else { columns.start },
        })
    }

    fn element_part(&self, first: usize, shape: &[usize]) -> Result<Part> {
        let leading = shape.last().copied().unwrap_or(1);
        let end = storage_len(shape, leading)?.saturating_add(first);
        let whole = self.shape().iter().product();
        let gaps = self.shape().last().is_some_and(|&w| w != self.leading());
        if gaps || end > whole {
            return Err(Error::Shape {
                index: "part".into(),
                left: format!("{shape:?} from element {first} on"),
                right: format!(
                    "the tensor is {:?}, its rows {} elements apart",
                    self.shape(),
                    self.leading()
                ),
            });
        }
        Ok(Part { shape: shape.to_vec(), leading, first })
    }

    fn view(&self, part: Part) -> Result<TensorView<'_, T>> {
        let storage = match (&self.any.storage, self.address()) {
            (Storage::Host(_), _) | (_, None) => {
                let own = self.host().unwrap_or_default();
                let own = own.get(part.first..).unwrap_or_default();
                let reach = storage_len(&part.shape, part.leading)?.min(own.len());
                let own = &own[..reach];
                let start = own.as_ptr().cast_mut().cast();
                // SAFETY: the view borrows the tensor that owns the values. It is aligned as they are, and gives no
                // access for writing.
                let values = unsafe { Buffer::foreign(T::DTYPE, start, own.len(), Owner::new(())) };
                Storage::Host(values)
            }
            (Storage::Device(_, device) | Storage::Borrowed(_, device), Some(address)) => {
                let address = address + (part.first * size_of::<T>()) as u64;
                Storage::Borrowed(address, Arc::clone(device))
            }
        };
        let any = AnyTensor {
            dtype: T::DTYPE,
            shape: part.shape,
            leading: part.leading,
            part: None,
            storage,
        };
        Ok(TensorView { tensor: Tensor::of(any), of: PhantomData })
    }

    fn view_mut(&mut self, part: Part) -> Result<TensorViewMut<'_, T>> {
        let first = self.any.first() + part.first;
        let empty = AnyTensor::zeros(None, T::DTYPE, &[0], 0)?;
        let whole = mem::replace(&mut self.any, empty);
        let place = whole.storage.place();
        let any = AnyTensor {
            dtype: T::DTYPE,
            shape: part.shape,
            leading: part.leading,
            part: Some(first),
            storage: whole.storage,
        };
        Ok(TensorViewMut {
            tensor: Tensor::of(any),
            whole: &mut self.any,
            extents: (whole.shape, whole.leading, whole.part),
            place,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::context::Context;
    use crate::tensor::Tensor;
    use einsparse_formats::Dense;

    #[test]
    fn parts_are_read_and_written_where_they_lie() {
        let cpu = Context::cpu();
        let mut whole = cpu.zeros::<f32>(&[3, 4]).unwrap();
        let two = Dense::new([3, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        {
            let mut part = whole.columns_mut(1..4).unwrap();
            part.columns_mut(1..3).unwrap().write(&two).unwrap();
        }
        assert_eq!(whole.columns(2..4).unwrap().to_dense().unwrap(), two);
        let all = whole.to_dense().unwrap();
        assert_eq!(all.values()[..8], [0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 3.0, 4.0]);
        let rows = whole.part(4, &[2, 4]).unwrap();
        assert_eq!(rows.to_dense().unwrap().values(), &all.values()[4..]);
        assert!(whole.columns(3..5).is_err() && whole.part(5, &[2, 4]).is_err());
        assert!(whole.columns(1..3).unwrap().part(0, &[2]).is_err());
    }

    #[test]
    fn a_part_ends_where_the_next_one_begins() {
        let cpu = Context::cpu();
        let mut all = cpu.zeros::<f32>(&[6]).unwrap();
        assert_eq!(all.part(1, &[2]).unwrap().host().unwrap().len(), 2);
        all.part_mut(1, &[2]).unwrap().host_mut().unwrap().fill(7.0);
        assert_eq!(all.to_dense().unwrap().values(), [0.0, 7.0, 7.0, 0.0, 0.0, 0.0]);
        let mut none = cpu.zeros::<f32>(&[0, 4]).unwrap();
        let nothing = Dense::new([0, 2], Vec::new()).unwrap();
        none.columns_mut(2..4).unwrap().write(&nothing).unwrap();
    }

    #[test]
    fn what_is_put_in_the_place_of_a_part_does_not_become_the_whole() {
        let cpu = Context::cpu();
        let mut whole = cpu.zeros::<f32>(&[3, 4]).unwrap();
        let mut other = cpu.zeros::<f32>(&[1, 1]).unwrap();
        {
            let mut part = whole.columns_mut(1..2).unwrap();
            std::mem::swap(&mut *part, &mut other);
        }
        assert_eq!(other.to_dense().unwrap().values(), [0.0; 3]);
        is_empty(whole);
    }

    #[test]
    fn a_part_that_is_forgotten_leaves_the_whole_empty() {
        let cpu = Context::cpu();
        let mut whole = cpu.zeros::<f32>(&[3, 4]).unwrap();
        std::mem::forget(whole.columns_mut(1..2).unwrap());
        is_empty(whole);
        let mut whole = cpu.zeros::<f32>(&[3, 4]).unwrap();
        let mut half = whole.part_mut(4, &[2, 4]).unwrap();
        std::mem::forget(half.columns_mut(1..2).unwrap());
        drop(half);
        is_empty(whole);
    }

    /// Checks that reads return no elements, and that writes and products return an error with the shape.
    fn is_empty(mut whole: Tensor<f32>) {
        let cpu = Context::cpu();
        assert_eq!(whole.to_dense().unwrap(), Dense::zeros([0]).unwrap());
        let (dense, stream) = (Dense::zeros([3, 4]).unwrap(), cpu.stream().unwrap());
        let error = whole.write(&dense).unwrap_err().to_string();
        assert!(error.contains("[0]"), "{error}");
        assert!(whole.columns_mut(1..2).is_err());
        let [a, b] = [[3, 2], [2, 4]].map(|shape| cpu.zeros::<f32>(&shape).unwrap());
        let operands = [("A", (&a).into()), ("B", (&b).into())];
        let plan = cpu.plan("C[m,n] = A[m,k] * B[k,n]").operands(&operands);
        let run = plan.build().unwrap().run(&operands, &mut whole, &stream);
        assert!(run.is_err());
    }
}
