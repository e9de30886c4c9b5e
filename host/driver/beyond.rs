//! Driver calls that cust does not link: newer than it, or left out of it. Types follow cuda.h of CUDA 12.

#![allow(non_snake_case, clippy::too_many_arguments)]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cust::sys::{CUfunction, CUgraph, CUgraphExec, CUstream};

use super::library::call;

/// One launch attribute: an id, padding to 8 bytes, and a union of 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct LaunchAttribute {
    pub id: u32,
    pub pad: u32,
    pub value: [u32; 16],
}
const _: () = assert!(size_of::<LaunchAttribute>() == 72);

/// CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: value = x, y, z.
pub(super) const CLUSTER_DIMENSION: u32 = 4;
/// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: value = 0 or 1.
pub(super) const PROGRAMMATIC_STREAM_SERIALIZATION: u32 = 6;

/// CUlaunchConfig.
#[repr(C)]
pub(super) struct RawLaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub smem_bytes: u32,
    pub stream: CUstream,
    pub attributes: *const LaunchAttribute,
    pub attribute_count: u32,
}
const _: () = assert!(size_of::<RawLaunchConfig>() == 56);

macro_rules! beyond {
    ($($name:ident($($arg:ident: $type:ty),* $(,)?);)*) => {
        $(
            /// Forwards to the driver. The contract is the driver's.
            pub(super) unsafe fn $name($($arg: $type),*) -> u32 {
                call!($name($($arg: $type),*))
            }
        )*
    };
}

beyond! {
    cuGetErrorName(error: u32, text: *mut *const c_char);
    cuGetErrorString(error: u32, text: *mut *const c_char);
    cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int);
    cuLaunchKernelEx(config: *const RawLaunchConfig, function: CUfunction, params: *mut *mut c_void,
        extra: *mut *mut c_void);
    cuTensorMapEncodeTiled(map: *mut c_void, data_type: c_int, rank: c_uint, address: *mut c_void,
        extents: *const u64, strides: *const u64, tile: *const u32, element_strides: *const u32,
        interleave: c_int, swizzle: c_int, promotion: c_int, fill: c_int);
    cuStreamQuery(stream: CUstream);
    cuStreamBeginCapture_v2(stream: CUstream, mode: c_int);
    cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    cuStreamIsCapturing(stream: CUstream, status: *mut c_int);
    cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    cuGraphUpload(exec: CUgraphExec, stream: CUstream);
    cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
    cuGraphExecDestroy(exec: CUgraphExec);
}
