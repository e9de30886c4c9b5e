//! DLPack exchange between Python objects: capsules, and the stream on which both sides order their work.

use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::ptr::NonNull;

use dlpark::ffi::{
    DLDataType, DLDataTypeCode, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned,
};
use dlpark::{DlpackFlags, Managed, ManagedTensorBase, TensorRef};
use einsparse::{Context, Scalar, Stream, Tensor};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyDict};
use pyo3::{ffi, intern};

/// DLPack header type, and the names of its capsules before and after they are consumed.
pub trait Header: ManagedTensorBase + 'static {
    const NAME: &'static CStr;
    const USED: &'static CStr;
}

impl Header for DLManagedTensor {
    const NAME: &'static CStr = c"dltensor";
    const USED: &'static CStr = c"used_dltensor";
}

impl Header for DLManagedTensorVersioned {
    const NAME: &'static CStr = c"dltensor_versioned";
    const USED: &'static CStr = c"used_dltensor_versioned";
}

/// Tensor of another library.
pub enum Foreign {
    Legacy(Managed<DLManagedTensor>),
    Versioned(Managed<DLManagedTensorVersioned>),
}

/// CUDA stream on which work is queued: its handle, and the `stream` arguments for PyTorch and for other producers.
#[derive(Clone, Copy)]
pub struct Order {
    handle: usize,
    gpu: u32,
    torch: i64,
    others: i64,
}

/// Tells producers not to synchronize: their work is in order already.
const NO_WAIT: i64 = -1;

impl Order {
    /// Order for tensors that the call neither reads nor writes.
    pub const NONE: Order = Order { handle: 0, gpu: 0, torch: NO_WAIT, others: NO_WAIT };

    fn new(handle: usize, gpu: u32) -> PyResult<Order> {
        // The protocol uses 1 for the default stream, whose handle is 0.
        let told = i64::try_from(handle.max(1));
        let told =
            told.map_err(|_| PyValueError::new_err(format!("no stream has the handle {handle}")))?;
        Ok(Order { handle, gpu, torch: told, others: told })
    }

    /// Returns the stream, which is valid as long as its creator keeps it.
    pub fn stream(self) -> Stream {
        // SAFETY: it belongs to the primary context, as in all Python libraries, and the Python caller keeps it alive.
        unsafe { Stream::from_raw(self.handle as *mut c_void) }
    }

    /// Returns the order of `given` (a number, or a stream of PyTorch or CuPy). Without it, uses the current stream of
    /// PyTorch or CuPy if `like` is their tensor, otherwise the default stream.
    pub fn of(
        given: Option<&Bound<'_, PyAny>>,
        like: Option<&Bound<'_, PyAny>>,
        gpu: u32,
    ) -> PyResult<Order> {
        if let Some(stream) = given {
            let handle = match stream.extract::<usize>() {
                Ok(handle) => handle,
                Err(_) => match stream.getattr("cuda_stream") {
                    Ok(handle) => handle.extract()?,
                    Err(_) => stream.getattr("ptr")?.extract()?,
                },
            };
            return Order::new(handle, gpu);
        }
        match like {
            Some(like) if is_of(like, "torch")? => {
                static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
                let py = like.py();
                // The creator of the tensor has already imported `torch`.
                let current = CURRENT.import(py, "torch.cuda", "current_stream")?;
                let stream = current.call1((gpu,))?;
                let handle = stream.getattr(intern!(py, "cuda_stream"))?.extract()?;
                let torch = NO_WAIT;
                Order::new(handle, gpu).map(|order| Order { torch, ..order })
            }
            Some(like) if is_of(like, "cupy")? => {
                static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
                let current = CURRENT.import(like.py(), "cupy.cuda", "get_current_stream")?;
                Order::new(current.call0()?.getattr("ptr")?.extract()?, gpu)
            }
            _ => Order::new(0, gpu),
        }
    }
}

/// Keeps the memory of a PyTorch tensor until the work on an explicit stream is done. Otherwise PyTorch may reuse the
/// memory in the order of its current stream.
pub fn hold(object: &Bound<'_, PyAny>, order: Option<Order>) -> PyResult<()> {
    let Some(Order { handle, gpu, torch, .. }) = order else {
        return Ok(());
    };
    if torch == NO_WAIT || !is_of(object, "torch")? {
        return Ok(());
    }
    let cuda = object.py().import("torch.cuda")?;
    let stream = match handle {
        0 => cuda.call_method1("default_stream", (gpu,))?,
        _ => cuda.call_method1("ExternalStream", (handle, gpu))?,
    };
    object.call_method1("record_stream", (stream,)).map(drop)
}

