//! cuBLASLt: a dense product with bias and ReLU in its epilogue, `C[n,m] = relu(B[n,k] * A[m,k] + bias[m])`. The
//! library adds a bias only along the contiguous axis of C, so rows of B and C are positions. This is its fastest
//! order.

use super::cublaslt::Planned;
use crate::device::{Buffer, Gpu, Result};
use crate::problems::Dtype;
use cudarc::cublaslt::sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
use cudarc::cublaslt::sys::cublasLtEpilogue_t as Epilogue;
use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t as Attribute;
use cudarc::cublaslt::sys::cudaDataType as T;

/// One planned product. The bias is part of the plan.
pub struct FusedDense(Planned);

impl FusedDense {
    /// Plans a product with bias and ReLU.
    pub fn new(gpu: &Gpu, dtype: Dtype, extents: [usize; 3], bias: &Buffer) -> Result<Self> {
        let relu = Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS;
        Self::with_epilogue(gpu, dtype, extents, bias, relu)
    }

    /// Plans a product with bias and optionally GELU (its tanh form).
    pub fn linear(
        gpu: &Gpu,
        dtype: Dtype,
        extents: [usize; 3],
        (bias, gelu): (&Buffer, bool),
    ) -> Result<Self> {
        let epilogue = match gelu {
            true => Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS,
            false => Epilogue::CUBLASLT_EPILOGUE_BIAS,
        };
        Self::with_epilogue(gpu, dtype, extents, bias, epilogue)
    }

    fn with_epilogue(
        gpu: &Gpu,
        dtype: Dtype,
        extents: [usize; 3],
        bias: &Buffer,
        epilogue: Epilogue,
    ) -> Result<Self> {
        let kind = match dtype {
            Dtype::F16 => T::CUDA_R_16F,
            Dtype::Bf16 => T::CUDA_R_16BF,
            Dtype::F32 => T::CUDA_R_32F,
            other => return Err(format!("no fused dense product of {other}").into()),
        };
        let epilogue = epilogue as i32;
        let own = (&raw const epilogue).cast();
        let address = (&raw const bias.ptr).cast();
        let attributes = [
            (Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, own, 4),
            (Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, address, 8),
        ];
        let scale = (CUBLAS_COMPUTE_32F, T::CUDA_R_32F);
        // SAFETY: the attributes are an i32 and an address, both alive.
        let planned = unsafe { Planned::new(gpu, extents, scale, [kind; 2], &attributes) };
        Ok(Self(planned?))
    }

    /// Queues the product of A and B into C.
    pub fn run(&self, pointers: [u64; 3]) -> Result<()> {
        let (one, zero) = (1f32, 0f32);
        let scalars = [(&raw const one).cast(), (&raw const zero).cast()];
        self.0.run(scalars, pointers)
    }
}
