//! Driver library libcuda.so.1. It is opened once at run time and never closed. Each symbol is looked up once.
//!
//! No part of the driver is linked, so one binary starts on machines with and without a driver.

use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::error::{Error, Result};

/// Value of CUDA_ERROR_NOT_INITIALIZED: the result of every call if no driver is installed.
pub(super) const NOT_INITIALIZED: u32 = 3;
/// Value of CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND: the driver is older than the call.
pub(super) const SYMBOL_NOT_FOUND: u32 = 302;

const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Returns the driver library, or the reason why it could not be opened.
fn library() -> &'static Result<Library, String> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: libcuda runs only its own initializers, which have no preconditions. The handle is in a static, so no
        // symbol outlives it.
        unsafe { open_first(&NAMES) }
    })
}

/// Opens the first of these libraries that can be opened. Otherwise it returns the error of the first name.
///
/// # Safety
/// The initializers of the libraries have no preconditions.
pub unsafe fn open_first(names: &[&str]) -> Result<Library, String> {
    let mut first = None;
    for name in names {
        // SAFETY: guaranteed by the caller.
        match unsafe { Library::open(Some(*name), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => return Ok(library),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.map_or_else(String::new, |e| e.to_string()))
}

/// Opens the library. The error contains the message of the loader.
pub(super) fn open() -> Result<()> {
    match library() {
        Ok(_) => Ok(()),
        Err(reason) => {
            let reason = format!("the NVIDIA driver is not installed or not found: {reason}");
            Err(Error::cuda("open libcuda.so.1", reason))
        }
    }
}

/// Driver symbol, resolved at its first call.
pub(super) struct Symbol {
    /// Name with its terminating NUL, so that the lookup copies nothing.
    name: &'static str,
    address: OnceLock<Result<usize, u32>>,
}

impl Symbol {
    pub(super) const fn new(name: &'static str) -> Self {
        Self { name, address: OnceLock::new() }
    }

    /// Returns the address, or the CUDA code for the missing symbol.
    pub(super) fn address(&self) -> Result<usize, u32> {
        *self.address.get_or_init(|| {
            let library = library().as_ref().map_err(|_| NOT_INITIALIZED)?;
            // SAFETY: only the address is used here. The caller gives it the type from the driver's header.
            let symbol = unsafe { library.get::<*const ()>(self.name.as_bytes()) };
            symbol.map(|s| s.into_raw() as usize).map_err(|_| SYMBOL_NOT_FOUND)
        })
    }
}

/// Calls the driver's `$name`. It returns u32 and not an enum, because a newer driver may return a newer code.
macro_rules! call {
    ($name:ident($($arg:ident: $type:ty),* $(,)?)) => {{
        static SYMBOL: $crate::driver::library::Symbol =
            $crate::driver::library::Symbol::new(concat!(stringify!($name), "\0"));
        match SYMBOL.address() {
            Ok(address) => {
                // SAFETY: the address is that of the driver's `$name`, which has this type in the driver's header.
                let function = unsafe {
                    std::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> u32>(address)
                };
                // SAFETY: the caller guarantees the contract of the driver.
                unsafe { function($($arg),*) }
            }
            Err(code) => code,
        }
    }};
}
pub(super) use call;
