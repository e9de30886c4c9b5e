//! cuSPARSE SpMM: row-major B and C, every algorithm that takes them, preprocessed outside the time. Matrices of blocks as BSR and
//! as Blocked-ELL, the others as CSR and COO.

use crate::case::{Case, Engine, Prepared};
use crate::device::{Buffer, Gpu, Result};
use crate::ours::{by_dtype, text};
use crate::problems::Dtype;
use cudarc::cusparse::sys::{self, cusparseSpMMAlg_t as Algorithm};
use einsparse::formats::{Bsr, Csr, Element, bf16, convert, f16};
use std::ffi::c_void;
use std::time::Instant;

const ALGORITHMS: [(&str, Algorithm); 4] = [
    ("CSR_ALG1", Algorithm::CUSPARSE_SPMM_CSR_ALG1),
    ("CSR_ALG2", Algorithm::CUSPARSE_SPMM_CSR_ALG2),
    ("CSR_ALG3", Algorithm::CUSPARSE_SPMM_CSR_ALG3),
    ("COO_ALG4", Algorithm::CUSPARSE_SPMM_COO_ALG4),
];
/// For matrices of blocks.
const BLOCKS: [(&str, Algorithm); 2] = [
    ("BSR_ALG1", Algorithm::CUSPARSE_SPMM_BSR_ALG1),
    (
        "BLOCKED_ELL_ALG1",
        Algorithm::CUSPARSE_SPMM_BLOCKED_ELL_ALG1,
    ),
];
const DEFAULT: (&str, Algorithm) = ("ALG_DEFAULT", Algorithm::CUSPARSE_SPMM_ALG_DEFAULT);
const NO_TRANSPOSE: sys::cusparseOperation_t =
    sys::cusparseOperation_t::CUSPARSE_OPERATION_NON_TRANSPOSE;

/// The best of the algorithms for entries or for blocks, or the default one.
pub struct CuSparse {
    handle: sys::cusparseHandle_t,
    default: bool,
}

/// A failed call in words.
pub fn check(status: sys::cusparseStatus_t, call: &str) -> Result<()> {
    let fine = status == sys::cusparseStatus_t::CUSPARSE_STATUS_SUCCESS;
    if fine {
        Ok(())
    } else {
        Err(format!("{call}: {status:?}"))
    }
}

impl CuSparse {
    /// Opens the library on the GPU's stream; `default` = what a caller gets who chooses nothing.
    pub fn open(gpu: &Gpu, default: bool) -> Result<Self> {
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
        Ok(Self { handle, default })
    }

    /// Library version, e.g. 12603.
    pub fn version(&self) -> i32 {
        let mut version = 0;
        // SAFETY: out-pointer; the handle is open.
        unsafe { sys::cusparseGetVersion(self.handle, &mut version) };
        version
    }
}

impl Drop for CuSparse {
    fn drop(&mut self) {
        // SAFETY: created in `open`, destroyed once.
        unsafe { sys::cusparseDestroy(self.handle) };
    }
}

/// One product: descriptors, scalars and the buffer, kept as long as it is run.
struct Product {
    handle: sys::cusparseHandle_t,
    algorithm: Algorithm,
    compute: sys::cudaDataType,
    a: sys::cusparseSpMatDescr_t,
    b: sys::cusparseDnMatDescr_t,
    c: sys::cusparseDnMatDescr_t,
    /// alpha = 1 and beta = 0 in the compute type: both f32 and f64 fit.
    scalars: [[u8; 8]; 2],
    buffer: Option<Buffer>,
    /// Of blocks: the arrays of A, which the case holds entry by entry.
    blocks: Vec<Buffer>,
}

impl Product {
    fn new(handle: sys::cusparseHandle_t, case: &Case<'_>, algorithm: Algorithm) -> Result<Self> {
        let (m, k, _) = case.problem.extents();
        let mut product = Self {
            handle,
            algorithm,
            compute: types(case.dtype()).1,
            a: std::ptr::null_mut(),
            b: std::ptr::null_mut(),
            c: std::ptr::null_mut(),
            scalars: scalars(case.dtype()),
            buffer: None,
            blocks: Vec::new(),
        };
        match case.problem.block {
            Some(edge) => product.describe_blocks(case, edge)?,
            None => product.describe_a(case)?,
        }
        describe_dense(&mut product.b, k, case, &case.operands.b)?;
        describe_dense(&mut product.c, m, case, &case.operands.c)?;
        Ok(product)
    }

