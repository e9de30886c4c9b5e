//! Tensors where a context works: dense ones with a row stride, sparse ones in their format.

use std::sync::Arc;

use einsparse_formats::{AnySparse, Dense, Format, PAD, Role};

use crate::context::Context;
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::registry::Scalar;
use crate::worklist::Runs;

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
            value: shape.iter().map(|&e| e as u128).product(),
            limit: isize::MAX as u128 / 8,
        })
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
            (None, None) => Storage::Host(vec![T::ZERO; len]),
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
        let spread = if self.leading == width {
            values.to_vec()
        } else {
            let mut all = match gap {
                Some(gap) => vec![gap; storage_len(&self.shape, self.leading)?],
                None => self.to_storage()?,
            };
            for (to, from) in all
                .chunks_mut(self.leading.max(1))
                .zip(values.chunks(width.max(1)))
            {
                to[..width].copy_from_slice(from);
            }
            all
        };
        match &mut self.storage {
            Storage::Host(data) => *data = spread,
            Storage::Device(memory, device) => device.write(memory, &spread)?,
        }
        Ok(())
    }

    pub(crate) fn host(&self) -> Option<&[T]> {
        match &self.storage {
            Storage::Host(values) => Some(values),
            Storage::Device(..) => None,
        }
    }

    pub(crate) fn host_mut(&mut self) -> Option<&mut [T]> {
        match &mut self.storage {
            Storage::Host(values) => Some(values),
            Storage::Device(..) => None,
        }
    }
}

/// A sparse tensor in the memory of a [`Context`], with a copy on the host that plans read.
#[derive(Debug)]
pub struct SparseTensor<T> {
    host: Arc<AnySparse<T>>,
    runs: Option<Arc<Runs>>,
    device: Option<DeviceArrays>,
}

/// Entries that kernels load at once: both arrays are readable that far past their end.
pub(crate) const VECTOR_ENTRIES: usize = 8;

/// What kernels read of a sparse matrix.
#[derive(Debug)]
pub(crate) struct DeviceArrays {
    pub(crate) columns: DeviceMemory,
    pub(crate) values: DeviceMemory,
    device: Arc<Device>,
}

impl<T: Scalar> SparseTensor<T> {
    pub(crate) fn new(device: Option<&Arc<Device>>, tensor: AnySparse<T>) -> Result<Self> {
        let runs = Runs::of(&tensor).map(Arc::new);
        let device = match device {
            None => None,
            Some(device) => {
                let arrays = tensor.arrays();
                let columns = arrays
                    .iter()
                    .find(|a| a.role == Role::Coordinate { axis: 1 });
                let columns =
                    device.upload_padded(columns.map_or(&[PAD][..], |a| a.data), VECTOR_ENTRIES)?;
                let values = device.upload_padded(tensor.values(), VECTOR_ENTRIES)?;
                Some(DeviceArrays {
                    columns,
                    values,
                    device: Arc::clone(device),
                })
            }
        };
        Ok(SparseTensor {
            host: Arc::new(tensor),
            runs,
            device,
        })
    }

    /// The tensor on the host.
    pub fn host(&self) -> &Arc<AnySparse<T>> {
        &self.host
    }

    /// Extents.
    pub fn shape(&self) -> &[usize] {
        self.host.shape()
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.host.format()
    }

    /// New values for the same pattern: one for each slot, in the order of `host().values()`. Waits for
    /// all work on the GPU.
    pub fn set_values(&mut self, values: &[T]) -> Result<()> {
        if values.len() != self.host.slots() {
            return Err(Error::Shape {
                index: "values".into(),
                left: format!("{} values", values.len()),
                right: format!("{} slots", self.host.slots()),
            });
        }
        Arc::make_mut(&mut self.host)
            .values_mut()
            .copy_from_slice(values);
        match &self.device {
            Some(arrays) => arrays.device.write(&arrays.values, values),
            None => Ok(()),
        }
    }

    /// Device address of the values; `None` in a CPU context.
    pub fn values_address(&self) -> Option<u64> {
        self.device.as_ref().map(|d| d.values.address())
    }

    pub(crate) fn runs(&self) -> Option<&Arc<Runs>> {
        self.runs.as_ref()
    }

    pub(crate) fn device(&self) -> Option<&DeviceArrays> {
        self.device.as_ref()
    }
}

/// What an index of an expression is bound to. Made by `From` from host tensors (copied to the context),
/// tensors in the context, and numbers.
#[derive(Debug)]
pub enum Operand<'a, T: Scalar> {
    /// A sparse tensor in the context.
    Sparse(&'a SparseTensor<T>),
    /// A dense tensor in the context.
    Dense(&'a Tensor<T>),
    /// A sparse tensor on the host.
    HostSparse(AnySparse<T>),
    /// A dense tensor on the host.
    HostDense(&'a Dense<T>),
    /// An index array of a hand-written indirect Einsum: extents and indices.
    Index(&'a [usize], &'a [u32]),
    /// A number.
    Scalar(f64),
}

impl<T: Scalar> Operand<'_, T> {
    /// What this is, for messages.
    pub fn describe(&self) -> String {
        match self {
            Operand::Sparse(s) => format!("{} tensor of shape {:?}", s.format(), s.shape()),
            Operand::HostSparse(s) => format!("{} tensor of shape {:?}", s.format(), s.shape()),
            Operand::Dense(d) => format!("dense tensor of shape {:?}", d.shape()),
            Operand::HostDense(d) => format!("dense tensor of shape {:?}", d.shape()),
            Operand::Index(shape, _) => format!("index array of shape {shape:?}"),
            Operand::Scalar(x) => format!("number {x}"),
        }
    }
}

impl<'a, T: Scalar> From<&'a SparseTensor<T>> for Operand<'a, T> {
    fn from(s: &'a SparseTensor<T>) -> Self {
        Operand::Sparse(s)
    }
}

impl<'a, T: Scalar> From<&'a Tensor<T>> for Operand<'a, T> {
    fn from(d: &'a Tensor<T>) -> Self {
        Operand::Dense(d)
    }
}

impl<'a, T: Scalar> From<&'a Dense<T>> for Operand<'a, T> {
    fn from(d: &'a Dense<T>) -> Self {
        Operand::HostDense(d)
    }
}

impl<'a, T: Scalar> From<(&'a [usize], &'a [u32])> for Operand<'a, T> {
    fn from((shape, data): (&'a [usize], &'a [u32])) -> Self {
        Operand::Index(shape, data)
    }
}

impl<T: Scalar> From<f64> for Operand<'_, T> {
    fn from(x: f64) -> Self {
        Operand::Scalar(x)
    }
}

impl<T: Scalar> From<&AnySparse<T>> for Operand<'_, T> {
    fn from(s: &AnySparse<T>) -> Self {
        Operand::HostSparse(s.clone())
    }
}

macro_rules! from_formats {
    ($($format:ident)*) => {
        $(impl<T: Scalar> From<&einsparse_formats::$format<T>> for Operand<'_, T> {
            fn from(s: &einsparse_formats::$format<T>) -> Self {
                Operand::HostSparse(s.clone().into())
            }
        })*
    };
}

from_formats!(Coo Csr Csc Bsr Ell GroupCoo BlockCoo BlockGroupCoo);

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
