//! Devices and their primary contexts.

use std::ffi::{c_char, c_int};

use cust::context::{Context, CurrentContext};
use cust::device::Device;
use cust::sys::CUdevice_attribute;

use super::{check, init, raw, refused};
use crate::error::{Error, Result};

/// What the cost model and `doctor` want to know of a GPU.
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
    /// Largest dynamic shared memory of one block after opting in, bytes.
    pub smem_per_block_optin: u32,
    /// Shared memory of one multiprocessor, bytes.
    pub smem_per_sm: u32,
    /// Registers of one multiprocessor.
    pub registers_per_sm: u32,
    /// Resident threads of one multiprocessor.
    pub threads_per_sm: u32,
    /// Peak clock, kHz (0 where the driver does not say).
    pub clock_khz: u32,
    /// Memory clock, kHz (0 where the driver does not say).
    pub memory_clock_khz: u32,
    /// Width of the memory bus, bits.
    pub memory_bus_bits: u32,
    /// Whether stream-ordered allocation works.
    pub memory_pools: bool,
}

/// Number of visible GPUs. An error if there is no driver.
pub fn device_count() -> Result<u32> {
    init()?;
    let mut count = 0;
    // SAFETY: `count` is a place for one int.
    check("cuDeviceGetCount", unsafe {
        raw::cuDeviceGetCount(&mut count)
    })?;
    Ok(count.unsigned_abs())
}

fn device(ordinal: u32) -> Result<Device> {
    let count = device_count()?;
    if ordinal >= count {
        return Err(Error::Cuda {
            call: format!("cuDeviceGet({ordinal})"),
            reason: format!("the driver sees {count} GPU(s), counted from 0"),
        });
    }
    Device::get_device(ordinal).map_err(refused("cuDeviceGet"))
}

/// The facts of one GPU; needs no context.
pub fn device_facts(ordinal: u32) -> Result<DeviceFacts> {
    let device = device(ordinal)?;
    facts(ordinal, device)
}

fn facts(ordinal: u32, device: Device) -> Result<DeviceFacts> {
    use CUdevice_attribute as A;
    let get = |a: A| attribute(device, a);
    Ok(DeviceFacts {
        ordinal,
        name: name(device)?,
        compute_capability: (
            get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        sms: get(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        l2_bytes: get(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
        memory_bytes: device.total_memory().map_err(refused("cuDeviceTotalMem"))? as u64,
        smem_per_block_optin: get(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        smem_per_sm: get(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        registers_per_sm: get(A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        threads_per_sm: get(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        clock_khz: get(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE).unwrap_or(0),
        memory_clock_khz: get(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE).unwrap_or(0),
        memory_bus_bits: get(A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        memory_pools: get(A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0,
    })
}

fn attribute(device: Device, which: CUdevice_attribute) -> Result<u32> {
    let mut value: c_int = 0;
    // SAFETY: `value` is a place for one int and the device came from the driver.
    let code = unsafe { raw::cuDeviceGetAttribute(&mut value, which, device.as_raw()) };
    check("cuDeviceGetAttribute", code)?;
    Ok(value.unsigned_abs())
}

fn name(device: Device) -> Result<String> {
    let mut name = [0u8; 128];
    // SAFETY: the driver writes at most the given length, the closing NUL included.
    let code = unsafe {
        raw::cuDeviceGetName(
            name.as_mut_ptr().cast::<c_char>(),
            name.len() as c_int,
            device.as_raw(),
        )
    };
    check("cuDeviceGetName", code)?;
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

/// A retained primary context, shared with every other user of the device in this process (the runtime API,
/// cuBLAS, other crates). Released when dropped.
#[derive(Debug)]
pub struct PrimaryContext {
    context: Context,
    facts: DeviceFacts,
}

impl PrimaryContext {
    /// Retains the primary context of device `ordinal` and makes it current on this thread.
    pub fn retain(ordinal: u32) -> Result<Self> {
        let device = device(ordinal)?;
        let facts = facts(ordinal, device)?;
        let context = Context::new(device).map_err(refused("cuDevicePrimaryCtxRetain"))?;
        Ok(Self { context, facts })
    }

    /// Makes this context current on the calling thread. Every public entry that touches the device calls it:
    /// the driver keeps the current context per thread.
    pub fn set_current(&self) -> Result<()> {
        CurrentContext::set_current(&self.context).map_err(refused("cuCtxSetCurrent"))
    }

    /// Waits for all work of the context; errors of earlier launches appear here.
    pub fn synchronize(&self) -> Result<()> {
        self.set_current()?;
        CurrentContext::synchronize().map_err(refused("cuCtxSynchronize"))
    }

    /// The device's facts, read once.
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// The handle, for other CUDA crates.
    pub fn as_raw(&self) -> cust::sys::CUcontext {
        self.context.as_raw()
    }
}
