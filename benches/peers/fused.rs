//! cuBLASLt: a dense product with bias and ReLU in its own epilogue, `C[n,m] = relu(B[n,k] * A[m,k] + bias[m])`. The library
//! adds a bias along the contiguous axis of C only, so B and C have their rows by places here: its best order.

use crate::device::{Buffer, Gpu, Result};
use crate::problems::Dtype;
use cudarc::cublas::sys::cublasOperation_t;
use cudarc::cublaslt::{result, sys};
use std::ffi::c_void;

const WORKSPACE: usize = 64 << 20;

/// One product, planned; the bias is part of the plan.
pub struct FusedDense {
    handle: sys::cublasLtHandle_t,
    description: sys::cublasLtMatmulDesc_t,
    /// Of A, B and C.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    stream: sys::cudaStream_t,
    workspace: Buffer,
}

impl FusedDense {
    /// Opens the library and asks it for its algorithm.
    pub fn new(gpu: &Gpu, dtype: Dtype, extents: [usize; 3], bias: &Buffer) -> Result<Self> {
        let relu = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS;
        Self::with_epilogue(gpu, dtype, extents, bias, relu)
    }

    /// The same with a bias and, if wanted, a GELU (its tanh form).
    pub fn linear(
        gpu: &Gpu,
        dtype: Dtype,
        extents: [usize; 3],
        (bias, gelu): (&Buffer, bool),
    ) -> Result<Self> {
        use sys::cublasLtEpilogue_t as Epilogue;
        let epilogue = match gelu {
            true => Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS,
            false => Epilogue::CUBLASLT_EPILOGUE_BIAS,
        };
        Self::with_epilogue(gpu, dtype, extents, bias, epilogue)
    }

    fn with_epilogue(
        gpu: &Gpu,
        dtype: Dtype,
        [m, k, n]: [usize; 3],
        bias: &Buffer,
        epilogue: sys::cublasLtEpilogue_t,
    ) -> Result<Self> {
        use sys::cudaDataType as T;
        // SAFETY: only tries to open the library.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcublasLt does not load (LD_LIBRARY_PATH must name its folder)".into());
        }
        let kind = match dtype {
            Dtype::F16 => T::CUDA_R_16F,
            Dtype::Bf16 => T::CUDA_R_16BF,
            Dtype::F32 => T::CUDA_R_32F,
            other => return Err(format!("no fused dense product of {other}")),
        };
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let handle = result::create_handle().map_err(text)?;
        let description = result::create_matmul_desc(compute, T::CUDA_R_32F).map_err(text)?;
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let transposed = cublasOperation_t::CUBLAS_OP_T as i32;
        let epilogue = epilogue as i32;
        let values: [(Attribute, *const c_void, usize); 3] = [
            (
                Attribute::CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const transposed).cast(),
                4,
            ),
            (
                Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE,
                (&raw const epilogue).cast(),
                4,
            ),
            (
                Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                (&raw const bias.ptr).cast(),
                8,
            ),
        ];
        for (attribute, at, bytes) in values {
            // SAFETY: the description is new, and each value has the size that its attribute wants.
            unsafe { result::set_matmul_desc_attribute(description, attribute, at, bytes) }
                .map_err(text)?;
        }
        // Column-major: A as [k,m] turned, B as [k,n], C as [m,n].
        let layout = |rows: usize, columns: usize| {
            result::create_matrix_layout(kind, rows as u64, columns as u64, rows as i64)
                .map_err(text)
        };
        let layouts = [layout(k, m)?, layout(k, n)?, layout(m, n)?];
        let algorithm = super::cublaslt::algorithm(handle, description, layouts)?;
        Ok(Self {
            handle,
            description,
            layouts,
            algorithm,
            stream: gpu.stream.cast(),
            workspace: Buffer::new(WORKSPACE)?,
        })
    }

    /// Queues the product of A and B into C.
    pub fn run(&self, [a, b, c]: [u64; 3]) -> Result<()> {
        let (one, zero) = (1f32, 0f32);
        // SAFETY: a, b, c are device buffers of the planned extents and types; the scalars are read before the call returns.
        unsafe {
            result::matmul(
                self.handle,
                self.description,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                a as *const c_void,
                self.layouts[0],
                b as *const c_void,
                self.layouts[1],
                c as *const c_void,
                self.layouts[2],
                c as *mut c_void,
                self.layouts[2],
                &self.algorithm,
                self.workspace.ptr as *mut c_void,
                WORKSPACE,
                self.stream,
            )
        }
        .map_err(text)
    }
}

impl Drop for FusedDense {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once, before the workspace.
        unsafe {
            for layout in self.layouts {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.description);
            let _ = result::destroy_handle(self.handle);
        }
    }
}

fn text(error: result::CublasError) -> String {
    format!("cublasLt: {error}")
}
