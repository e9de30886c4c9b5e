//! cuDNN: the dense convolution in two dimensions, channels last, f16 with f32 accumulation. The algorithm is the
//! fastest one that the library's search finds. It uses the descriptor interface of version 7; engines of the graph
//! interface may be faster.

use crate::device::{Buffer, Gpu, Result};
use cudarc::cudnn::sys;
use std::ffi::c_void;

/// A convolution of one shape.
pub struct CuDnn {
    handle: sys::cudnnHandle_t,
    input: sys::cudnnTensorDescriptor_t,
    weights: sys::cudnnFilterDescriptor_t,
    output: sys::cudnnTensorDescriptor_t,
    geometry: sys::cudnnConvolutionDescriptor_t,
    algorithm: sys::cudnnConvolutionFwdAlgo_t,
    workspace: Buffer,
}

fn check(status: sys::cudnnStatus_t, call: &str) -> Result<()> {
    match status {
        sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS => Ok(()),
        _ => Err(format!("{call}: {status:?}").into()),
    }
}

impl CuDnn {
    /// Opens a convolution of images `[n, h, w, m]` with weights `[f, i, j, m]` and this padding, at every position.
    pub fn open(
        gpu: &Gpu,
        images: [usize; 4],
        weights: [usize; 4],
        padding: [usize; 2],
    ) -> Result<Self> {
        // SAFETY: only tries to open the library.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcudnn does not load (LD_LIBRARY_PATH must name its folder)".into());
        }
        let mut own = CuDnn {
            handle: std::ptr::null_mut(),
            input: std::ptr::null_mut(),
            weights: std::ptr::null_mut(),
            output: std::ptr::null_mut(),
            geometry: std::ptr::null_mut(),
            algorithm:
                sys::cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
            workspace: Buffer::new(16)?,
        };
        // SAFETY: out-pointers of this struct; a context is current, and the stream is its own.
        unsafe {
            check(sys::cudnnCreate(&mut own.handle), "cudnnCreate")?;
            check(sys::cudnnSetStream(own.handle, gpu.stream.cast()), "cudnnSetStream")?;
            sys::cudnnCreateTensorDescriptor(&mut own.input);
            sys::cudnnCreateTensorDescriptor(&mut own.output);
            sys::cudnnCreateFilterDescriptor(&mut own.weights);
            sys::cudnnCreateConvolutionDescriptor(&mut own.geometry);
        }
        own.describe(images, weights, padding)?;
        own.find()?;
        Ok(own)
    }

    fn describe(
        &mut self,
        images: [usize; 4],
        weights: [usize; 4],
        padding: [usize; 2],
    ) -> Result<()> {
        let [n, h, w, m] = images.map(|x| x as i32);
        let [f, i, j, _] = weights.map(|x| x as i32);
        let [px, py] = padding.map(|x| x as i32);
        let (nhwc, half) =
            (sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC, sys::cudnnDataType_t::CUDNN_DATA_HALF);
        let (x, y) = (h + 2 * px - i + 1, w + 2 * py - j + 1);
        // SAFETY: descriptors of this struct; the library rejects null ones.
        unsafe {
            let set = sys::cudnnSetTensor4dDescriptor(self.input, nhwc, half, n, m, h, w);
            check(set, "cudnnSetTensor4dDescriptor")?;
            let set = sys::cudnnSetTensor4dDescriptor(self.output, nhwc, half, n, f, x, y);
            check(set, "cudnnSetTensor4dDescriptor")?;
            let set = sys::cudnnSetFilter4dDescriptor(self.weights, half, nhwc, f, m, i, j);
            check(set, "cudnnSetFilter4dDescriptor")?;
            let set = sys::cudnnSetConvolution2dDescriptor(
                self.geometry,
                px,
                py,
                1,
                1,
                1,
                1,
                sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION,
                sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
            );
            check(set, "cudnnSetConvolution2dDescriptor")?;
            let tensor_cores = sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH;
            let set = sys::cudnnSetConvolutionMathType(self.geometry, tensor_cores);
            check(set, "cudnnSetConvolutionMathType")
        }
    }

    /// Times all algorithms by the library's search and selects the fastest.
    fn find(&mut self) -> Result<()> {
        const MOST: usize = 10;
        let mut found = [const { std::mem::MaybeUninit::uninit() }; MOST];
        let mut count = 0;
        // SAFETY: descriptors set above; the array has capacity for the requested results, of which `count` are
        // written.
        let best: sys::cudnnConvolutionFwdAlgoPerf_t = unsafe {
            let status = sys::cudnnFindConvolutionForwardAlgorithm(
                self.handle,
                self.input,
                self.weights,
                self.geometry,
                self.output,
                MOST as i32,
                &mut count,
                found.as_mut_ptr().cast(),
            );
            check(status, "cudnnFindConvolutionForwardAlgorithm")?;
            if count == 0 {
                return Err("cuDNN found no algorithm".into());
            }
            found[0].assume_init()
        };
        check(best.status, "the fastest algorithm")?;
        // SAFETY: a descriptor of this struct. The math type is that of the timed algorithm.
        let set = unsafe { sys::cudnnSetConvolutionMathType(self.geometry, best.mathType) };
        check(set, "cudnnSetConvolutionMathType")?;
        self.algorithm = best.algo;
        self.workspace = Buffer::new(best.memory.max(16))?;
        Ok(())
    }

    /// Name of the selected algorithm, as in the library.
    pub fn algorithm(&self) -> String {
        format!("{:?}", self.algorithm).replace("CUDNN_CONVOLUTION_FWD_ALGO_", "").to_lowercase()
    }

    /// Library version, e.g. 91002.
    pub fn version(&self) -> usize {
        // SAFETY: no arguments.
        unsafe { sys::cudnnGetVersion() }
    }

    pub fn run(&self, [images, weights, output]: [u64; 3]) -> Result<()> {
        let (one, zero) = (1f32, 0f32);
        // SAFETY: device buffers of the described extents; the scalars are read before the call returns.
        let status = unsafe {
            sys::cudnnConvolutionForward(
                self.handle,
                (&raw const one).cast(),
                self.input,
                images as *const c_void,
                self.weights,
                weights as *const c_void,
                self.geometry,
                self.algorithm,
                self.workspace.ptr as *mut c_void,
                self.workspace.bytes,
                (&raw const zero).cast(),
                self.output,
                output as *mut c_void,
            )
        };
        check(status, "cudnnConvolutionForward")
    }
}

impl Drop for CuDnn {
    fn drop(&mut self) {
        // SAFETY: created by this struct, or null, which the library rejects.
        unsafe {
            sys::cudnnDestroyConvolutionDescriptor(self.geometry);
            sys::cudnnDestroyFilterDescriptor(self.weights);
            sys::cudnnDestroyTensorDescriptor(self.output);
            sys::cudnnDestroyTensorDescriptor(self.input);
            sys::cudnnDestroy(self.handle);
        }
    }
}
