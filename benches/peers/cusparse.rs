//! cuSPARSE SpMM: row-major B and C, every algorithm that supports them. Times exclude the preprocessing. Matrices of
//! blocks are stored as BSR and as Blocked-ELL, others as CSR and COO.

use crate::case::{Case, Engine, Prepared};
use crate::device::{Buffer, Gpu, Result};
use crate::ours::by_dtype;
use crate::problems::Dtype;
use cudarc::cusparse::sys::{self, cusparseSpMMAlg_t as Algorithm};
use einsparse::formats::{Bsr, Csr, Element, bf16, convert, f16};
use std::ffi::c_void;
use std::time::Instant;
use sys::cusparseIndexBase_t::CUSPARSE_INDEX_BASE_ZERO as ZERO;
use sys::cusparseIndexType_t::CUSPARSE_INDEX_32I as INDEX;
use sys::cusparseOrder_t::CUSPARSE_ORDER_ROW as BY_ROWS;

pub const ALGORITHMS: [(&str, Algorithm); 4] = [
    ("CSR_ALG1", Algorithm::CUSPARSE_SPMM_CSR_ALG1),
    ("CSR_ALG2", Algorithm::CUSPARSE_SPMM_CSR_ALG2),
    ("CSR_ALG3", Algorithm::CUSPARSE_SPMM_CSR_ALG3),
    ("COO_ALG4", Algorithm::CUSPARSE_SPMM_COO_ALG4),
];
/// Algorithms for matrices of blocks.
const BLOCKS: [(&str, Algorithm); 2] = [
    ("BSR_ALG1", Algorithm::CUSPARSE_SPMM_BSR_ALG1),
    ("BLOCKED_ELL_ALG1", Algorithm::CUSPARSE_SPMM_BLOCKED_ELL_ALG1),
];
const DEFAULT: (&str, Algorithm) = ("ALG_DEFAULT", Algorithm::CUSPARSE_SPMM_ALG_DEFAULT);
pub const NO_TRANSPOSE: sys::cusparseOperation_t =
    sys::cusparseOperation_t::CUSPARSE_OPERATION_NON_TRANSPOSE;

/// Converts a status to a result. The error names the call.
pub fn check(status: sys::cusparseStatus_t, call: &str) -> Result<()> {
    match status {
        sys::cusparseStatus_t::CUSPARSE_STATUS_SUCCESS => Ok(()),
        _ => Err(format!("{call}: {status:?}").into()),
    }
}

