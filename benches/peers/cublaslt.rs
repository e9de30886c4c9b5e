//! cuBLASLt: dense products of 8-bit operands, `C[m,n] = A[m,k] * B[n,k]`; fp8 into f16, int8 into int32. Also the
//! shared code of all its products.

use crate::device::{Buffer, Gpu, Result};
use cudarc::cublas::sys::cublasOperation_t;
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use std::ffi::c_void;
use sys::cublasComputeType_t as Compute;
use sys::cublasLtMatmulDescAttributes_t as Attribute;
use sys::cudaDataType as T;

const WORKSPACE: usize = 64 << 20;

/// Product in the library's column-major order: C[m,n] of the transposed first operand, [k,m], and the second, [k,n].
pub struct Planned {
    handle: sys::cublasLtHandle_t,
    description: sys::cublasLtMatmulDesc_t,
    /// Layouts of both operands and C.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    stream: sys::cudaStream_t,
    workspace: Buffer,
}

impl Planned {
    /// Opens the library and queries its algorithm. Attributes are passed by address and size.
    ///
    /// # Safety
    /// Each attribute's value is alive and has the size that the attribute requires.
    pub unsafe fn new(
        gpu: &Gpu,
        [m, k, n]: [usize; 3],
        (compute, scale): (Compute, T),
        [input, output]: [T; 2],
        attributes: &[(Attribute, *const c_void, usize)],
    ) -> Result<Self> {
        // SAFETY: only tries to open the library.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcublasLt does not load (LD_LIBRARY_PATH must name its folder)".into());
        }
        let handle = result::create_handle().map_err(text)?;
        let description = result::create_matmul_desc(compute, scale).map_err(text)?;
        let turned = cublasOperation_t::CUBLAS_OP_T as i32;
        let turned = (&raw const turned).cast();
        let of_order = (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, turned, 4);
        for &(attribute, at, bytes) in [of_order].iter().chain(attributes) {
            // SAFETY: the description is new; the caller guarantees the values.
            unsafe { result::set_matmul_desc_attribute(description, attribute, at, bytes) }
                .map_err(text)?;
        }
        let layout = |kind, rows: usize, columns: usize| {
            result::create_matrix_layout(kind, rows as u64, columns as u64, rows as i64)
                .map_err(text)
        };
        let layouts = [layout(input, k, m)?, layout(input, k, n)?, layout(output, m, n)?];
        Ok(Self {
            handle,
            description,
            layouts,
            algorithm: algorithm(handle, description, layouts).map_err(text)?,
            stream: gpu.stream.cast(),
            workspace: Buffer::new(WORKSPACE)?,
        })
    }

    /// Queues the product of both operands into C, with scalars one and zero in the type of the scale.
    pub fn run(&self, [one, zero]: [*const c_void; 2], [first, second, c]: [u64; 3]) -> Result<()> {
        // SAFETY: device buffers of the planned extents and types; the scalars are read before the call returns.
        unsafe {
            result::matmul(
                self.handle,
                self.description,
                one,
                zero,
                first as *const c_void,
                self.layouts[0],
                second as *const c_void,
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
        .map_err(text)?;
        Ok(())
    }
}

impl Drop for Planned {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once, before the workspace.
        unsafe {
            for layout in self.layouts {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.description);
            let _ = result::destroy_handle(self.handle);
        }
    }
}

/// Returns the first algorithm of the library's heuristic.
fn algorithm(
    handle: sys::cublasLtHandle_t,
    description: sys::cublasLtMatmulDesc_t,
    [b, a, c]: [sys::cublasLtMatrixLayout_t; 3],
) -> Result<sys::cublasLtMatmulAlgo_t, CublasError> {
    let preference = result::create_matmul_pref()?;
    let limit = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    let bytes = WORKSPACE as u64;
    // SAFETY: all handles were created by the library and are alive; the attribute is a u64.
    unsafe {
        result::set_matmul_pref_attribute(preference, limit, (&raw const bytes).cast(), 8)?;
        let found = result::get_matmul_algo_heuristic(handle, description, b, a, c, c, preference);
        result::destroy_matmul_pref(preference)?;
        Ok(found?.algo)
    }
}

fn text(error: CublasError) -> String {
    format!("cublasLt: {error}")
}

/// Type of the operands and sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// e4m3, with sums promoted to f32.
    Fp8,
    /// e4m3, with sums in the Tensor Core's accumulator.
    Fp8Fast,
    /// Signed 8-bit integers.
    Int8,
}

pub struct Dense {
    planned: Planned,
    whole: bool,
}

impl Dense {
    pub fn new(gpu: &Gpu, kind: Kind, [m, k, n]: [usize; 3]) -> Result<Self> {
        let fast = i8::from(kind == Kind::Fp8Fast);
        let at = (&raw const fast).cast();
        let accumulation = (Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, at, 1);
        // All row-major. In column-major order this is C^T = B A^T, with B transposed.
        let extents = [n, k, m];
        let whole = kind == Kind::Int8;
        // SAFETY: the attribute is one byte, which is alive.
        let planned = unsafe {
            if whole {
                let scale = (Compute::CUBLAS_COMPUTE_32I, T::CUDA_R_32I);
                Planned::new(gpu, extents, scale, [T::CUDA_R_8I, T::CUDA_R_32I], &[])
            } else {
                let scale = (Compute::CUBLAS_COMPUTE_32F, T::CUDA_R_32F);
                let kinds = [T::CUDA_R_8F_E4M3, T::CUDA_R_16F];
                Planned::new(gpu, extents, scale, kinds, &[accumulation])
            }
        }?;
        Ok(Self { planned, whole })
    }

    /// Queues the product of A and B into C.
    pub fn run(&self, [a, b, c]: [u64; 3]) -> Result<()> {
        let (whole, float) = ([1i32, 0], [1f32, 0.0]);
        let scalars = match self.whole {
            true => [0, 1].map(|i: usize| (&raw const whole[i]).cast()),
            false => [0, 1].map(|i: usize| (&raw const float[i]).cast()),
        };
        self.planned.run(scalars, [b, a, c])
    }
}
