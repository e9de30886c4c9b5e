//! Definitions of the `cu*` symbols that `cust` refers to. They forward to the library opened at run time. They are
//! used where cust links no libcuda (DOCS_RS is set).
//!
//! Each symbol has a typed forwarder and an assembly label with the C name, which is one jump. The compiler compares
//! the forwarder with cust's own declaration. The label is hidden, so a cdylib that links this crate does not export
//! `cuInit` (a `no_mangle` function would be exported). The label is also weak, so another crate may define it too.

#![allow(non_snake_case, clippy::too_many_arguments)]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ushort, c_void};

use cust::sys::*;

/// Whether this version of cust's `CUresult` has a variant for the code.
pub(super) const fn known(code: u32) -> bool {
    matches!(
        code,
        0..=8 | 34 | 100..=102 | 200..=202 | 205..=224 | 300..=304 | 400 | 401 | 500 | 600 | 700..=705
            | 708..=720 | 800..=809 | 900..=911 | 999
    )
}

/// Converts a code of the driver, which may be newer than cust's enum: an unknown code must not become an enum value.
fn result(code: u32) -> CUresult {
    if !known(code) {
        return CUresult::CUDA_ERROR_UNKNOWN;
    }
    // SAFETY: `known` accepts exactly the discriminants of the enum (tested below).
    unsafe { std::mem::transmute::<u32, CUresult>(code) }
}

/// Gives a Rust function the C name `$name` for the linker only.
macro_rules! label {
    ($name:ident) => {
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        label!($name, "@function", "jmp {target}");
        #[cfg(all(target_os = "linux", target_arch = "aarch64"))]
        label!($name, "%function", "b {target}");
    };
    ($name:ident, $kind:literal, $jump:literal) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.", stringify!($name), ",\"ax\",", "@progbits"),
            concat!(".weak ", stringify!($name)),
            concat!(".hidden ", stringify!($name)),
            concat!(".type ", stringify!($name), ",", $kind),
            concat!(stringify!($name), ":"),
            $jump,
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            ".popsection",
            target = sym forward::$name,
        );
    };
}

/// Expands a list of signatures to `forward::cuXxx(..) -> CUresult`, the label for cust, and a compile-time check that
/// both declarations have the same type.
macro_rules! linked {
    ($($name:ident($($arg:ident: $type:ty),* $(,)?);)*) => {
        mod forward {
            use super::*;
            $(
                pub unsafe extern "C" fn $name($($arg: $type),*) -> CUresult {
                    result(crate::driver::library::call!($name($($arg: $type),*)))
                }
            )*
            pub unsafe extern "C" fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> CUresult {
                // SAFETY: the caller passes a pointer valid for a write of one pointer, as the driver requires.
                unsafe { error_string(error as u32, text) };
                CUresult::CUDA_SUCCESS
            }
        }
        $(
            label!($name);
            const _: unsafe extern "C" fn($($type),*) -> CUresult = forward::$name;
            const _: unsafe extern "C" fn($($type),*) -> CUresult = cust::sys::$name;
        )*
    };
}

/// Looks up the text of a code. It never fails, because cust's `Display` panics in `to_string` if this call fails.
unsafe fn error_string(code: u32, text: *mut *const c_char) {
    // SAFETY: the caller passes a pointer valid for a write of one pointer.
    if unsafe { super::sys::cuGetErrorString(code, text) } != 0 {
        let name = c"no description: the NVIDIA driver is missing or does not know this code";
        // SAFETY: the caller passes a pointer valid for a write of one pointer.
        unsafe { *text = name.as_ptr() };
    }
}

label!(cuGetErrorString);
const _: unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult =
    cust::sys::cuGetErrorString;

unsafe extern "C" {
    #[link_name = "cuInit"]
    safe fn linked_cu_init(flags: c_uint);
}

/// Linkers that read archives once, in order, see this crate's archive before cust's. This reference links the labels.
#[used]
static LABELS: extern "C" fn(c_uint) = linked_cu_init;

