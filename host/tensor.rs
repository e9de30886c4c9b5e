//! Tensors where a context works: dense ones with a row stride here, sparse ones in their format in `sparse`.

mod operand;
mod sparse;

use std::sync::Arc;

use einsparse_formats::{AnySparse, Dense, FormatError};

use crate::context::Context;
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::registry::Scalar;

pub use operand::Operand;
pub use sparse::SparseTensor;
pub(crate) use sparse::{DeviceArrays, VECTOR_ENTRIES, columns_of, told_by};

/// A dense tensor, row-major, in the memory of a [`Context`]. The last axis is contiguous; rows of it may
/// lie further apart than they are long.
#[derive(Debug)]
pub struct Tensor<T> {
    shape: Vec<usize>,
    leading: usize,
    storage: Storage<T>,
}

#[derive(Debug)]
pub(crate) enum Storage<T> {
    Host(Vec<T>),
    Device(DeviceMemory, Arc<Device>),
    /// The values of a sparse tensor, which is borrowed for as long as this lives.
    Borrowed(u64, Arc<Device>),
}

/// Elements of a tensor whose rows are `leading` apart.
fn storage_len(shape: &[usize], leading: usize) -> Result<usize> {
    let rows = shape.split_last().map_or(Some(1), |(_, outer)| {
        outer.iter().try_fold(1usize, |n, &e| n.checked_mul(e))
    });
    rows.and_then(|r| r.checked_mul(leading))
        .filter(|n| *n <= isize::MAX as usize / 8)
        .ok_or(Error::Overflow {
            what: "elements of a dense tensor".into(),
            value: shape
                .iter()
                .fold(1u128, |n, &e| n.saturating_mul(e as u128)),
            limit: isize::MAX as u128 / 8,
        })
}

/// Zeros on the host, or the error that names their number.
pub(crate) fn host_zeros<T: Scalar>(len: usize) -> Result<Vec<T>> {
    let bytes = len as u128 * size_of::<T>() as u128;
    let what = "a dense tensor";
    Ok(bytemuck::allocation::try_zeroed_vec(len)
        .map_err(|()| FormatError::Memory { what, bytes })?)
}

impl<T: Scalar> Tensor<T> {
    pub(crate) fn new(
        device: Option<&Arc<Device>>,
        shape: &[usize],
        leading: usize,
        data: Option<Vec<T>>,
    ) -> Result<Self> {
        let width = shape.last().copied().unwrap_or(1);
        if leading < width {
            return Err(Error::Shape {
                index: "leading dimension".into(),
                left: format!("{leading} elements"),
                right: format!("rows have {width}"),
            });
        }
        let len = storage_len(shape, leading)?;
        let storage = match (device, data) {
            (None, Some(data)) => Storage::Host(data),
            (None, None) => Storage::Host(host_zeros(len)?),
            (Some(device), Some(data)) => {
                Storage::Device(device.upload(&data)?, Arc::clone(device))
            }
            (Some(device), None) => {
                Storage::Device(device.zeros(len * size_of::<T>())?, Arc::clone(device))
            }
        };
        Ok(Tensor {
            shape: shape.to_vec(),
            leading,
            storage,
        })
    }

    /// Extents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements from one row (of the last axis) to the next.
    pub fn leading(&self) -> usize {
        self.leading
    }

    /// Device address of the first element; `None` in a CPU context.
    pub fn address(&self) -> Option<u64> {
        match &self.storage {
            Storage::Host(_) => None,
            Storage::Device(memory, _) => Some(memory.address()),
            Storage::Borrowed(address, _) => Some(*address),
        }
    }

    /// The GPU whose memory it is in; `None` in a CPU context.
    pub fn device(&self) -> Option<&Arc<Device>> {
        match &self.storage {
            Storage::Host(_) => None,
            Storage::Device(_, device) | Storage::Borrowed(_, device) => Some(device),
        }
    }

