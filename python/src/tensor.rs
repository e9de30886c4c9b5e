//! Dense tensor of einsparse, for results that are not arrays of another library.

use std::sync::Arc;

use dlpark::ffi::{DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned};
use dlpark::metadata::Dynamic;
use dlpark::versioned::Dlpack;
use dlpark::{Managed, ManagedTensorBase};
use einsparse::{Context, Scalar};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::exchange::into_capsule;

/// Dense tensor that other libraries import by DLPack.
///
/// For example `numpy.from_dlpack(c)` or `torch.from_dlpack(c)`.
#[pyclass(frozen, module = "einsparse")]
pub struct Tensor {
    of: Arc<Dlpack>,
    context: Context,
}

impl Tensor {
    /// Creates a tensor of zeros.
    pub fn zeros<T: Scalar>(context: &Context, shape: &[usize]) -> einsparse::Result<Self> {
        Ok(Tensor {
            of: Arc::new(context.zeros::<T>(shape)?.into_dlpack()?),
            context: context.clone(),
        })
    }

    /// Creates another header for the same memory.
    fn again<M: ManagedTensorBase>(&self) -> PyResult<Managed<M>> {
        let wrong = |e: dlpark::tensor::Error| PyValueError::new_err(e.to_string());
        let view = self.of.validate().map_err(wrong)?;
        let layout = Dynamic::new(view.shape(), view.strides().unwrap_or_default());
        let prepared =
            layout.prepare_as::<M>().map_err(|e| PyValueError::new_err(e.to_string()))?;
        let mut made = prepared.initialize(Arc::clone(&self.of));
        made.set_data(view.data_ptr().cast_mut());
        made.set_device(view.device()).set_dtype(view.dtype());
        // SAFETY: the first header owns the memory, and this header keeps it alive.
        Ok(unsafe { made.finish() })
    }

    fn described(&self) -> (Vec<i64>, DLDataType, DLDevice) {
        // SAFETY: this object owns the header, and no other code changes it.
        let of = unsafe { self.of.tensor() };
        let shape = self.of.validate().map(|view| view.shape().to_vec());
        (shape.unwrap_or_default(), of.dtype, of.device)
    }
}

#[pymethods]
impl Tensor {
    /// Shape of the tensor.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.described().0)
    }

    /// Element type: `float32`, `float64`, `float16` or `bfloat16`.
    #[getter]
    fn dtype(&self) -> String {
        let dtype = self.described().1;
        match dtype.matches(DLDataType::BF16) {
            true => "bfloat16".into(),
            false => format!("float{}", dtype.bits),
        }
    }

    fn __repr__(&self) -> String {
        format!(
            "einsparse.Tensor(shape={:?}, dtype={}, on {})",
            self.described().0,
            self.dtype(),
            self.context
        )
    }

    fn __dlpack_device__(&self) -> (u32, i32) {
        self.described().2.into()
    }

    /// Exports the tensor as a DLPack capsule, versioned if `max_version` is 1.0 or newer.
    ///
    /// Waits for the GPU unless `stream` is -1.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(u32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let here = self.__dlpack_device__();
        if copy == Some(true) || dl_device.is_some_and(|wanted| wanted != here) {
            return Err(PyBufferError::new_err(format!(
                "this tensor is given without a copy, and lies on device {here:?}"
            )));
        }
        if stream != Some(-1) {
            py.detach(|| self.context.synchronize()).map_err(crate::raise)?;
        }
        match max_version {
            Some((1.., _)) => into_capsule::<DLManagedTensorVersioned>(py, self.again()?),
            _ => into_capsule::<DLManagedTensor>(py, self.again()?),
        }
    }
}
