//! Driver types, and the driver calls that this library uses, as declared in cuda.h of CUDA 12.

#![allow(non_snake_case, clippy::too_many_arguments)]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

use super::library::call;

pub(super) type CUdevice = c_int;
pub(super) type CUdeviceptr = u64;
pub(super) type CUcontext = *mut c_void;
pub(super) type CUevent = *mut c_void;
pub(super) type CUfunction = *mut c_void;
pub(super) type CUgraph = *mut c_void;
pub(super) type CUgraphExec = *mut c_void;
pub(super) type CUmodule = *mut c_void;
pub(super) type CUstream = *mut c_void;

/// Launch attribute: an id, padding to 8 bytes, and a union of 64 bytes.
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

/// Matches `CUlaunchConfig`.
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

/// Values of CU_MEMORYTYPE_HOST and CU_MEMORYTYPE_DEVICE.
pub(super) const MEMORY_HOST: u32 = 1;
pub(super) const MEMORY_DEVICE: u32 = 2;

/// Source or destination of a CUDA_MEMCPY2D: an address in host or device memory, and a row stride in bytes.
#[repr(C)]
pub(super) struct RowsPlace {
    pub x_in_bytes: usize,
    pub y: usize,
    pub memory_type: u32,
    pub host: *mut c_void,
    pub device: CUdeviceptr,
    pub array: *mut c_void,
    pub pitch: usize,
}

/// Matches `CUDA_MEMCPY2D`.
#[repr(C)]
pub(super) struct RowsCopy {
    pub source: RowsPlace,
    pub target: RowsPlace,
    pub width_in_bytes: usize,
    pub height: usize,
}
const _: () = assert!(size_of::<RowsCopy>() == 128);

macro_rules! calls {
    ($($name:ident($($arg:ident: $type:ty),* $(,)?);)*) => {
        $(
            /// Forwards to the driver. The contract is that of the driver.
            #[inline]
            pub(super) unsafe fn $name($($arg: $type),*) -> u32 {
                call!($name($($arg: $type),*))
            }
        )*
    };
}

calls! {
    cuCtxGetCurrent(ctx: *mut CUcontext);
    cuCtxSetCurrent(ctx: CUcontext);
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetAttribute(pi: *mut c_int, attrib: c_int, dev: CUdevice);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice);
    cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice);
    cuDriverGetVersion(driver_version: *mut c_int);
    cuEventCreate(ph_event: *mut CUevent, flags: c_uint);
    cuEventDestroy_v2(h_event: CUevent);
    cuEventElapsedTime(p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent);
    cuEventRecord(h_event: CUevent, h_stream: CUstream);
    cuEventSynchronize(h_event: CUevent);
    cuFuncGetAttribute(pi: *mut c_int, attrib: c_int, hfunc: CUfunction);
    cuGraphDestroy(h_graph: CUgraph);
    cuInit(flags: c_uint);
    cuLaunchKernel(f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint,
        block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint,
        h_stream: CUstream, kernel_params: *mut *mut c_void, extra: *mut *mut c_void);
    cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, h_stream: CUstream);
    cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize);
    cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize);
    cuMemFreeAsync(dptr: CUdeviceptr, h_stream: CUstream);
    cuMemFreeHost(p: *mut c_void);
    cuMemFree_v2(dptr: CUdeviceptr);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemcpy2DAsync_v2(copy: *const RowsCopy, h_stream: CUstream);
    cuMemcpyDtoDAsync_v2(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize,
        h_stream: CUstream);
    cuMemcpyDtoHAsync_v2(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize,
        h_stream: CUstream);
    cuMemcpyHtoDAsync_v2(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize,
        h_stream: CUstream);
    cuMemsetD2D8Async(dst_device: CUdeviceptr, dst_pitch: usize, uc: c_uchar, width: usize, height: usize,
        h_stream: CUstream);
    cuMemsetD32Async(dst_device: CUdeviceptr, ui: c_uint, n: usize, h_stream: CUstream);
    cuMemsetD8Async(dst_device: CUdeviceptr, uc: c_uchar, n: usize, h_stream: CUstream);
    cuModuleGetFunction(hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char);
    cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, num_options: c_uint,
        options: *mut c_int, option_values: *mut *mut c_void);
    cuModuleUnload(hmod: CUmodule);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(num_blocks: *mut c_int, func: CUfunction,
        block_size: c_int, dynamic_smem_size: usize);
    cuStreamCreateWithPriority(ph_stream: *mut CUstream, flags: c_uint, priority: c_int);
    cuStreamDestroy_v2(h_stream: CUstream);
    cuStreamGetCtx(h_stream: CUstream, ctx: *mut CUcontext);
    cuStreamSynchronize(h_stream: CUstream);
    cuStreamWaitEvent(h_stream: CUstream, h_event: CUevent, flags: c_uint);
    cuGetErrorName(error: u32, text: *mut *const c_char);
    cuGetErrorString(error: u32, text: *mut *const c_char);
    cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int);
    cuLaunchKernelEx(config: *const RawLaunchConfig, function: CUfunction, params: *mut *mut c_void,
        extra: *mut *mut c_void);
    cuTensorMapEncodeTiled(map: *mut c_void, data_type: c_int, rank: c_uint, address: *mut c_void,
        extents: *const u64, strides: *const u64, tile: *const u32, element_strides: *const u32,
        interleave: c_int, swizzle: c_int, promotion: c_int, fill: c_int);
    cuTensorMapEncodeIm2col(map: *mut c_void, data_type: c_int, rank: c_uint, address: *mut c_void,
        extents: *const u64, strides: *const u64, lower: *const c_int, upper: *const c_int, channels: c_uint,
        pixels: c_uint, element_strides: *const u32, interleave: c_int, swizzle: c_int, promotion: c_int, fill: c_int);
    cuCtxSynchronize();
    cuEventQuery(event: CUevent);
    cuStreamQuery(stream: CUstream);
    cuStreamBeginCapture_v2(stream: CUstream, mode: c_int);
    cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    cuStreamIsCapturing(stream: CUstream, status: *mut c_int);
    cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    cuGraphUpload(exec: CUgraphExec, stream: CUstream);
    cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
    cuGraphExecDestroy(exec: CUgraphExec);
}

// Calls that the feature `cust` makes through cust instead.
#[cfg(not(feature = "cust"))]
calls! {
    cuDevicePrimaryCtxRelease_v2(dev: CUdevice);
    cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice);
}
