//! cuBLAS: the dense product of the densified A, with f32 accumulation (f64 for f64). TF32 is used only in the engine
//! that names it.

use crate::case::{Case, Engine, Prepared};
use crate::device::{Buffer, Gpu, Result};
use crate::problems::Dtype;
use cudarc::cublas::sys;
use std::ffi::c_void;

/// Max bytes of a dense A. It excludes graphs.
const DENSE_LIMIT: usize = 2 << 30;
/// Bytes of workspace that the library gets, so that it allocates nothing in timed runs.
const WORKSPACE: usize = 64 << 20;

/// Dense baseline.
pub struct CuBlas {
    handle: sys::cublasHandle_t,
    tf32: bool,
    _workspace: Buffer,
}

/// List of device addresses, in device memory.
pub struct Addresses {
    list: Buffer,
}

impl Addresses {
    /// Uploads a list of addresses.
    pub fn new(all: impl Iterator<Item = u64>) -> Result<Self> {
        let list = Buffer::from_slice(&all.collect::<Vec<u64>>())?;
        Ok(Self { list })
    }
}

fn check(status: sys::cublasStatus_t, call: &str) -> Result<()> {
    match status {
        sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        _ => Err(format!("{call}: {status:?}").into()),
    }
}

impl CuBlas {
    /// Opens the library on the GPU's stream. `tf32` lets f32 products round their inputs to TF32.
    pub fn open(gpu: &Gpu, tf32: bool) -> Result<Self> {
        // SAFETY: only tries to open the library.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcublas does not load (LD_LIBRARY_PATH must name its folder)".into());
        }
        let workspace = Buffer::new(WORKSPACE)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: out-pointer; a context is current; the workspace lives as long as the handle. SetStream resets
        // the workspace, so it comes first.
        unsafe {
            check(sys::cublasCreate_v2(&mut handle), "cublasCreate")?;
            check(sys::cublasSetStream_v2(handle, gpu.stream.cast()), "cublasSetStream")?;
            let at = workspace.ptr as *mut c_void;
            check(sys::cublasSetWorkspace_v2(handle, at, WORKSPACE), "cublasSetWorkspace")?;
        }
        Ok(Self { handle, tf32, _workspace: workspace })
    }

    pub fn version(&self) -> i32 {
        let mut version = 0;
        // SAFETY: out-pointer; the handle is open.
        unsafe { sys::cublasGetVersion_v2(self.handle, &mut version) };
        version
    }

    /// C = A B, all row-major. In column-major order this is C^T = B^T A^T, so the operands are swapped.
    pub fn gemm(&self, dtype: Dtype, extents: [usize; 3], pointers: [u64; 3]) -> Result<()> {
        self.product(dtype, extents, pointers, [false; 2])
    }

    /// C = A B^T, all row-major: both operands are contiguous along k.
    pub fn gemm_by_rows(
        &self,
        dtype: Dtype,
        extents: [usize; 3],
        pointers: [u64; 3],
    ) -> Result<()> {
        self.product(dtype, extents, pointers, [false, true])
    }

    /// C = A^T B, all row-major: A is `[k, m]`.
    pub fn gemm_turned(&self, dtype: Dtype, extents: [usize; 3], pointers: [u64; 3]) -> Result<()> {
        self.product(dtype, extents, pointers, [true, false])
    }

    /// C = A B for each item of `[batch, m, k, n]`, all row-major and contiguous.
    pub fn gemm_batched(
        &self,
        dtype: Dtype,
        [batch, m, k, n]: [usize; 4],
        [a, b, c]: [u64; 3],
    ) -> Result<()> {
        let (kind, compute) = self.types(dtype);
        let (one, zero) = (1f32, 0f32);
        if dtype == Dtype::F64 {
            return Err("batches of f64 are not asked for".into());
        }
        let none = sys::cublasOperation_t::CUBLAS_OP_N;
        let [mi, ki, ni, count] = [m, k, n, batch].map(|x| x as i32);
        let [of_a, of_b, of_c] = [m * k, k * n, m * n].map(|x| x as i64);
        let (a, b, c) = (a as *const c_void, b as *const c_void, c as *mut c_void);
        // SAFETY: a, b, c are device buffers of batch times m*k, k*n, m*n elements; the scalars are read before the
        // call returns.
        let status = unsafe {
            sys::cublasGemmStridedBatchedEx(
                self.handle,
                none,
                none,
                ni,
                mi,
                ki,
                (&raw const one).cast(),
                b,
                kind,
                ni,
                of_b,
                a,
                kind,
                ki,
                of_a,
                (&raw const zero).cast(),
                c,
                kind,
                ni,
                of_c,
                count,
                compute,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        };
        check(status, "cublasGemmStridedBatchedEx")
    }

    /// C = A B for several row-major products, one for each `[m, k, n]` in `extents`, with addresses of each, in one
    /// call.
    pub fn gemm_grouped(
        &self,
        dtype: Dtype,
        extents: &[[usize; 3]],
        [a, b, c]: [&Addresses; 3],
    ) -> Result<()> {
        if dtype == Dtype::F64 {
            return Err("groups of f64 are not asked for".into());
        }
        let (kind, compute) = self.types(dtype);
        let groups = extents.len();
        let none = vec![sys::cublasOperation_t::CUBLAS_OP_N; groups];
        let of = |axis: usize| -> Vec<i32> { extents.iter().map(|e| e[axis] as i32).collect() };
        let (m, k, n) = (of(0), of(1), of(2));
        let (ones, zeros, each) = (vec![1f32; groups], vec![0f32; groups], vec![1i32; groups]);
        // SAFETY: the lists hold one device address of m*k, k*n, m*n elements for each group; host arrays are read
        // before the call returns.
        let status = unsafe {
            sys::cublasGemmGroupedBatchedEx(
                self.handle,
                none.as_ptr(),
                none.as_ptr(),
                n.as_ptr(),
                m.as_ptr(),
                k.as_ptr(),
                ones.as_ptr().cast(),
                b.list.ptr as *const *const c_void,
                kind,
                n.as_ptr(),
                a.list.ptr as *const *const c_void,
                kind,
                k.as_ptr(),
                zeros.as_ptr().cast(),
                c.list.ptr as *const *mut c_void,
                kind,
                n.as_ptr(),
                groups as i32,
                each.as_ptr(),
                compute,
            )
        };
        check(status, "cublasGemmGroupedBatchedEx")
    }

    fn product(
        &self,
        dtype: Dtype,
        [m, k, n]: [usize; 3],
        [a, b, c]: [u64; 3],
        [turned, by_rows]: [bool; 2],
    ) -> Result<()> {
        let (kind, compute) = self.types(dtype);
        let (one32, zero32, one64, zero64) = (1f32, 0f32, 1f64, 0f64);
        let (one, zero): (*const c_void, *const c_void) = if dtype == Dtype::F64 {
            ((&raw const one64).cast(), (&raw const zero64).cast())
        } else {
            ((&raw const one32).cast(), (&raw const zero32).cast())
        };
        let (none, algorithm) =
            (sys::cublasOperation_t::CUBLAS_OP_N, sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT);
        let (mi, ki, ni) = (m as i32, k as i32, n as i32);
        let swapped = sys::cublasOperation_t::CUBLAS_OP_T;
        let (first, ldb) = if by_rows { (swapped, ki) } else { (none, ni) };
        let (second, lda) = if turned { (swapped, mi) } else { (none, ki) };
        let (a, b, c) = (a as *const c_void, b as *const c_void, c as *mut c_void);
        // SAFETY: a, b, c are device buffers of m*k, k*n, m*n elements; the scalars are read before the call returns.
        let status = unsafe {
            sys::cublasGemmEx(
                self.handle,
                first,
                second,
                ni,
                mi,
                ki,
                one,
                b,
                kind,
                ldb,
                a,
                kind,
                lda,
                zero,
                c,
                kind,
                ni,
                compute,
                algorithm,
            )
        };
        check(status, "cublasGemmEx")
    }

    fn types(&self, dtype: Dtype) -> (sys::cudaDataType, sys::cublasComputeType_t) {
        use sys::cublasComputeType_t as Compute;
        use sys::cudaDataType_t as T;
        match dtype {
            Dtype::F64 => (T::CUDA_R_64F, Compute::CUBLAS_COMPUTE_64F),
            Dtype::F32 | Dtype::Tf32 if self.tf32 => {
                (T::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F_FAST_TF32)
            }
            Dtype::F32 | Dtype::Tf32 => (T::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F),
            Dtype::F16 => (T::CUDA_R_16F, Compute::CUBLAS_COMPUTE_32F),
            Dtype::Bf16 => (T::CUDA_R_16BF, Compute::CUBLAS_COMPUTE_32F),
        }
    }

    /// Element types of this engine: `cublas-tf32` for f32 storage, `cublas` for everything strict.
    pub fn covers(&self, dtype: Dtype) -> bool {
        match dtype {
            Dtype::F32 => true,
            Dtype::Tf32 => self.tf32,
            _ => !self.tf32,
        }
    }
}

