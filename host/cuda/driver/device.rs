//! Devices and their primary contexts.

use std::ffi::{c_char, c_int, c_void};

use super::sys::{self, CUdevice};
use super::{check, init};
use crate::error::{Error, Result};

/// Properties of a GPU that the cost model and `doctor` use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Ordinal among the visible devices.
    pub ordinal: u32,
    /// Marketing name.
    pub name: String,
    /// Compute capability, (major, minor).
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub sms: u32,
    /// L2 cache, bytes.
    pub l2_bytes: u64,
    /// Device memory, bytes.
    pub memory_bytes: u64,
    /// Maximum dynamic shared memory of one block after opting in, bytes.
    pub smem_per_block_optin: u32,
    /// Shared memory of one multiprocessor, bytes.
    pub smem_per_sm: u32,
    /// Registers of one multiprocessor.
    pub registers_per_sm: u32,
    /// Resident threads of one multiprocessor.
    pub threads_per_sm: u32,
    /// Peak clock, kHz (0 if the driver does not report it).
    pub clock_khz: u32,
    /// Memory clock, kHz (0 if the driver does not report it).
    pub memory_clock_khz: u32,
    /// Width of the memory bus, bits.
    pub memory_bus_bits: u32,
    /// Whether the driver supports stream-ordered allocation.
    pub memory_pools: bool,
}

impl DeviceFacts {
    /// Properties of an H200. A CPU context validates operands for the kernels of this GPU.
    pub fn h200() -> Self {
        DeviceFacts {
            ordinal: 0,
            name: "NVIDIA H200".into(),
            compute_capability: (9, 0),
            sms: 132,
            l2_bytes: 60 << 20,
            memory_bytes: 141 << 30,
            smem_per_block_optin: 227 << 10,
            smem_per_sm: 228 << 10,
            registers_per_sm: 65_536,
            threads_per_sm: 2048,
            clock_khz: 1_980_000,
            memory_clock_khz: 3_201_000,
            memory_bus_bits: 6144,
            memory_pools: true,
        }
    }
}

/// Returns the number of visible GPUs. Returns an error if no driver is installed.
pub fn device_count() -> Result<u32> {
    init()?;
    let mut count = 0;
    // SAFETY: `count` can hold one int.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    Ok(count.unsigned_abs())
}

fn device(ordinal: u32) -> Result<CUdevice> {
    let count = device_count()?;
    if ordinal >= count {
        let reason = format!("the driver sees {count} GPU(s), counted from 0");
        return Err(Error::cuda(format!("cuDeviceGet({ordinal})"), reason));
    }
    let mut device = 0;
    // SAFETY: `device` can hold one int.
    let code = unsafe { sys::cuDeviceGet(&mut device, ordinal as c_int) };
    check("cuDeviceGet", code).map(|()| device)
}

/// Returns the properties of one GPU. It requires no context.
pub fn device_facts(ordinal: u32) -> Result<DeviceFacts> {
    let device = device(ordinal)?;
    facts(ordinal, device)
}

/// Values of `CU_DEVICE_ATTRIBUTE_*`.
mod attributes {
    use std::ffi::c_int;

    pub const CLOCK_RATE: c_int = 13;
    pub const MULTIPROCESSOR_COUNT: c_int = 16;
    pub const MEMORY_CLOCK_RATE: c_int = 36;
    pub const GLOBAL_MEMORY_BUS_WIDTH: c_int = 37;
    pub const L2_CACHE_SIZE: c_int = 38;
    pub const MAX_THREADS_PER_MULTIPROCESSOR: c_int = 39;
    pub const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
    pub const COMPUTE_CAPABILITY_MINOR: c_int = 76;
    pub const MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: c_int = 81;
    pub const MAX_REGISTERS_PER_MULTIPROCESSOR: c_int = 82;
    pub const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: c_int = 97;
    pub const MEMORY_POOLS_SUPPORTED: c_int = 115;
}

fn facts(ordinal: u32, device: CUdevice) -> Result<DeviceFacts> {
    use attributes as a;
    let get = |which| attribute(device, which);
    Ok(DeviceFacts {
        ordinal,
        name: name(device)?,
        compute_capability: (get(a::COMPUTE_CAPABILITY_MAJOR)?, get(a::COMPUTE_CAPABILITY_MINOR)?),
        sms: get(a::MULTIPROCESSOR_COUNT)?,
        l2_bytes: get(a::L2_CACHE_SIZE)?.into(),
        memory_bytes: memory(device)?,
        smem_per_block_optin: get(a::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        smem_per_sm: get(a::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        registers_per_sm: get(a::MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        threads_per_sm: get(a::MAX_THREADS_PER_MULTIPROCESSOR)?,
        clock_khz: get(a::CLOCK_RATE).unwrap_or(0),
        memory_clock_khz: get(a::MEMORY_CLOCK_RATE).unwrap_or(0),
        memory_bus_bits: get(a::GLOBAL_MEMORY_BUS_WIDTH)?,
        memory_pools: get(a::MEMORY_POOLS_SUPPORTED)? != 0,
    })
}

/// Waits for all work that is queued on the current context.
pub(super) fn synchronize_current() -> Result<()> {
    // SAFETY: the call has no arguments.
    check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
}

fn attribute(device: CUdevice, which: c_int) -> Result<u32> {
    let mut value: c_int = 0;
    // SAFETY: `value` can hold one int, and the driver returned `device`.
    let code = unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) };
    check("cuDeviceGetAttribute", code)?;
    Ok(value.unsigned_abs())
}

fn memory(device: CUdevice) -> Result<u64> {
    let mut bytes = 0;
    // SAFETY: `bytes` can hold one size, and the driver returned `device`.
    let code = unsafe { sys::cuDeviceTotalMem_v2(&mut bytes, device) };
    check("cuDeviceTotalMem", code)?;
    Ok(bytes as u64)
}

fn name(device: CUdevice) -> Result<String> {
    let mut name = [0u8; 128];
    // SAFETY: the driver writes at most the given length, including the terminating NUL.
    let code = unsafe {
        sys::cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), name.len() as c_int, device)
    };
    check("cuDeviceGetName", code)?;
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

