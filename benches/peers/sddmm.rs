//! cuSPARSE SDDMM: row-major X and Y, the library's only algorithm. Times exclude the preprocessing.

use super::cusparse::{Full, Handle, Sparse, addresses, at, check, scalars, types};
use crate::device::{Buffer, Gpu, Result};
use crate::families::sddmm::Case;
use cudarc::cusparse::sys;

const ALGORITHM: sys::cusparseSDDMMAlg_t = sys::cusparseSDDMMAlg_t::CUSPARSE_SDDMM_ALG_DEFAULT;
const AS_IS: sys::cusparseOperation_t = sys::cusparseOperation_t::CUSPARSE_OPERATION_NON_TRANSPOSE;
const TRANSPOSED: sys::cusparseOperation_t = sys::cusparseOperation_t::CUSPARSE_OPERATION_TRANSPOSE;

/// Library handle on the GPU's stream.
pub struct CuSparseSddmm(Handle);

impl CuSparseSddmm {
    pub fn open(gpu: &Gpu) -> Result<Self> {
        Ok(Self(Handle::open(gpu)?))
    }

    /// Creates descriptors and buffer of a case, and preprocesses it.
    pub fn prepare(&self, case: &Case<'_>) -> Result<Product> {
        let ((m, n, nnz), (value, compute)) = (case.problem.extents(), types(case.dtype));
        let arrays = [&case.offsets, &case.columns, &case.out];
        let mut product = Product {
            handle: self.0.0,
            compute,
            x: Full::new(m, case.k, &case.x, value)?,
            y: Full::new(n, case.k, &case.y, value)?,
            s: Sparse::csr([m, n], nnz, arrays, value)?,
            scalars: scalars(case.dtype),
            buffer: None,
        };
        product.preprocess()?;
        Ok(product)
    }
}

/// One product. Its descriptors and buffer must live while it runs.
pub struct Product {
    handle: sys::cusparseHandle_t,
    compute: sys::cudaDataType,
    x: Full,
    y: Full,
    s: Sparse,
    scalars: [[u8; 8]; 2],
    buffer: Option<Buffer>,
}

impl Product {
    fn preprocess(&mut self) -> Result<()> {
        let [alpha, beta] = addresses(&self.scalars);
        let (x, y, s) = (self.x.0.cast_const(), self.y.0.cast_const(), self.s.0);
        let (h, t, mut bytes) = (self.handle, self.compute, 0usize);
        // SAFETY: descriptors are complete, scalars are host memory in the compute type.
        let status = unsafe {
            let size = &mut bytes;
            sys::cusparseSDDMM_bufferSize(
                h, AS_IS, TRANSPOSED, alpha, x, y, beta, s, t, ALGORITHM, size,
            )
        };
        check(status, "cusparseSDDMM_bufferSize")?;
        let buffer = Buffer::new(bytes)?;
        // SAFETY: descriptors are complete, scalars are host memory in the compute type; the buffer has the requested
        // size and lives as long as the descriptors.
        let status = unsafe {
            let work = at(&buffer);
            sys::cusparseSDDMM_preprocess(
                h, AS_IS, TRANSPOSED, alpha, x, y, beta, s, t, ALGORITHM, work,
            )
        };
        self.buffer = Some(buffer);
        check(status, "cusparseSDDMM_preprocess")
    }

    /// Queues one product.
    pub fn run(&self) -> Result<()> {
        let [alpha, beta] = addresses(&self.scalars);
        let (x, y, s) = (self.x.0.cast_const(), self.y.0.cast_const(), self.s.0);
        let work = self.buffer.as_ref().map_or(std::ptr::null_mut(), at);
        let (h, t) = (self.handle, self.compute);
        // SAFETY: as in `preprocess`.
        let status = unsafe {
            sys::cusparseSDDMM(h, AS_IS, TRANSPOSED, alpha, x, y, beta, s, t, ALGORITHM, work)
        };
        check(status, "cusparseSDDMM")
    }
}