    /// Elements from one step along each axis to the next.
    pub fn strides(&self) -> Vec<usize> {
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

    /// Copies to the host, without the gaps between rows. Waits for all work on the GPU.
    pub fn to_dense(&self) -> Result<Dense<T>> {
        let width = self.shape.last().copied().unwrap_or(1);
        let all = self.to_storage()?;
        let values = if self.leading == width {
            all
        } else {
            all.chunks(self.leading.max(1))
                .flat_map(|row| &row[..width])
                .copied()
                .collect()
        };
        Ok(Dense::new(self.shape.clone(), values)?)
    }

    /// Everything stored, gaps between rows included. For tests of what a kernel leaves alone.
    #[doc(hidden)]
    pub fn to_storage(&self) -> Result<Vec<T>> {
        match &self.storage {
            Storage::Host(values) => Ok(values.clone()),
            Storage::Device(memory, device) => {
                let mut values = vec![T::ZERO; memory.bytes() / size_of::<T>()];
                device.read(memory, &mut values)?;
                Ok(values)
            }
            Storage::Borrowed(..) => Err(borrowed()),
        }
    }

    /// Overwrites the contents with a tensor of the same shape.
    pub fn write(&mut self, dense: &Dense<T>) -> Result<()> {
        if dense.shape() != self.shape {
            return Err(Error::Shape {
                index: "write".into(),
                left: format!("the tensor is {:?}", self.shape),
                right: format!("the data {:?}", dense.shape()),
            });
        }
        self.fill(dense.values(), None)
    }

    /// Rows of `values` at the stride of this tensor; the gaps hold `gap`, or what they held.
    pub(crate) fn fill(&mut self, values: &[T], gap: Option<T>) -> Result<()> {
        let width = self.shape.last().copied().unwrap_or(1);
        if self.leading == width {
            return match &mut self.storage {
                Storage::Host(data) => {
                    data.copy_from_slice(values);
                    Ok(())
                }
                Storage::Device(memory, device) => device.write(memory, values),
                Storage::Borrowed(..) => Err(borrowed()),
            };
        }
        let mut spread = match gap {
            Some(gap) => vec![gap; storage_len(&self.shape, self.leading)?],
            None => self.to_storage()?,
        };
        for (to, from) in spread
            .chunks_mut(self.leading)
            .zip(values.chunks(width.max(1)))
        {
            to[..width].copy_from_slice(from);
        }
        match &mut self.storage {
            Storage::Host(data) => *data = spread,
            Storage::Device(memory, device) => device.write(memory, &spread)?,
            Storage::Borrowed(..) => return Err(borrowed()),
        }
        Ok(())
    }

    pub(crate) fn host(&self) -> Option<&[T]> {
        match &self.storage {
            Storage::Host(values) => Some(values),
            Storage::Device(..) | Storage::Borrowed(..) => None,
        }
    }

    pub(crate) fn host_mut(&mut self) -> Option<&mut [T]> {
        match &mut self.storage {
            Storage::Host(values) => Some(values),
            Storage::Device(..) | Storage::Borrowed(..) => None,
        }
    }

    /// The values of a sparse tensor, one axis: on a GPU where they are, on a CPU a copy. Not to outlive the tensor.
    pub(crate) fn of_values(sparse: &SparseTensor<T>) -> Result<Self> {
        let slots = sparse.pattern().slots();
        let Some(arrays) = sparse.device() else {
            let values = sparse.pattern().values().to_vec();
            return Tensor::new(None, &[slots], slots, Some(values));
        };
        let storage = Storage::Borrowed(arrays.values.address(), Arc::clone(&arrays.device));
        Ok(Tensor {
            shape: vec![slots],
            leading: slots,
            storage,
        })
    }
}

/// Of values that belong to a sparse tensor.
fn borrowed() -> Error {
    Error::Operand {
        name: "values".into(),
        reason: "belong to a sparse tensor, which reads and writes them".into(),
    }
}

impl Context {
    /// Copies a sparse tensor to the context, in the format it has. Matrices can be [converted]
    /// first.
    ///
    /// [converted]: AnySparse::convert
    pub fn upload<T: Scalar>(&self, tensor: impl Into<AnySparse<T>>) -> Result<SparseTensor<T>> {
        SparseTensor::new(self.device(), tensor.into())
    }

    /// Copies a dense tensor to the context.
    pub fn upload_dense<T: Scalar>(&self, dense: &Dense<T>) -> Result<Tensor<T>> {
        let leading = dense.shape().last().copied().unwrap_or(1);
        Tensor::new(
            self.device(),
            dense.shape(),
            leading,
            Some(dense.values().to_vec()),
        )
    }

    /// Copies a dense tensor to the context with rows `leading` elements apart; the gaps hold `gap`.
    pub fn upload_strided<T: Scalar>(
        &self,
        dense: &Dense<T>,
        leading: usize,
        gap: T,
    ) -> Result<Tensor<T>> {
        let mut tensor = Tensor::new(self.device(), dense.shape(), leading, None)?;
        tensor.fill(dense.values(), Some(gap))?;
        Ok(tensor)
    }

    /// A dense tensor of zeros in the context.
    pub fn zeros<T: Scalar>(&self, shape: &[usize]) -> Result<Tensor<T>> {
        Tensor::new(
            self.device(),
            shape,
            shape.last().copied().unwrap_or(1),
            None,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