    /// COO for the algorithm that takes it, else CSR; the same arrays.
    fn describe_a(&mut self, case: &Case<'_>) -> Result<()> {
        let (m, k, nnz) = case.problem.extents();
        let (m, k, nnz) = (m as i64, k as i64, nnz as i64);
        let value = types(case.dtype()).0;
        let index = sys::cusparseIndexType_t::CUSPARSE_INDEX_32I;
        let base = sys::cusparseIndexBase_t::CUSPARSE_INDEX_BASE_ZERO;
        let operands = case.operands;
        let (rows, columns) = (at(&operands.rows), at(&operands.columns));
        let (offsets, values, a) = (at(&operands.offsets), at(&operands.values), &mut self.a);
        if self.algorithm == Algorithm::CUSPARSE_SPMM_COO_ALG4 {
            // SAFETY: the device arrays hold nnz elements each and outlive the descriptor.
            let status = unsafe {
                sys::cusparseCreateCoo(a, m, k, nnz, rows, columns, values, index, base, value)
            };
            return check(status, "cusparseCreateCoo");
        }
        // SAFETY: as above; the offsets are m + 1.
        let status = unsafe {
            sys::cusparseCreateCsr(
                a, m, k, nnz, offsets, columns, values, index, index, base, value,
            )
        };
        check(status, "cusparseCreateCsr")
    }

    /// BSR or Blocked-ELL, made of the case's entries.
    fn describe_blocks(&mut self, case: &Case<'_>, edge: usize) -> Result<()> {
        let (m, k, nnz) = case.problem.extents();
        let (rows, cols) = ((m / edge) as i64, (k / edge) as i64);
        let value = types(case.dtype()).0;
        let ell = self.algorithm == Algorithm::CUSPARSE_SPMM_BLOCKED_ELL_ALG1;
        let (arrays, widest, count) = by_dtype!(case.dtype(), T => {
            let entries = case.values.entries::<T>(nnz);
            let csr = Csr::new(case.problem.pattern.clone(), entries).map_err(text)?;
            let blocks = convert::csr_to_bsr(&csr, (edge, edge)).map_err(text)?;
            let widest = widest(blocks.pattern().offsets());
            let arrays = match ell {
                true => ell_arrays(&blocks, widest)?,
                false => bsr_arrays(&blocks)?,
            };
            (arrays, widest, blocks.pattern().columns().len())
        });
        self.blocks = arrays;
        let index = sys::cusparseIndexType_t::CUSPARSE_INDEX_32I;
        let base = sys::cusparseIndexBase_t::CUSPARSE_INDEX_BASE_ZERO;
        let order = sys::cusparseOrder_t::CUSPARSE_ORDER_ROW;
        let (block, width) = (edge as i64, (widest * edge) as i64);
        match self.blocks.as_slice() {
            // SAFETY: the arrays belong to this product, and were made with these extents.
            [columns, values] => check(
                unsafe {
                    sys::cusparseCreateBlockedEll(
                        &mut self.a,
                        m as i64,
                        k as i64,
                        block,
                        width,
                        at(columns),
                        at(values),
                        index,
                        base,
                        value,
                    )
                },
                "cusparseCreateBlockedEll",
            ),
            // SAFETY: as above.
            [offsets, columns, values] => check(
                unsafe {
                    sys::cusparseCreateBsr(
                        &mut self.a,
                        rows,
                        cols,
                        count as i64,
                        block,
                        block,
                        at(offsets),
                        at(columns),
                        at(values),
                        index,
                        index,
                        base,
                        value,
                        order,
                    )
                },
                "cusparseCreateBsr",
            ),
            _ => Err("blocks have two or three arrays".into()),
        }
    }

    fn alpha_beta(&self) -> (*const c_void, *const c_void) {
        (
            self.scalars[0].as_ptr().cast(),
            self.scalars[1].as_ptr().cast(),
        )
    }

    fn work(&self) -> *mut c_void {
        self.buffer
            .as_ref()
            .map_or(std::ptr::null_mut(), |b| b.ptr as *mut c_void)
    }

    /// Allocates the buffer and preprocesses; true where the algorithm takes a preprocess.
    fn preprocess(&mut self) -> Result<bool> {
        let (alpha, beta) = self.alpha_beta();
        let mut bytes = 0usize;
        let (h, t, alg) = (self.handle, self.compute, self.algorithm);
        // SAFETY: descriptors are complete, scalars are host memory in the compute type.
        let status = unsafe {
            let (none, size) = (NO_TRANSPOSE, &mut bytes);
            sys::cusparseSpMM_bufferSize(
                h, none, none, alpha, self.a, self.b, beta, self.c, t, alg, size,
            )
        };
        check(status, "cusparseSpMM_bufferSize")?;
        self.buffer = Some(Buffer::new(bytes)?);
        // SAFETY: as above; the buffer has the size asked for and lives as long as the descriptors.
        let status = unsafe {
            let none = NO_TRANSPOSE;
            sys::cusparseSpMM_preprocess(
                h,
                none,
                none,
                alpha,
                self.a,
                self.b,
                beta,
                self.c,
                t,
                alg,
                self.work(),
            )
        };
        Ok(status == sys::cusparseStatus_t::CUSPARSE_STATUS_SUCCESS)
    }