linked! {
    cuArray3DCreate_v2(pHandle: *mut CUarray, pAllocateArray: *const CUDA_ARRAY3D_DESCRIPTOR);
    cuArray3DGetDescriptor_v2(pArrayDescriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, hArray: CUarray);
    cuArrayDestroy(hArray: CUarray);
    cuCtxCreate_v2(pctx: *mut CUcontext, flags: c_uint, dev: CUdevice);
    cuCtxDestroy_v2(ctx: CUcontext);
    cuCtxGetApiVersion(ctx: CUcontext, version: *mut c_uint);
    cuCtxGetCacheConfig(pconfig: *mut CUfunc_cache);
    cuCtxGetCurrent(pctx: *mut CUcontext);
    cuCtxGetDevice(device: *mut CUdevice);
    cuCtxGetFlags(flags: *mut c_uint);
    cuCtxGetLimit(pvalue: *mut usize, limit: CUlimit);
    cuCtxGetSharedMemConfig(pConfig: *mut CUsharedconfig);
    cuCtxGetStreamPriorityRange(leastPriority: *mut c_int, greatestPriority: *mut c_int);
    cuCtxPopCurrent_v2(pctx: *mut CUcontext);
    cuCtxPushCurrent_v2(ctx: CUcontext);
    cuCtxSetCacheConfig(config: CUfunc_cache);
    cuCtxSetCurrent(ctx: CUcontext);
    cuCtxSetLimit(limit: CUlimit, value: usize);
    cuCtxSetSharedMemConfig(config: CUsharedconfig);
    cuCtxSynchronize();
    cuDestroyExternalMemory(extMem: CUexternalMemory);
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetAttribute(pi: *mut c_int, attrib: CUdevice_attribute, dev: CUdevice);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice);
    cuDevicePrimaryCtxRelease_v2(dev: CUdevice);
    cuDevicePrimaryCtxReset_v2(dev: CUdevice);
    cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice);
    cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: c_uint);
    cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice);
    cuDriverGetVersion(driverVersion: *mut c_int);
    cuEventCreate(phEvent: *mut CUevent, Flags: c_uint);
    cuEventDestroy_v2(hEvent: CUevent);
    cuEventElapsedTime(pMilliseconds: *mut f32, hStart: CUevent, hEnd: CUevent);
    cuEventQuery(hEvent: CUevent);
    cuEventRecord(hEvent: CUevent, hStream: CUstream);
    cuEventSynchronize(hEvent: CUevent);
    cuExternalMemoryGetMappedBuffer(devPtr: *mut CUdeviceptr, extMem: CUexternalMemory,
        bufferDesc: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC);
    cuFuncGetAttribute(pi: *mut c_int, attrib: CUfunction_attribute, hfunc: CUfunction);
    cuFuncSetCacheConfig(hfunc: CUfunction, config: CUfunc_cache);
    cuFuncSetSharedMemConfig(hfunc: CUfunction, config: CUsharedconfig);
    cuGraphAddKernelNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode,
        numDependencies: usize, nodeParams: *const CUDA_KERNEL_NODE_PARAMS);
    cuGraphCreate(phGraph: *mut CUgraph, flags: c_uint);
    cuGraphDebugDotPrint(hGraph: CUgraph, path: *const c_char, flags: c_uint);
    cuGraphDestroy(hGraph: CUgraph);
    cuGraphGetEdges(hGraph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, numEdges: *mut usize);
    cuGraphGetNodes(hGraph: CUgraph, nodes: *mut CUgraphNode, numNodes: *mut usize);
    cuGraphKernelNodeGetParams(hNode: CUgraphNode, nodeParams: *mut CUDA_KERNEL_NODE_PARAMS);
    cuGraphNodeGetType(hNode: CUgraphNode, type_: *mut CUgraphNodeType);
    cuImportExternalMemory(extMem_out: *mut CUexternalMemory,
        memHandleDesc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC);
    cuInit(Flags: c_uint);
    cuLaunchHostFunc(hStream: CUstream, callback: CUhostFn, userData: *mut c_void);
    cuLaunchKernel(f: CUfunction, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint,
        blockDimY: c_uint, blockDimZ: c_uint, sharedMemBytes: c_uint, hStream: CUstream,
        kernelParams: *mut *mut c_void, extra: *mut *mut c_void);
    cuLinkAddData_v2(state: CUlinkState, type_: CUjitInputType, data: *mut c_void, size: usize,
        name: *const c_char, numOptions: c_uint, options: *mut CUjit_option,
        optionValues: *mut *mut c_void);
    cuLinkComplete(state: CUlinkState, cubinOut: *mut *mut c_void, sizeOut: *mut usize);
    cuLinkCreate_v2(numOptions: c_uint, options: *mut CUjit_option, optionValues: *mut *mut c_void,
        stateOut: *mut CUlinkState);
    cuLinkDestroy(state: CUlinkState);
    cuMemAdvise(devPtr: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice);
    cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, hStream: CUstream);
    cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize);
    cuMemAllocManaged(dptr: *mut CUdeviceptr, bytesize: usize, flags: c_uint);
    cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize);
    cuMemFreeAsync(dptr: CUdeviceptr, hStream: CUstream);
    cuMemFreeHost(p: *mut c_void);
    cuMemFree_v2(dptr: CUdeviceptr);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemPrefetchAsync(devPtr: CUdeviceptr, count: usize, dstDevice: CUdevice, hStream: CUstream);
    cuMemcpy2D_v2(pCopy: *const CUDA_MEMCPY2D);
    cuMemcpyAtoH_v2(dstHost: *mut c_void, srcArray: CUarray, srcOffset: usize, ByteCount: usize);
    cuMemcpyDtoDAsync_v2(dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream);
    cuMemcpyDtoD_v2(dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize);
    cuMemcpyDtoHAsync_v2(dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream);
    cuMemcpyDtoH_v2(dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize);
    cuMemcpyHtoA_v2(dstArray: CUarray, dstOffset: usize, srcHost: *const c_void, ByteCount: usize);
    cuMemcpyHtoDAsync_v2(dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize, hStream: CUstream);
    cuMemcpyHtoD_v2(dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize);
    cuMemsetD16Async(dstDevice: CUdeviceptr, us: c_ushort, N: usize, hStream: CUstream);
    cuMemsetD16_v2(dstDevice: CUdeviceptr, us: c_ushort, N: usize);
    cuMemsetD2D8Async(dstDevice: CUdeviceptr, dstPitch: usize, uc: c_uchar, Width: usize, Height: usize,
        hStream: CUstream);
    cuMemsetD32Async(dstDevice: CUdeviceptr, ui: c_uint, N: usize, hStream: CUstream);
    cuMemsetD32_v2(dstDevice: CUdeviceptr, ui: c_uint, N: usize);
    cuMemsetD8Async(dstDevice: CUdeviceptr, uc: c_uchar, N: usize, hStream: CUstream);
    cuMemsetD8_v2(dstDevice: CUdeviceptr, uc: c_uchar, N: usize);
    cuModuleGetFunction(hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char);
    cuModuleGetGlobal_v2(dptr: *mut CUdeviceptr, bytes: *mut usize, hmod: CUmodule, name: *const c_char);
    cuModuleLoad(module: *mut CUmodule, fname: *const c_char);
    cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, numOptions: c_uint,
        options: *mut CUjit_option, optionValues: *mut *mut c_void);
    cuModuleUnload(hmod: CUmodule);
    cuOccupancyAvailableDynamicSMemPerBlock(dynamicSmemSize: *mut usize, func: CUfunction,
        numBlocks: c_int, blockSize: c_int);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks: *mut c_int, func: CUfunction, blockSize: c_int,
        dynamicSMemSize: usize);
    cuOccupancyMaxPotentialBlockSize(minGridSize: *mut c_int, blockSize: *mut c_int, func: CUfunction,
        blockSizeToDynamicSMemSize: CUoccupancyB2DSize, dynamicSMemSize: usize, blockSizeLimit: c_int);
    cuStreamCreateWithPriority(phStream: *mut CUstream, flags: c_uint, priority: c_int);
    cuStreamDestroy_v2(hStream: CUstream);
    cuStreamGetFlags(hStream: CUstream, flags: *mut c_uint);
    cuStreamGetPriority(hStream: CUstream, priority: *mut c_int);
    cuStreamSynchronize(hStream: CUstream);
    cuStreamWaitEvent(hStream: CUstream, hEvent: CUevent, Flags: c_uint);
    cuSurfObjectCreate(pSurfObject: *mut CUsurfObject, pResDesc: *const CUDA_RESOURCE_DESC);
    cuSurfObjectDestroy(surfObject: CUsurfObject);
    cuSurfObjectGetResourceDesc(pResDesc: *mut CUDA_RESOURCE_DESC, surfObject: CUsurfObject);
    cuTexObjectCreate(pTexObject: *mut CUtexObject, pResDesc: *const CUDA_RESOURCE_DESC,
        pTexDesc: *const CUDA_TEXTURE_DESC, pResViewDesc: *const CUDA_RESOURCE_VIEW_DESC);
    cuTexObjectDestroy(texObject: CUtexObject);
    cuTexObjectGetResourceDesc(pResDesc: *mut CUDA_RESOURCE_DESC, texObject: CUtexObject);
    cuTexObjectGetResourceViewDesc(pResViewDesc: *mut CUDA_RESOURCE_VIEW_DESC, texObject: CUtexObject);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_codes_become_unknown() {
        assert_eq!(result(0), CUresult::CUDA_SUCCESS);
        assert_eq!(result(3), CUresult::CUDA_ERROR_NOT_INITIALIZED);
        assert_eq!(result(203), CUresult::CUDA_ERROR_UNKNOWN);
        assert_eq!(result(914), CUresult::CUDA_ERROR_UNKNOWN);
        for code in (0..1200).filter(|c| known(*c)) {
            assert_eq!(result(code) as u32, code);
        }
    }

    #[test]
    fn a_code_always_has_words() {
        for error in [cust::error::CudaError::NotInitialized, cust::error::CudaError::UnknownError]
        {
            assert!(!error.to_string().is_empty());
        }
    }
}