impl Drop for CuBlas {
    fn drop(&mut self) {
        // SAFETY: created in `open`, destroyed once, before its workspace.
        unsafe { sys::cublasDestroy_v2(self.handle) };
    }
}

impl Engine for CuBlas {
    fn name(&self) -> &'static str {
        if self.tf32 { "cublas-tf32" } else { "cublas" }
    }

    fn variants(&self, case: &Case<'_>) -> Vec<String> {
        let (m, k, _) = case.problem.extents();
        let fits = m * k * case.dtype().size() <= DENSE_LIMIT;
        if fits && self.covers(case.dtype()) { vec!["dense".into()] } else { Vec::new() }
    }

    fn prepare<'a>(&'a self, case: &Case<'a>, _variant: &str) -> Result<Prepared<'a>> {
        let (m, k, _) = case.problem.extents();
        let (dtype, operands, gpu) = (case.dtype(), case.operands, case.gpu);
        let dense = Buffer::new(m * k * dtype.size())?;
        let (start, end) = gpu.events[0];
        gpu.record(start)?;
        case.densify(&dense)?;
        gpu.record(end)?;
        gpu.wait()?;
        let prepare_ms = gpu.elapsed(start, end)?;
        let (extents, b, c) = ([m, k, case.n], operands.b.ptr, operands.c.ptr);
        let prepared_bytes = dense.bytes;
        let run = Box::new(move || {
            // Borrows the whole struct: a closure that uses only a field would capture a copy of the address and drop
            // the buffer.
            let dense = &dense;
            self.gemm(dtype, extents, [dense.ptr, b, c])
        });
        Ok(Prepared { run, prepare_ms, prepared_bytes, zeros: "dense", note: String::new() })
    }

    fn tolerance(&self, dtype: Dtype) -> Option<f64> {
        Some(match dtype {
            Dtype::F64 => 1e-13,
            Dtype::F32 if !self.tf32 => 1e-5,
            Dtype::F32 | Dtype::Tf32 => 2e-3,
            Dtype::F16 => 3e-3,
            Dtype::Bf16 => 2e-2,
        })
    }
}