    fn run(&self) -> Result<()> {
        let (alpha, beta) = self.alpha_beta();
        let (h, t, alg, none) = (self.handle, self.compute, self.algorithm, NO_TRANSPOSE);
        // SAFETY: as in `preprocess`.
        let status = unsafe {
            sys::cusparseSpMM(
                h,
                none,
                none,
                alpha,
                self.a,
                self.b,
                beta,
                self.c,
                t,
                alg,
                self.work(),
            )
        };
        check(status, "cusparseSpMM")
    }
}

fn at(buffer: &Buffer) -> *mut c_void {
    buffer.ptr as *mut c_void
}

/// Most blocks in a row.
fn widest(offsets: &[u32]) -> usize {
    let rows = offsets.windows(2).map(|ends| ends[1] - ends[0]);
    rows.max().unwrap_or(0) as usize
}

/// Offsets, columns, values, each block by rows.
fn bsr_arrays<T: Element>(blocks: &Bsr<T>) -> Result<Vec<Buffer>> {
    let pattern = blocks.pattern();
    Ok(vec![
        Buffer::from_slice(pattern.offsets())?,
        Buffer::from_slice(pattern.columns())?,
        Buffer::from_slice(blocks.values())?,
    ])
}

/// Columns, of which -1 are padding, and values as a row-major matrix of all rows and `widest` blocks.
fn ell_arrays<T: Element>(blocks: &Bsr<T>, widest: usize) -> Result<Vec<Buffer>> {
    let pattern = blocks.pattern();
    let (edge, offsets) = (pattern.block().0, pattern.offsets());
    let rows = offsets.len() - 1;
    let mut columns = vec![-1i32; rows * widest];
    let mut values = vec![T::ZERO; rows * widest * edge * edge];
    for row in 0..rows {
        for (slot, p) in (offsets[row] as usize..offsets[row + 1] as usize).enumerate() {
            columns[row * widest + slot] = pattern.columns()[p] as i32;
            for (inner, line) in blocks.values()[p * edge * edge..][..edge * edge]
                .chunks(edge)
                .enumerate()
            {
                let start = ((row * edge + inner) * widest + slot) * edge;
                values[start..start + edge].copy_from_slice(line);
            }
        }
    }
    Ok(vec![
        Buffer::from_slice(&columns)?,
        Buffer::from_slice(&values)?,
    ])
}

/// A row-major matrix of `rows` rows and the case's N columns.
fn describe_dense(
    descriptor: &mut sys::cusparseDnMatDescr_t,
    rows: usize,
    case: &Case<'_>,
    buffer: &Buffer,
) -> Result<()> {
    let (rows, n, value) = (rows as i64, case.n as i64, types(case.dtype()).0);
    let order = sys::cusparseOrder_t::CUSPARSE_ORDER_ROW;
    // SAFETY: the buffer holds rows x n elements and outlives the descriptor.
    let status =
        unsafe { sys::cusparseCreateDnMat(descriptor, rows, n, n, at(buffer), value, order) };
    check(status, "cusparseCreateDnMat")
}

impl Drop for Product {
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
        }
    }
}

impl Engine for CuSparse {
    fn name(&self) -> &'static str {
        if self.default {
            "cusparse-default"
        } else {
            "cusparse"
        }
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
        let known = ALGORITHMS
            .iter()
            .chain(&BLOCKS)
            .chain([&DEFAULT])
            .find(|(name, _)| *name == variant);
        let &(_, algorithm) = known.ok_or_else(|| format!("no cuSPARSE algorithm {variant}"))?;
        let mut product = Product::new(self.handle, case, algorithm)?;
        case.gpu.wait()?;
        let start = Instant::now();
        let preprocessed = product.preprocess()?;
        case.gpu.wait()?;
        let prepare_ms = start.elapsed().as_secs_f64() * 1e3;
        let prepared_bytes = product.buffer.as_ref().map_or(0, |b| b.bytes);
        let note = if preprocessed {
            String::new()
        } else {
            "no preprocess".into()
        };
        let run = Box::new(move || product.run());
        Ok(Prepared {
            run,
            prepare_ms,
            prepared_bytes,
            zeros: if case.problem.block.is_some() {
                "dense"
            } else {
                "strict"
            },
            note,
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

/// Type of the values and of the arithmetic.
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
