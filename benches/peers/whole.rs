//! cuSPARSE SpMM of 8-bit integers into int32: CSR, row-major B and C, the algorithms that take them, preprocessed.

use super::cusparse::check;
use crate::device::{Buffer, Gpu, Result};
use cudarc::cusparse::sys::{self, cusparseSpMMAlg_t as Algorithm};
use std::ffi::c_void;

/// Those to try.
pub const ALGORITHMS: [(&str, Algorithm); 3] = [
    ("CSR_ALG1", Algorithm::CUSPARSE_SPMM_CSR_ALG1),
    ("CSR_ALG2", Algorithm::CUSPARSE_SPMM_CSR_ALG2),
    ("CSR_ALG3", Algorithm::CUSPARSE_SPMM_CSR_ALG3),
];
const NO: sys::cusparseOperation_t = sys::cusparseOperation_t::CUSPARSE_OPERATION_NON_TRANSPOSE;

/// One product, planned. The device arrays are the caller's and outlive it.
pub struct WholeSpmm {
    handle: sys::cusparseHandle_t,
    algorithm: Algorithm,
    a: sys::cusparseSpMatDescr_t,
    b: sys::cusparseDnMatDescr_t,
    c: sys::cusparseDnMatDescr_t,
    buffer: Option<Buffer>,
}

impl WholeSpmm {
    /// Describes, asks for a buffer and preprocesses. `sparse`: offsets, columns, values; `dense`: B, C.
    pub fn new(
        gpu: &Gpu,
        algorithm: Algorithm,
        ([m, k, n], nnz): ([usize; 3], usize),
        sparse: [&Buffer; 3],
        dense: [&Buffer; 2],
    ) -> Result<Self> {
        // SAFETY: only tries to open the library.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcusparse does not load (LD_LIBRARY_PATH must name its folder)".into());
        }
        let mut own = Self {
            handle: std::ptr::null_mut(),
            algorithm,
            a: std::ptr::null_mut(),
            b: std::ptr::null_mut(),
            c: std::ptr::null_mut(),
            buffer: None,
        };
        let [offsets, columns, values] = sparse.map(at);
        let [b, c] = dense.map(at);
        let (m, k, n, nnz) = (m as i64, k as i64, n as i64, nnz as i64);
        use sys::cudaDataType_t as T;
        let index = sys::cusparseIndexType_t::CUSPARSE_INDEX_32I;
        let base = sys::cusparseIndexBase_t::CUSPARSE_INDEX_BASE_ZERO;
        let order = sys::cusparseOrder_t::CUSPARSE_ORDER_ROW;
        // SAFETY: out-pointers; the arrays have these extents and types and outlive the descriptors.
        unsafe {
            check(sys::cusparseCreate(&mut own.handle), "cusparseCreate")?;
            let stream = gpu.stream.cast();
            check(
                sys::cusparseSetStream(own.handle, stream),
                "cusparseSetStream",
            )?;
            let a = &mut own.a;
            let status = sys::cusparseCreateCsr(
                a,
                m,
                k,
                nnz,
                offsets,
                columns,
                values,
                index,
                index,
                base,
                T::CUDA_R_8I,
            );
            check(status, "cusparseCreateCsr")?;
            let status = sys::cusparseCreateDnMat(&mut own.b, k, n, n, b, T::CUDA_R_8I, order);
            check(status, "cusparseCreateDnMat")?;
            let status = sys::cusparseCreateDnMat(&mut own.c, m, n, n, c, T::CUDA_R_32I, order);
            check(status, "cusparseCreateDnMat")?;
        }
        own.prepare()?;
        Ok(own)
    }

    fn prepare(&mut self) -> Result<()> {
        let (one, zero, mut bytes) = (1i32, 0i32, 0usize);
        let (alpha, beta) = ((&raw const one).cast(), (&raw const zero).cast());
        let (h, t) = (self.handle, sys::cudaDataType_t::CUDA_R_32I);
        let (a, b, c, algorithm) = (self.a, self.b, self.c, self.algorithm);
        // SAFETY: complete descriptors, scalars of the compute type on the host, a buffer of the size asked for.
        unsafe {
            let size = &mut bytes;
            let status =
                sys::cusparseSpMM_bufferSize(h, NO, NO, alpha, a, b, beta, c, t, algorithm, size);
            check(status, "cusparseSpMM_bufferSize")?;
            let buffer = Buffer::new(bytes)?;
            let work = at(&buffer);
            // Not every algorithm takes it.
            let _ =
                sys::cusparseSpMM_preprocess(h, NO, NO, alpha, a, b, beta, c, t, algorithm, work);
            self.buffer = Some(buffer);
        }
        Ok(())
    }

    /// Queues the product.
    pub fn run(&self) -> Result<()> {
        let (one, zero) = (1i32, 0i32);
        let (alpha, beta) = ((&raw const one).cast(), (&raw const zero).cast());
        let t = sys::cudaDataType_t::CUDA_R_32I;
        let work = self.buffer.as_ref().map_or(std::ptr::null_mut(), at);
        let (a, b, c, algorithm) = (self.a, self.b, self.c, self.algorithm);
        // SAFETY: as in `prepare`.
        let status = unsafe {
            sys::cusparseSpMM(
                self.handle,
                NO,
                NO,
                alpha,
                a,
                b,
                beta,
                c,
                t,
                algorithm,
                work,
            )
        };
        check(status, "cusparseSpMM")
    }
}

fn at(buffer: &Buffer) -> *mut c_void {
    buffer.ptr as *mut c_void
}

impl Drop for WholeSpmm {
    fn drop(&mut self) {
        // SAFETY: null (never created) or created in `new` and destroyed once.
        unsafe {
            if !self.a.is_null() {
                sys::cusparseDestroySpMat(self.a.cast_const());
            }
            for matrix in [self.b, self.c] {
                if !matrix.is_null() {
                    sys::cusparseDestroyDnMat(matrix.cast_const());
                }
            }
            if !self.handle.is_null() {
                sys::cusparseDestroy(self.handle);
            }
        }
    }
}