/// Whether the type of an object, or one of its base types, is defined in this package.
pub fn is_of(object: &Bound<'_, PyAny>, package: &str) -> PyResult<bool> {
    for of in object.get_type().mro() {
        let of = of.getattr(intern!(object.py(), "__module__"))?;
        let of = of.extract::<&str>();
        if of.is_ok_and(|of| of.split('.').next() == Some(package)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Rejects operands that require a gradient, because this package computes none.
pub fn without_gradient(object: &Bound<'_, PyAny>, name: &str) -> PyResult<()> {
    let asked = object.getattr_opt(intern!(object.py(), "requires_grad"))?;
    match asked.map(|asked| asked.is_truthy()).transpose()? {
        Some(true) => Err(PyValueError::new_err(format!(
            "operand `{name}`: requires a gradient, and this package computes none: give `{name}.detach()`"
        ))),
        _ => Ok(()),
    }
}

/// Name of an element type as in NumPy and PyTorch.
pub fn type_name(dtype: DLDataType) -> String {
    let bits = dtype.bits;
    let name = match dtype.code {
        DLDataTypeCode::INT => format!("int{bits}"),
        DLDataTypeCode::UINT => format!("uint{bits}"),
        DLDataTypeCode::FLOAT => format!("float{bits}"),
        DLDataTypeCode::BFLOAT => format!("bfloat{bits}"),
        DLDataTypeCode::COMPLEX => format!("complex{bits}"),
        DLDataTypeCode::BOOL => "bool".into(),
        DLDataTypeCode::FLOAT8_E4M3FN => "float8_e4m3fn".into(),
        DLDataTypeCode::FLOAT8_E5M2 => "float8_e5m2".into(),
        DLDataTypeCode(code) => format!("{bits} bits (DLPack's type {code})"),
    };
    match dtype.lanes {
        1 => name,
        lanes => format!("{lanes} lanes of {name}"),
    }
}

/// Returns the index of the GPU that stores an operand, or `None` if it is in host memory.
pub fn gpu_of(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<u32>> {
    let py = object.py();
    let (kind, id): (u32, u32) =
        object.call_method0(intern!(py, "__dlpack_device__"))?.extract()?;
    match DLDeviceType(kind) {
        DLDeviceType::CPU | DLDeviceType::CUDAHOST => Ok(None),
        DLDeviceType::CUDA | DLDeviceType::CUDAMANAGED => Ok(Some(id)),
        _ => Err(PyValueError::new_err(format!(
            "operand `{name}`: is on device {id} of DLPack's type {kind}; accepted are the host and CUDA GPUs"
        ))),
    }
}

/// Returns the array in host memory, copied if it is on a GPU.
fn on_host<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    match gpu_of(object, name)? {
        None => Ok(object.clone()),
        Some(_) if object.hasattr("cpu")? => object.call_method0("cpu"),
        Some(_) => object.call_method0("get"),
    }
}

/// Imports an object with `__dlpack__` without a copy. The producer orders its work before that of the stream.
pub fn take(object: &Bound<'_, PyAny>, name: &str, order: Option<Order>) -> PyResult<Foreign> {
    without_gradient(object, name)?;
    let py = object.py();
    let method = object.getattr(intern!(py, "__dlpack__"))?;
    let arguments = PyDict::new(py);
    if let Some(Order { torch, others, .. }) = order {
        let told = if is_of(object, "torch")? { torch } else { others };
        arguments.set_item(intern!(py, "stream"), told)?;
    }
    arguments.set_item(intern!(py, "max_version"), (1, 0))?;
    let made = match method.call((), Some(&arguments)) {
        // Libraries older than DLPack 1.0 do not accept `max_version`.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            arguments.del_item(intern!(py, "max_version"))?;
            method.call((), Some(&arguments))?
        }
        made => made?,
    };
    let capsule = made.cast::<PyCapsule>()?;
    match capsule.is_valid_checked(Some(DLManagedTensorVersioned::NAME)) {
        true => out_of(capsule).map(Foreign::Versioned),
        false => out_of(capsule).map(Foreign::Legacy),
    }
}

fn out_of<M: Header>(capsule: &Bound<'_, PyCapsule>) -> PyResult<Managed<M>> {
    let pointer = capsule.pointer_checked(Some(M::NAME))?;
    // SAFETY: it is a capsule, and the name is static.
    if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), M::USED.as_ptr()) } != 0 {
        return Err(PyErr::fetch(capsule.py()));
    }
    // SAFETY: a capsule of this name contains such a header, and the new name transfers ownership to this module.
    let managed = unsafe { Managed::from_raw(pointer.as_ptr().cast()) };
    managed.map_err(|e| PyValueError::new_err(e.to_string()))
}