/// A handle of the library, destroyed on drop. It is null until it is created.
macro_rules! owned {
    ($(#[$doc:meta])* $name:ident, $handle:ty, $destroy:ident) => {
        $(#[$doc])*
        pub struct $name(pub $handle);

        impl Drop for $name {
            fn drop(&mut self) {
                if !self.0.is_null() {
                    // SAFETY: created once, destroyed once.
                    unsafe { sys::$destroy(self.0) };
                }
            }
        }
    };
}

owned!(
    /// Library handle on the GPU's stream.
    Handle, sys::cusparseHandle_t, cusparseDestroy
);
owned!(
    /// Row-major matrix in device memory. Its buffer must outlive it.
    Full, sys::cusparseDnMatDescr_t, cusparseDestroyDnMat
);
owned!(
    /// Sparse matrix in device memory. Its arrays must outlive it.
    Sparse, sys::cusparseSpMatDescr_t, cusparseDestroySpMat
);

impl Handle {
    pub fn open(gpu: &Gpu) -> Result<Self> {
        // SAFETY: only tries to open the library.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcusparse does not load (LD_LIBRARY_PATH must name its folder)".into());
        }
        let mut own = Self(std::ptr::null_mut());
        // SAFETY: out-pointer; a context is current.
        unsafe {
            check(sys::cusparseCreate(&mut own.0), "cusparseCreate")?;
            let stream = gpu.stream.cast();
            check(sys::cusparseSetStream(own.0, stream), "cusparseSetStream")?;
        }
        Ok(own)
    }
}

impl Full {
    /// Matrix of these extents.
    pub fn new(
        rows: usize,
        columns: usize,
        buffer: &Buffer,
        kind: sys::cudaDataType,
    ) -> Result<Self> {
        let mut own = Self(std::ptr::null_mut());
        let (rows, columns, to) = (rows as i64, columns as i64, &mut own.0);
        // SAFETY: the buffer holds rows x columns elements and outlives the descriptor.
        let status = unsafe {
            sys::cusparseCreateDnMat(to, rows, columns, columns, at(buffer), kind, BY_ROWS)
        };
        check(status, "cusparseCreateDnMat")?;
        Ok(own)
    }
}

impl Sparse {
    /// CSR of row offsets, columns and values of `nnz` nonzeros.
    pub fn csr(
        [m, k]: [usize; 2],
        nnz: usize,
        arrays: [&Buffer; 3],
        kind: sys::cudaDataType,
    ) -> Result<Self> {
        let mut own = Self(std::ptr::null_mut());
        let [offsets, columns, values] = arrays.map(at);
        let (a, m, k, nnz) = (&mut own.0, m as i64, k as i64, nnz as i64);
        // SAFETY: the device arrays hold m + 1 offsets and nnz columns and values.
        let status = unsafe {
            sys::cusparseCreateCsr(a, m, k, nnz, offsets, columns, values, INDEX, INDEX, ZERO, kind)
        };
        check(status, "cusparseCreateCsr")?;
        Ok(own)
    }

    /// A of a case, in COO for the algorithm that requires it, else in CSR. Both use the arrays of the case.
    fn entries(case: &Case<'_>, algorithm: Algorithm) -> Result<Self> {
        let ((m, k, nnz), from) = (case.problem.extents(), case.operands);
        let value = types(case.dtype()).0;
        if algorithm != Algorithm::CUSPARSE_SPMM_COO_ALG4 {
            let arrays = [&from.offsets, &from.columns, &from.values];
            return Self::csr([m, k], nnz, arrays, value);
        }
        let mut own = Self(std::ptr::null_mut());
        let [rows, columns, values] = [&from.rows, &from.columns, &from.values].map(at);
        let (a, m, k, nnz) = (&mut own.0, m as i64, k as i64, nnz as i64);
        // SAFETY: the device arrays hold nnz elements each.
        let status = unsafe {
            sys::cusparseCreateCoo(a, m, k, nnz, rows, columns, values, INDEX, ZERO, value)
        };
        check(status, "cusparseCreateCoo")?;
        Ok(own)
    }

    /// BSR or Blocked-ELL of the case's nonzeros, with its arrays.
    fn blocks(case: &Case<'_>, edge: usize, algorithm: Algorithm) -> Result<(Self, Vec<Buffer>)> {
        let (m, k, nnz) = case.problem.extents();
        let value = types(case.dtype()).0;
        let ell = algorithm == Algorithm::CUSPARSE_SPMM_BLOCKED_ELL_ALG1;
        let (arrays, widest, count) = by_dtype!(case.dtype(), T => {
            let entries = case.values.entries::<T>(nnz);
            let csr = Csr::new(case.problem.pattern.clone(), entries)?;
            let blocks = convert::csr_to_bsr(&csr, (edge, edge))?;
            let in_row = blocks.pattern().offsets().windows(2).map(|ends| ends[1] - ends[0]);
            let widest = in_row.max().unwrap_or(0) as usize;
            let arrays = match ell {
                true => ell_arrays(&blocks, widest)?,
                false => vec![
                    Buffer::from_slice(blocks.pattern().offsets())?,
                    Buffer::from_slice(blocks.pattern().columns())?,
                    Buffer::from_slice(blocks.values())?,
                ],
            };
            (arrays, widest, blocks.pattern().columns().len())
        });
        let mut own = Self(std::ptr::null_mut());
        let (block, a) = (edge as i64, &mut own.0);
        match arrays.as_slice() {
            [columns, values] => {
                let (m, k, width) = (m as i64, k as i64, (widest * edge) as i64);
                let (columns, values) = (at(columns), at(values));
                // SAFETY: the arrays are returned with the descriptor, and were created with these extents.
                let status = unsafe {
                    sys::cusparseCreateBlockedEll(
                        a, m, k, block, width, columns, values, INDEX, ZERO, value,
                    )
                };
                check(status, "cusparseCreateBlockedEll")?;
            }
            [offsets, columns, values] => {
                let (rows, cols, count) = ((m / edge) as i64, (k / edge) as i64, count as i64);
                let [offsets, columns, values] = [offsets, columns, values].map(at);
                // SAFETY: the arrays are returned with the descriptor, and were created with these extents.
                let status = unsafe {
                    sys::cusparseCreateBsr(
                        a, rows, cols, count, block, block, offsets, columns, values, INDEX, INDEX,
                        ZERO, value, BY_ROWS,
                    )
                };
                check(status, "cusparseCreateBsr")?;
            }
            _ => return Err("blocks have two or three arrays".into()),
        }
        Ok((own, arrays))
    }
}

/// One SpMM: descriptors, scalars and the buffer. All must live while it runs.
pub struct Spmm {
    pub handle: sys::cusparseHandle_t,
    pub algorithm: Algorithm,
    pub compute: sys::cudaDataType,
    pub a: Sparse,
    pub b: Full,
    pub c: Full,
    /// alpha = 1 and beta = 0 in the compute type, of at most eight bytes.
    pub scalars: [[u8; 8]; 2],
    pub buffer: Option<Buffer>,
}

impl Spmm {
    /// Allocates the buffer and preprocesses. Returns whether the algorithm supports preprocessing.
    pub fn preprocess(&mut self) -> Result<bool> {
        let [alpha, beta] = addresses(&self.scalars);
        let (h, t, alg, none) = (self.handle, self.compute, self.algorithm, NO_TRANSPOSE);
        let (a, b, c, mut bytes) = (self.a.0, self.b.0, self.c.0, 0usize);
        // SAFETY: descriptors are complete, scalars are host memory in the compute type.
        let status = unsafe {
            let size = &mut bytes;
            sys::cusparseSpMM_bufferSize(h, none, none, alpha, a, b, beta, c, t, alg, size)
        };
        check(status, "cusparseSpMM_bufferSize")?;
        let buffer = Buffer::new(bytes)?;
        let work = at(&buffer);
        self.buffer = Some(buffer);
        // SAFETY: descriptors are complete, scalars are host memory in the compute type; the buffer has the requested
        // size and lives as long as the descriptors.
        let status = unsafe {
            sys::cusparseSpMM_preprocess(h, none, none, alpha, a, b, beta, c, t, alg, work)
        };
        Ok(status == sys::cusparseStatus_t::CUSPARSE_STATUS_SUCCESS)
    }

    pub fn run(&self) -> Result<()> {
        let [alpha, beta] = addresses(&self.scalars);
        let (h, t, alg, none) = (self.handle, self.compute, self.algorithm, NO_TRANSPOSE);
        let (a, b, c) = (self.a.0, self.b.0, self.c.0);
        let work = self.buffer.as_ref().map_or(std::ptr::null_mut(), at);
        // SAFETY: as in `preprocess`.
        let status =
            unsafe { sys::cusparseSpMM(h, none, none, alpha, a, b, beta, c, t, alg, work) };
        check(status, "cusparseSpMM")
    }
}

/// SpMM of 8-bit integers into int32: CSR, row-major B and C. `sparse`: row offsets, columns, values.
pub fn whole(
    handle: &Handle,
    algorithm: Algorithm,
    ([m, k, n], nnz): ([usize; 3], usize),
    sparse: [&Buffer; 3],
    [b, c]: [&Buffer; 2],
) -> Result<Spmm> {
    use sys::cudaDataType_t::{CUDA_R_8I, CUDA_R_32I};
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
    Ok(product)
}

/// Addresses of both scalars.
pub fn addresses(scalars: &[[u8; 8]; 2]) -> [*const c_void; 2] {
    scalars.each_ref().map(|scalar| scalar.as_ptr().cast())
}

pub fn at(buffer: &Buffer) -> *mut c_void {
    buffer.ptr as *mut c_void
}

/// Engine of the fastest algorithm for nonzeros or for blocks, or of the default algorithm.
pub struct CuSparse {
    handle: Handle,
    default: bool,
}

impl CuSparse {
    /// Opens the library. `default` selects the algorithm that the library uses by default.
    pub fn open(gpu: &Gpu, default: bool) -> Result<Self> {
        let handle = Handle::open(gpu)?;
        Ok(Self { handle, default })
    }

    /// Library version, e.g. 12603.
    pub fn version(&self) -> i32 {
        let mut version = 0;
        // SAFETY: out-pointer; the handle is open.
        unsafe { sys::cusparseGetVersion(self.handle.0, &mut version) };
        version
    }

    /// Returns the product of a case, and the arrays of A for blocks, because the case stores only single nonzeros.
    fn product(&self, case: &Case<'_>, algorithm: Algorithm) -> Result<(Spmm, Vec<Buffer>)> {
        let ((m, k, _), (value, compute)) = (case.problem.extents(), types(case.dtype()));
        let (a, blocks) = match case.problem.block {
            Some(edge) => Sparse::blocks(case, edge, algorithm)?,
            None => (Sparse::entries(case, algorithm)?, Vec::new()),
        };
        let product = Spmm {
            handle: self.handle.0,
            algorithm,
            compute,
            a,
            b: Full::new(k, case.n, &case.operands.b, value)?,
            c: Full::new(m, case.n, &case.operands.c, value)?,
            scalars: scalars(case.dtype()),
            buffer: None,
        };
        Ok((product, blocks))
    }
}

/// Columns, where -1 is padding, and values as a row-major matrix of all rows and `widest` blocks.
fn ell_arrays<T: Element>(blocks: &Bsr<T>, widest: usize) -> Result<Vec<Buffer>> {
    let pattern = blocks.pattern();
    let (edge, offsets) = (pattern.block().0, pattern.offsets());
    let rows = offsets.len() - 1;
    let mut columns = vec![-1i32; rows * widest];
    let mut values = vec![T::ZERO; rows * widest * edge * edge];
    for row in 0..rows {
        for (slot, p) in (offsets[row] as usize..offsets[row + 1] as usize).enumerate() {
            columns[row * widest + slot] = pattern.columns()[p] as i32;
            for (inner, line) in
                blocks.values()[p * edge * edge..][..edge * edge].chunks(edge).enumerate()
            {
                let start = ((row * edge + inner) * widest + slot) * edge;
                values[start..start + edge].copy_from_slice(line);
            }
        }
    }
    Ok(vec![Buffer::from_slice(&columns)?, Buffer::from_slice(&values)?])
}

impl Engine for CuSparse {
    fn name(&self) -> &'static str {
        if self.default { "cusparse-default" } else { "cusparse" }
    }

    fn variants(&self, case: &Case<'_>) -> Vec<String> {
        let (_, _, nnz) = case.problem.extents();
        let names = match case.problem.op {
            _ if nnz == 0 => Vec::new(),
            "spmm" if case.dtype() == Dtype::Tf32 => Vec::new(),
            "spmm" if self.default => vec![DEFAULT.0],
            "spmm" => ALGORITHMS.iter().map(|a| a.0).collect(),
            "block_spmm" if !self.default => BLOCKS.iter().map(|a| a.0).collect(),
            _ => Vec::new(),
        };
        names.into_iter().map(str::to_owned).collect()
    }

    fn prepare<'a>(&'a self, case: &Case<'a>, variant: &str) -> Result<Prepared<'a>> {
        let mut known = ALGORITHMS.iter().chain(&BLOCKS).chain([&DEFAULT]);
        let known = known.find(|(name, _)| *name == variant);
        let &(_, algorithm) = known.ok_or_else(|| format!("no cuSPARSE algorithm {variant}"))?;
        let (mut product, blocks) = self.product(case, algorithm)?;
        case.gpu.wait()?;
        let start = Instant::now();
        let preprocessed = product.preprocess()?;
        case.gpu.wait()?;
        let prepare_ms = start.elapsed().as_secs_f64() * 1e3;
        let prepared_bytes = product.buffer.as_ref().map_or(0, |b| b.bytes);
        let run = move || {
            let _alive = &blocks;
            product.run()
        };
        Ok(Prepared {
            run: Box::new(run),
            prepare_ms,
            prepared_bytes,
            zeros: match case.problem.block {
                Some(_) => "dense",
                None => "strict",
            },
            note: match preprocessed {
                true => String::new(),
                false => "no preprocess".into(),
            },
        })
    }

    /// CSR_ALG2 and COO_ALG4 round partial sums to the output's type; blocks of f32 may be rounded to TF32.
    fn tolerance(&self, dtype: Dtype) -> Option<f64> {
        Some(match dtype {
            Dtype::F64 => 1e-13,
            Dtype::F32 => 1e-5,
            Dtype::Tf32 => 2e-3,
            Dtype::F16 => 3e-3,
            Dtype::Bf16 => 2e-2,
        })
    }
}

/// Types of the values and of the arithmetic.
pub fn types(dtype: Dtype) -> (sys::cudaDataType, sys::cudaDataType) {
    use sys::cudaDataType_t as T;
    match dtype {
        Dtype::F64 => (T::CUDA_R_64F, T::CUDA_R_64F),
        Dtype::F32 | Dtype::Tf32 => (T::CUDA_R_32F, T::CUDA_R_32F),
        Dtype::F16 => (T::CUDA_R_16F, T::CUDA_R_32F),
        Dtype::Bf16 => (T::CUDA_R_16BF, T::CUDA_R_32F),
    }
}

/// One and zero in the type of the arithmetic.
pub fn scalars(dtype: Dtype) -> [[u8; 8]; 2] {
    let mut one = [0; 8];
    match dtype {
        Dtype::F64 => one = 1f64.to_ne_bytes(),
        _ => one[..4].copy_from_slice(&1f32.to_ne_bytes()),
    }
    [one, [0; 8]]
}
