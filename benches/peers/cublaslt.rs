//! cuBLASLt: dense products of 8-bit operands, `C[m,n] = A[m,k] * B[n,k]`; fp8 into f16, int8 into int32.

use crate::device::{Buffer, Gpu, Result};
use cudarc::cublas::sys::cublasOperation_t;
use cudarc::cublaslt::{result, sys};
use std::ffi::c_void;

const WORKSPACE: usize = 64 << 20;

/// What is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// e4m3, sums promoted to f32.
    Fp8,
    /// e4m3, sums left in the Tensor Core's accumulator.
    Fp8Fast,
    /// Signed 8-bit integers.
    Int8,
}

/// One product, planned.
pub struct Dense {
    handle: sys::cublasLtHandle_t,
    description: sys::cublasLtMatmulDesc_t,
    /// Of B, A and C.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    stream: sys::cudaStream_t,
    workspace: Buffer,
    whole: bool,
}

impl Dense {
    /// Opens the library and asks it for its algorithm.
    pub fn new(gpu: &Gpu, kind: Kind, [m, k, n]: [usize; 3]) -> Result<Self> {
        use sys::cublasComputeType_t as Compute;
        use sys::cudaDataType as T;
        // SAFETY: only tries to open the library.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcublasLt does not load (LD_LIBRARY_PATH must name its folder)".into());
        }
        let (compute, scale, input, output) = match kind {
            Kind::Int8 => (
                Compute::CUBLAS_COMPUTE_32I,
                T::CUDA_R_32I,
                T::CUDA_R_8I,
                T::CUDA_R_32I,
            ),
            _ => (
                Compute::CUBLAS_COMPUTE_32F,
                T::CUDA_R_32F,
                T::CUDA_R_8F_E4M3,
                T::CUDA_R_16F,
            ),
        };
        let handle = result::create_handle().map_err(text)?;
        let description = result::create_matmul_desc(compute, scale).map_err(text)?;
        // All row-major: as column-major C^T = B A^T, B turned.
        let transposed = cublasOperation_t::CUBLAS_OP_T as i32;
        let fast = i8::from(kind == Kind::Fp8Fast);
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        // SAFETY: the description is new, and each value has the size that its attribute wants.
        unsafe {
            let at = (&raw const transposed).cast();
            result::set_matmul_desc_attribute(
                description,
                Attribute::CUBLASLT_MATMUL_DESC_TRANSA,
                at,
                size_of_val(&transposed),
            )
            .map_err(text)?;
            if kind != Kind::Int8 {
                let at = (&raw const fast).cast();
                let accumulation = Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM;
                result::set_matmul_desc_attribute(description, accumulation, at, 1)
                    .map_err(text)?;
            }
        }
        let layout = |kind, rows: usize, columns: usize| {
            result::create_matrix_layout(kind, rows as u64, columns as u64, rows as i64)
                .map_err(text)
        };
        let layouts = [
            layout(input, k, n)?,
            layout(input, k, m)?,
            layout(output, n, m)?,
        ];
        let algorithm = algorithm(handle, description, layouts)?;
        Ok(Self {
            handle,
            description,
            layouts,
            algorithm,
            stream: gpu.stream.cast(),
            workspace: Buffer::new(WORKSPACE)?,
            whole: kind == Kind::Int8,
        })
    }

    /// Queues the product of A and B into C.
    pub fn run(&self, [a, b, c]: [u64; 3]) -> Result<()> {
        let (one, zero, whole_one, whole_zero) = (1f32, 0f32, 1i32, 0i32);
        let (alpha, beta): (*const c_void, *const c_void) = if self.whole {
            (
                (&raw const whole_one).cast(),
                (&raw const whole_zero).cast(),
            )
        } else {
            ((&raw const one).cast(), (&raw const zero).cast())
        };
        // SAFETY: a, b, c are device buffers of the planned extents and types; the scalars are read before the call returns.
        unsafe {
            result::matmul(
                self.handle,
                self.description,
                alpha,
                beta,
                b as *const c_void,
                self.layouts[0],
                a as *const c_void,
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

/// The library's first choice.
pub fn algorithm(
    handle: sys::cublasLtHandle_t,
    description: sys::cublasLtMatmulDesc_t,
    [b, a, c]: [sys::cublasLtMatrixLayout_t; 3],
) -> Result<sys::cublasLtMatmulAlgo_t> {
    let preference = result::create_matmul_pref().map_err(text)?;
    let limit = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    let bytes = WORKSPACE as u64;
    // SAFETY: all of these were made by the library and are alive; the attribute is a u64.
    unsafe {
        result::set_matmul_pref_attribute(preference, limit, (&raw const bytes).cast(), 8)
            .map_err(text)?;
        let found = result::get_matmul_algo_heuristic(handle, description, b, a, c, c, preference);
        result::destroy_matmul_pref(preference).map_err(text)?;
        Ok(found.map_err(text)?.algo)
    }
}

impl Drop for Dense {
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
