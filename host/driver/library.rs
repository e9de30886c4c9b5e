//! libcuda.so.1, opened once at run time and never closed, and its symbols, looked up once each.
//!
//! Nothing of the driver is linked, so one binary starts on machines with and without it.

use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::error::{Error, Result};

/// CUDA_ERROR_NOT_INITIALIZED: what every call answers while there is no driver.
pub(super) const NOT_INITIALIZED: u32 = 3;
/// CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND: the driver is older than the call.
pub(super) const SYMBOL_NOT_FOUND: u32 = 302;

const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// The driver library, or why it could not be opened.
fn library() -> &'static Result<Library, String> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: opening libcuda runs only its own initialisers, which ask nothing of the caller; the handle lives in a
        // static, so no symbol outlives it.
        unsafe { open_first(&NAMES) }
    })
}

/// The first library of these names that can be opened, or why the first of them cannot.
///
/// # Safety
/// Their initialisers ask nothing of the caller.
pub(crate) unsafe fn open_first(names: &[&str]) -> Result<Library, String> {
    let mut first = None;
    for name in names {
        // SAFETY: the caller's promise.
        match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => return Ok(library),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.map_or_else(String::new, |e| e.to_string()))
}

/// Opens the library; the error holds the loader's words.
pub(super) fn open() -> Result<()> {
    match library() {
        Ok(_) => Ok(()),
        Err(reason) => Err(Error::Cuda {
            call: "open libcuda.so.1".into(),
            reason: format!("the NVIDIA driver is not installed or not found: {reason}"),
        }),
    }
}

/// One driver symbol, resolved at its first call.
pub(super) struct Symbol {
    /// With its closing NUL, so that the lookup copies nothing.
    name: &'static str,
    address: OnceLock<Result<usize, u32>>,
}

impl Symbol {
    pub(super) const fn new(name: &'static str) -> Self {
        Self { name, address: OnceLock::new() }
    }

    /// The address, or the CUDA code that stands for its absence.
    pub(super) fn address(&self) -> Result<usize, u32> {
        *self.address.get_or_init(|| {
            let library = library().as_ref().map_err(|_| NOT_INITIALIZED)?;
            // SAFETY: only the address is taken here; the caller gives it its type from the driver's header.
            let symbol = unsafe { library.get::<*const ()>(self.name.as_bytes()) };
            symbol.map(|s| s.into_raw() as usize).map_err(|_| SYMBOL_NOT_FOUND)
        })
    }
}

/// Calls the driver's `$name`; u32 instead of an enum, because a newer driver may answer with a newer code.
macro_rules! call {
    ($name:ident($($arg:ident: $type:ty),* $(,)?)) => {{
        static SYMBOL: $crate::driver::library::Symbol =
            $crate::driver::library::Symbol::new(concat!(stringify!($name), "\0"));
        match SYMBOL.address() {
            Ok(address) => {
                // SAFETY: the address is that of the driver's `$name`, whose header gives it this type.
                let function = unsafe {
                    std::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> u32>(address)
                };
                // SAFETY: the caller keeps the driver's contract.
                unsafe { function($($arg),*) }
            }
            Err(code) => code,
        }
    }};
}
pub(super) use call;
