//! cuSPARSE SDDMM: row-major X and Y, the one algorithm there is, preprocessed outside the time.

use crate::device::{Buffer, Gpu, Result};
use crate::families::sddmm::Case;
use crate::peers::cusparse::{check, scalars, types};
use cudarc::cusparse::sys;
use std::ffi::c_void;

const ALGORITHM: sys::cusparseSDDMMAlg_t = sys::cusparseSDDMMAlg_t::CUSPARSE_SDDMM_ALG_DEFAULT;
const AS_IS: sys::cusparseOperation_t = sys::cusparseOperation_t::CUSPARSE_OPERATION_NON_TRANSPOSE;
const TRANSPOSED: sys::cusparseOperation_t = sys::cusparseOperation_t::CUSPARSE_OPERATION_TRANSPOSE;

/// The library on the GPU's stream.
pub struct CuSparseSddmm {
    handle: sys::cusparseHandle_t,
}

impl CuSparseSddmm {
    /// Opens the library.
    pub fn open(gpu: &Gpu) -> Result<Self> {
        // SAFETY: only tries to open the library.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcusparse does not load (LD_LIBRARY_PATH must name its folder)".into());
        }
        let mut handle = std::ptr::null_mut();
        // SAFETY: out-pointer; a context is current.
        unsafe {
            check(sys::cusparseCreate(&mut handle), "cusparseCreate")?;
            check(
                sys::cusparseSetStream(handle, gpu.stream.cast()),
                "cusparseSetStream",
            )?;
        }
        Ok(Self { handle })
    }

    /// Descriptors, buffer and preprocessing of a case.
    pub fn prepare(&self, case: &Case<'_>) -> Result<Product> {
        let mut product = Product {
            handle: self.handle,
            compute: types(case.dtype).1,
            x: std::ptr::null_mut(),
            y: std::ptr::null_mut(),
            s: std::ptr::null_mut(),
            scalars: scalars(case.dtype),
            buffer: None,
        };
        let (m, n, _) = case.problem.extents();
        dense(&mut product.x, m, case, &case.x)?;
        dense(&mut product.y, n, case, &case.y)?;
        product.pattern(case)?;
        product.preprocess()?;
        case.gpu.wait()?;
        Ok(product)
    }
}

impl Drop for CuSparseSddmm {
    fn drop(&mut self) {
        // SAFETY: created in `open`, destroyed once.
        unsafe { sys::cusparseDestroy(self.handle) };
    }
}

/// One product, kept as long as it is run.
pub struct Product {
    handle: sys::cusparseHandle_t,
    compute: sys::cudaDataType,
    x: sys::cusparseDnMatDescr_t,
    y: sys::cusparseDnMatDescr_t,
    s: sys::cusparseSpMatDescr_t,
    scalars: [[u8; 8]; 2],
    buffer: Option<Buffer>,
}

fn at(buffer: &Buffer) -> *mut c_void {
    buffer.ptr as *mut c_void
}

fn dense(
    descriptor: &mut sys::cusparseDnMatDescr_t,
    rows: usize,
    case: &Case<'_>,
    buffer: &Buffer,
) -> Result<()> {
    let (rows, k, value) = (rows as i64, case.k as i64, types(case.dtype).0);
    let order = sys::cusparseOrder_t::CUSPARSE_ORDER_ROW;
    // SAFETY: the buffer holds rows x k elements and outlives the descriptor.
    let status =
        unsafe { sys::cusparseCreateDnMat(descriptor, rows, k, k, at(buffer), value, order) };
    check(status, "cusparseCreateDnMat")
}

impl Product {
    fn pattern(&mut self, case: &Case<'_>) -> Result<()> {
        let (m, n, nnz) = case.problem.extents();
        let index = sys::cusparseIndexType_t::CUSPARSE_INDEX_32I;
        let base = sys::cusparseIndexBase_t::CUSPARSE_INDEX_BASE_ZERO;
        // SAFETY: the device arrays hold m + 1 offsets and nnz columns and values, and outlive the descriptor.
        let status = unsafe {
            sys::cusparseCreateCsr(
                &mut self.s,
                m as i64,
                n as i64,
                nnz as i64,
                at(&case.offsets),
                at(&case.columns),
                at(&case.out),
                index,
                index,
                base,
                types(case.dtype).0,
            )
        };
        check(status, "cusparseCreateCsr")
    }

    fn alpha_beta(&self) -> (*const c_void, *const c_void) {
        (
            self.scalars[0].as_ptr().cast(),
            self.scalars[1].as_ptr().cast(),
        )
    }

    fn preprocess(&mut self) -> Result<()> {
        let (alpha, beta) = self.alpha_beta();
        let (x, y) = (self.x.cast_const(), self.y.cast_const());
        let (h, t, mut bytes) = (self.handle, self.compute, 0usize);
        // SAFETY: descriptors are complete, scalars are host memory in the compute type.
        let status = unsafe {
            let (s, size) = (self.s, &mut bytes);
            sys::cusparseSDDMM_bufferSize(
                h, AS_IS, TRANSPOSED, alpha, x, y, beta, s, t, ALGORITHM, size,
            )
        };
        check(status, "cusparseSDDMM_bufferSize")?;
        let buffer = Buffer::new(bytes)?;
        // SAFETY: as above; the buffer has the size asked for and lives as long as the descriptors.
        let status = unsafe {
            let (s, work) = (self.s, at(&buffer));
            sys::cusparseSDDMM_preprocess(
                h, AS_IS, TRANSPOSED, alpha, x, y, beta, s, t, ALGORITHM, work,
            )
        };
        self.buffer = Some(buffer);
        check(status, "cusparseSDDMM_preprocess")
    }

    /// Queues one product.
    pub fn run(&self) -> Result<()> {
        let (alpha, beta) = self.alpha_beta();
        let (x, y) = (self.x.cast_const(), self.y.cast_const());
        let work = self.buffer.as_ref().map_or(std::ptr::null_mut(), at);
        let (h, t) = (self.handle, self.compute);
        // SAFETY: as in `preprocess`.
        let status = unsafe {
            sys::cusparseSDDMM(
                h, AS_IS, TRANSPOSED, alpha, x, y, beta, self.s, t, ALGORITHM, work,
            )
        };
        check(status, "cusparseSDDMM")
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        // SAFETY: null (never created) or created in `prepare` and destroyed once.
        unsafe {
            if !self.s.is_null() {
                sys::cusparseDestroySpMat(self.s.cast_const());
            }
            for matrix in [self.x, self.y] {
                if !matrix.is_null() {
                    sys::cusparseDestroyDnMat(matrix.cast_const());
                }
            }
        }
    }
}
