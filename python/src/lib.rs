//! Native module of the Python package `einsparse`: plans on data of NumPy, SciPy and PyTorch, exchanged by DLPack.
//! It links no Python library, and imports one only if an operand belongs to that library.

mod exchange;
mod plan;
mod sparse;
mod tensor;
mod typed;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use einsparse::driver::KeptCurrent;
use einsparse::{Context, Error};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

#[pymodule]
fn _einsparse(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<plan::Plan>()?;
    module.add_class::<sparse::Sparse>()?;
    module.add_class::<tensor::Tensor>()
}

/// Converts an error of the library to a Python exception with the same text. Errors of operands and expressions are a
/// `ValueError`; errors of files are the subclass of `OSError` for their kind, such as `FileNotFoundError`.
fn raise(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Cuda { .. } | Error::Rank { .. } => PyRuntimeError::new_err(text),
        Error::OutOfMemory { .. } => PyMemoryError::new_err(text),
        Error::Io { kind, .. } => std::io::Error::new(kind, text).into(),
        _ => PyValueError::new_err(text),
    }
}

/// Returns the context of this GPU, or of the CPU. A GPU is opened at its first use and stays open.
fn context(gpu: Option<u32>) -> PyResult<Context> {
    static OPEN: Mutex<BTreeMap<u32, Context>> = Mutex::new(BTreeMap::new());
    let Some(ordinal) = gpu else {
        return Ok(Context::cpu());
    };
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(context) = open.get(&ordinal) {
        return Ok(context.clone());
    }
    let _kept = KeptCurrent::new().map_err(raise)?;
    let context = Context::cuda(ordinal).map_err(raise)?;
    open.insert(ordinal, context.clone());
    Ok(context)
}

/// Runs `$body` with `$T` as the element type of this DLPack type. Otherwise the error names the operand and its type.
macro_rules! with_element {
    ($dtype:expr, $name:expr, $T:ident => $body:expr) => {{
        let dtype: dlpark::ffi::DLDataType = $dtype;
        if dtype.is::<f32>() {
            type $T = f32;
            $body
        } else if dtype.is::<f64>() {
            type $T = f64;
            $body
        } else if dtype.matches(dlpark::ffi::DLDataType::F16) {
            type $T = half::f16;
            $body
        } else if dtype.matches(dlpark::ffi::DLDataType::BF16) {
            type $T = half::bf16;
            $body
        } else {
            Err($crate::unknown_type($name, dtype))
        }
    }};
}

use with_element;

fn unknown_type(name: &str, dtype: dlpark::ffi::DLDataType) -> PyErr {
    PyValueError::new_err(format!(
        "operand `{name}`: has elements of {}; accepted are float32, float64, float16 and bfloat16",
        exchange::type_name(dtype)
    ))
}