/// Primary context, retained through cust.
#[cfg(feature = "cust")]
mod retained {
    use cust::context::{Context, CurrentContext};
    use cust::device::Device;
    use std::ffi::{c_int, c_void};

    use crate::driver::refused;
    use crate::error::Result;

    #[derive(Debug)]
    pub struct Retained(Context);

    impl Retained {
        pub fn new(device: c_int) -> Result<Self> {
            let device =
                Device::get_device(device.unsigned_abs()).map_err(refused("cuDeviceGet"))?;
            let context = Context::new(device).map_err(refused("cuDevicePrimaryCtxRetain"))?;
            Ok(Self(context))
        }

        pub fn set_current(&self) -> Result<()> {
            CurrentContext::set_current(&self.0).map_err(refused("cuCtxSetCurrent"))
        }

        pub fn as_raw(&self) -> *mut c_void {
            self.0.as_raw().cast()
        }
    }
}

/// Primary context, retained without cust.
#[cfg(not(feature = "cust"))]
mod retained {
    use std::ffi::{c_int, c_void};

    use crate::driver::{check, sys};
    use crate::error::Result;

    #[derive(Debug)]
    pub struct Retained {
        device: c_int,
        handle: sys::CUcontext,
    }

    // SAFETY: the driver locks, so any thread may use a context handle.
    unsafe impl Send for Retained {}
    // SAFETY: the driver locks.
    unsafe impl Sync for Retained {}

    impl Retained {
        pub fn new(device: c_int) -> Result<Self> {
            let mut handle = std::ptr::null_mut();
            // SAFETY: `handle` can hold one context, and the driver returned `device`.
            let code = unsafe { sys::cuDevicePrimaryCtxRetain(&mut handle, device) };
            check("cuDevicePrimaryCtxRetain", code)?;
            let retained = Self { device, handle };
            retained.set_current()?;
            Ok(retained)
        }

        pub fn set_current(&self) -> Result<()> {
            // SAFETY: the context is retained.
            check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.handle) })
        }

        pub fn as_raw(&self) -> *mut c_void {
            self.handle
        }
    }

    impl Drop for Retained {
        fn drop(&mut self) {
            // SAFETY: the context was retained once and is released once.
            let code = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
            if let Err(error) = check("cuDevicePrimaryCtxRelease", code) {
                tracing::warn!(%error, "context was not released");
            }
        }
    }
}

/// Stores the current context of this thread and makes it current again when dropped. It is for callers that use
/// another GPU in between.
#[derive(Debug)]
pub struct KeptCurrent(sys::CUcontext);

impl KeptCurrent {
    /// Stores the current context of this thread.
    pub fn new() -> Result<Self> {
        init()?;
        let mut current = std::ptr::null_mut();
        // SAFETY: `current` can hold one handle.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut current) })?;
        Ok(Self(current))
    }
}

impl Drop for KeptCurrent {
    fn drop(&mut self) {
        // SAFETY: the handle is null or was current on this thread, and its owner has not released it since.
        let code = unsafe { sys::cuCtxSetCurrent(self.0) };
        if let Err(error) = check("cuCtxSetCurrent", code) {
            tracing::warn!(%error, "the context from before is not current again");
        }
    }
}

/// Retained primary context. All users of the device in this process share it (the runtime API, cuBLAS, other crates).
/// It is released when dropped.
#[derive(Debug)]
pub struct PrimaryContext {
    /// `None` if the GPU is absent.
    context: Option<retained::Retained>,
    facts: DeviceFacts,
}

impl PrimaryContext {
    /// Retains the primary context of device `ordinal` and makes it current on this thread.
    pub fn retain(ordinal: u32) -> Result<Self> {
        let device = device(ordinal)?;
        let facts = facts(ordinal, device)?;
        let context = retained::Retained::new(device).map_err(|error| match error {
            // Codes from 700 on are faults of kernels. The driver keeps reporting them.
            Error::Cuda { call, code: Some(code @ 700..800), reason } => Error::Cuda { call, code: Some(code), reason: format!(
                    "{reason}; what a kernel did wrong stays with the process, which has to be started anew"
                ),
            },
            other => other,
        })?;
        Ok(Self { context: Some(context), facts })
    }

    /// Creates the context of an absent GPU with these properties. Its memory has addresses and no bytes, and its
    /// kernels load and never run. All checks for a GPU apply.
    pub fn absent(facts: DeviceFacts) -> Self {
        Self { context: None, facts }
    }

    /// Whether the GPU is absent.
    pub fn is_absent(&self) -> bool {
        self.context.is_none()
    }

    /// Makes this context current on the calling thread. Every public function that uses the device calls it, because
    /// the driver stores the current context per thread.
    pub fn set_current(&self) -> Result<()> {
        self.context.as_ref().map_or(Ok(()), |own| own.set_current())
    }

    /// Waits for all work of the context. Errors of earlier launches are returned here.
    pub fn synchronize(&self) -> Result<()> {
        if self.is_absent() {
            return Ok(());
        }
        self.set_current()?;
        synchronize_current()
    }

    /// Returns the properties of the device, which were read once.
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// Returns the handle, a `CUcontext`, for other CUDA crates.
    pub fn as_raw(&self) -> *mut c_void {
        let own = self.context.as_ref();
        own.map_or(std::ptr::null_mut(), |own| own.as_raw())
    }
}
