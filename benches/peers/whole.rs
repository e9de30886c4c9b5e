//! cuSPARSE SpMM of 8-bit integers into int32: CSR, row-major B and C, the algorithms that support them, with
//! preprocessing.

use super::cusparse::{Full, Handle, Sparse, Spmm};
use crate::device::{Buffer, Gpu, Result};
use cudarc::cusparse::sys::cudaDataType_t::{CUDA_R_8I, CUDA_R_32I};
use cudarc::cusparse::sys::cusparseSpMMAlg_t as Algorithm;

/// Algorithms to try.
pub const ALGORITHMS: [(&str, Algorithm); 3] = [
    ("CSR_ALG1", Algorithm::CUSPARSE_SPMM_CSR_ALG1),
    ("CSR_ALG2", Algorithm::CUSPARSE_SPMM_CSR_ALG2),
    ("CSR_ALG3", Algorithm::CUSPARSE_SPMM_CSR_ALG3),
];

/// One planned product. The device arrays belong to the caller and must outlive it.
pub struct WholeSpmm {
    product: Spmm,
    _handle: Handle,
}

impl WholeSpmm {
    /// Creates descriptors, allocates the buffer and preprocesses. `sparse`: row offsets, columns, values; `dense`: B,
    /// C.
    pub fn new(
        gpu: &Gpu,
        algorithm: Algorithm,
        ([m, k, n], nnz): ([usize; 3], usize),
        sparse: [&Buffer; 3],
        [b, c]: [&Buffer; 2],
    ) -> Result<Self> {
        let handle = Handle::open(gpu)?;
        let mut one = [0; 8];
        one[..4].copy_from_slice(&1i32.to_ne_bytes());
        let mut product = Spmm {
            handle: handle.0,
            algorithm,
            compute: CUDA_R_32I,
            a: Sparse::csr([m, k], nnz, sparse, CUDA_R_8I)?,
            b: Full::new(k, n, b, CUDA_R_8I)?,
            c: Full::new(m, n, c, CUDA_R_32I)?,
            scalars: [one, [0; 8]],
            buffer: None,
        };
        // Some algorithms do not support preprocessing, so its result is ignored.
        product.preprocess()?;
        Ok(Self { product, _handle: handle })
    }

    pub fn run(&self) -> Result<()> {
        self.product.run()
    }
}
