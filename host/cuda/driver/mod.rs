//! Typed interface to the CUDA driver, which is opened at run time. Every failure is an [`Error`] value.
//!
//! With the feature `cust`, that crate retains contexts, and its streams are accepted. All other calls use `sys`, with
//! and without the feature: kernel attributes, clusters, tensor maps, streams from raw handles, capture, and owned
//! memory that any thread may free.

mod device;
mod function;
mod graph;
mod library;
mod memory;
mod pinned;
mod stream;
#[cfg(all(feature = "cust", own_symbols))]
mod symbols;
mod sys;
mod tensor_map;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod trial;

use std::ffi::{CStr, c_char};
use std::ptr;

use crate::error::{Error, Result};

pub use device::{DeviceFacts, KeptCurrent, PrimaryContext, device_count, device_facts};
pub use function::{Function, FunctionFacts, LaunchConfig, LoadedModule};
pub use graph::Graph;
pub use library::open_first;
pub use memory::{ABSENT_ADDRESS, RowBytes};
pub use memory::{
    DeviceMemory, MemoryInfo, copy_dtod_async, copy_dtoh_async, copy_htod_async, mem_alloc,
    mem_alloc_async, mem_free, mem_free_async, mem_get_info, memset_2d_async, memset_d8_async,
    memset_d32_async,
};
pub use pinned::PinnedMemory;
pub use stream::{Event, OwnedStream, RawStream};
pub use tensor_map::{PixelLayout, Swizzle, TensorMap, TensorMapLayout, TensorMapType};

/// Device address, in the representation of the driver and other CUDA crates.
pub type DevicePtr = u64;

/// Checks for a driver with at least one GPU. The error states what is missing.
pub fn available() -> Result<()> {
    if device_count()? == 0 {
        return Err(Error::cuda("cuDeviceGetCount", "the driver is loaded but finds no GPU"));
    }
    Ok(())
}

/// Opens libcuda and initializes it. Later calls are cheap.
pub fn init() -> Result<()> {
    library::open()?;
    // SAFETY: cuInit has no pointer arguments; its flags must be 0.
    check("cuInit", unsafe { sys::cuInit(0) })
}

/// Returns the newest CUDA version that the driver supports, as (major, minor).
pub fn driver_version() -> Result<(u32, u32)> {
    library::open()?;
    let mut version = 0;
    // SAFETY: `version` can hold one int.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    let version = version.unsigned_abs();
    Ok((version / 1000, version % 1000 / 10))
}

/// Converts an error of `cust`: `Stream::new(..).map_err(refused("cuStreamCreate"))`.
#[cfg(feature = "cust")]
pub fn refused(call: &str) -> impl FnOnce(cust::error::CudaError) -> Error {
    move |error| failed(call, error as u32)
}

/// Error of a driver call that returned this code.
fn failed(call: &str, code: u32) -> Error {
    Error::Cuda { call: call.to_owned(), code: Some(code), reason: words(code) }
}

/// Returns an error unless the code is CUDA_SUCCESS.
fn check(call: &str, code: u32) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    Err(failed(call, code))
}

/// [`check`] for allocations. The error of CUDA_ERROR_OUT_OF_MEMORY contains the sizes.
fn check_allocation(call: &str, code: u32, wanted: usize) -> Result<()> {
    const OUT_OF_MEMORY: u32 = 2;
    if code != OUT_OF_MEMORY {
        return check(call, code);
    }
    Err(Error::OutOfMemory {
        wanted: wanted as u64,
        free: mem_get_info().map_or(0, |info| info.free),
    })
}

/// Describes a code, such as "CUDA_ERROR_INVALID_VALUE (1): invalid argument". The text is the driver's, if available.
fn words(code: u32) -> String {
    if code == library::SYMBOL_NOT_FOUND {
        return "this driver does not have the call; a newer driver does".into();
    }
    let mut name = ptr::null();
    let mut text = ptr::null();
    // SAFETY: both can hold one pointer. The driver writes pointers to its own constant strings.
    let (name, text) = unsafe {
        sys::cuGetErrorName(code, &mut name);
        sys::cuGetErrorString(code, &mut text);
        (constant(name), constant(text))
    };
    match (name, text) {
        (Some(name), Some(text)) => format!("{name} ({code}): {text}"),
        _ if code == library::NOT_INITIALIZED => {
            "the driver is not loaded or not initialised (3)".into()
        }
        _ => format!("code {code}"),
    }
}

/// # Safety
/// `text` is null or a NUL-terminated string that lives as long as the program.
unsafe fn constant(text: *const c_char) -> Option<&'static str> {
    // SAFETY: the caller guarantees the contract, and null was excluded.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })?;
    text.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes with and without a driver: no call panics, and every error has a message.
    #[test]
    fn a_machine_without_a_driver_gets_errors_with_words() {
        let Err(error) = available() else { return };
        let Error::Cuda { call, reason, .. } = &error else { panic!("{error}") };
        assert!(!call.is_empty() && !reason.is_empty(), "{error}");
        for error in [
            PrimaryContext::retain(0).map(drop),
            device_facts(0).map(drop),
            mem_alloc(16).map(drop),
            mem_get_info().map(drop),
            OwnedStream::new().map(drop),
            Event::new().map(drop),
            #[cfg(feature = "cust")]
            cust::init(cust::CudaFlags::empty()).map_err(refused("cuInit")),
        ] {
            assert!(
                matches!(&error, Err(Error::Cuda { reason, .. }) if !reason.is_empty()),
                "{error:?}"
            );
        }
    }

    #[test]
    fn an_unknown_code_keeps_its_number() {
        assert!(words(99_999).contains("99999"));
    }
}