/// Wraps a tensor in a capsule for a consumer.
pub fn into_capsule<M: Header>(
    py: Python<'_>,
    tensor: Managed<M>,
) -> PyResult<Bound<'_, PyCapsule>> {
    unsafe extern "C" fn drop_untaken<M: Header>(capsule: *mut ffi::PyObject) {
        // SAFETY: Python calls it with a capsule created below; consumed capsules have another name.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) != 0 {
                let pointer = ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr());
                M::drop_raw(pointer.cast());
            }
        }
    }
    let pointer = NonNull::new(tensor.into_raw().cast::<c_void>());
    let pointer = pointer.ok_or_else(|| PyValueError::new_err("no tensor"))?;
    // SAFETY: the header lives until its deleter is called, which any thread may do.
    unsafe {
        PyCapsule::new_with_pointer_and_destructor(py, pointer, M::NAME, Some(drop_untaken::<M>))
    }
}

impl Foreign {
    fn view(&self) -> PyResult<TensorRef<'_>> {
        let view = match self {
            Foreign::Legacy(tensor) => tensor.validate(),
            Foreign::Versioned(tensor) => tensor.validate(),
        };
        view.map_err(|e| PyValueError::new_err(e.to_string()))
    }

    pub fn dtype(&self) -> PyResult<DLDataType> {
        Ok(self.view()?.dtype())
    }

    pub fn is_read_only(&self) -> bool {
        match self {
            Foreign::Legacy(_) => false,
            Foreign::Versioned(tensor) => tensor.flags().contains(DlpackFlags::READ_ONLY),
        }
    }

    /// Address range from the first byte to the end of the last element.
    pub fn range(&self) -> PyResult<Range<u64>> {
        let view = self.view()?;
        let strides =
            view.strides_or_compact().map_err(|e| PyValueError::new_err(e.to_string()))?;
        let start = (view.data_ptr() as u64).saturating_add(view.byte_offset());
        if view.num_elements() == 0 {
            return Ok(start..start);
        }
        let steps = view.shape().iter().zip(strides.iter());
        let last: i64 = steps.map(|(extent, stride)| (extent - 1).saturating_mul(*stride)).sum();
        let size = view.dtype().element_size() as u64;
        Ok(start..start.saturating_add((last.max(0) as u64 + 1).saturating_mul(size)))
    }

    /// Returns the tensor in the context, without a copy.
    ///
    /// # Safety
    /// The requirements of [`Tensor::from_dlpack`] apply.
    pub unsafe fn into_tensor<T: Scalar>(
        self,
        context: &Context,
        name: &str,
    ) -> PyResult<Tensor<T>> {
        // SAFETY: guaranteed by the caller.
        let tensor = unsafe {
            match self {
                Foreign::Legacy(tensor) => Tensor::from_dlpack(context, tensor),
                Foreign::Versioned(tensor) => Tensor::from_dlpack(context, tensor),
            }
        };
        tensor.map_err(|error| crate::raise(error.with_name(name)))
    }
}

/// Copies the values of an array to the host, in row-major order.
pub fn values<T: Scalar>(array: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<T>> {
    let foreign = take(&on_host(array, name)?, name, None)?;
    // SAFETY: the array lives for this call, which only reads it; no other code writes it meanwhile.
    let tensor = unsafe { foreign.into_tensor::<T>(&Context::cpu(), name)? };
    Ok(tensor.to_dense().map_err(crate::raise)?.into_values())
}

/// Returns the element type of an array.
pub fn type_of(array: &Bound<'_, PyAny>, name: &str) -> PyResult<DLDataType> {
    take(&on_host(array, name)?, name, None)?.dtype()
}

/// Returns extents and elements of an index array. `what` describes the array in errors.
pub fn indices(
    array: &Bound<'_, PyAny>,
    (name, what): (&str, &str),
) -> PyResult<(Vec<usize>, Vec<u32>)> {
    let foreign = take(&on_host(array, name)?, name, None)?;
    let view = foreign.view()?;
    let shape = view.shape().iter().map(|&extent| extent as usize).collect();
    let wrong = |reason| PyValueError::new_err(format!("operand `{name}`: {what} {reason}"));
    macro_rules! of {
        ($($I:ty),*) => {
            $(if view.dtype().is::<$I>() {
                // SAFETY: the array lives for this call, which only reads it.
                let all = unsafe { view.cpu_slice::<$I>() };
                let all = all.map_err(|e| wrong(format!("cannot be read, {e}: give a contiguous copy")))?;
                return match narrow(all) {
                    Ok(found) => Ok((shape, found)),
                    Err((at, value)) => Err(wrong(format!(
                        "[{at}] = {value}, and an index is at least 0 and below {}",
                        u32::MAX
                    ))),
                };
            })*
        };
    }
    of!(i32, i64, u32, u64, i16, u16, i8, u8);
    Err(wrong(format!(
        "of {}; accepted are integers, such as int32 and int64",
        type_name(view.dtype())
    )))
}

fn narrow<I: Copy + Into<i128>>(all: &[I]) -> Result<Vec<u32>, (usize, i128)> {
    let one = |(at, &value): (usize, &I)| {
        let value = value.into();
        u32::try_from(value).map_err(|_| (at, value))
    };
    all.iter().enumerate().map(one).collect()
}
