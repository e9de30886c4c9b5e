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

/// Storage orders of the operands of a product. Without other words an operand is row-major; C always is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Rows,
    /// B is `[n, k]`: both operands are contiguous along k.
    AlongK,
    /// A is `[k, m]`.
    Turned,
}

const AS_IS: sys::cublasOperation_t = sys::cublasOperation_t::CUBLAS_OP_N;
const TURNED: sys::cublasOperation_t = sys::cublasOperation_t::CUBLAS_OP_T;

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

    /// Name in the record.
    pub fn engine(&self) -> &'static str {
        if self.tf32 { "cublas-tf32" } else { "cublas" }
    }

    /// C = A B of `[m, k, n]`. In the library's column-major order this is C^T = B^T A^T, so the operands are swapped.
    pub fn gemm(
        &self,
        dtype: Dtype,
        extents: [usize; 3],
        pointers: [u64; 3],
        order: Order,
    ) -> Result<()> {
        let (t, compute) = self.types(dtype);
        let (ones, zeros) = ((1f32, 1f64), (0f32, 0f64));
        let scalar = |both: &(f32, f64)| -> *const c_void {
            match dtype {
                Dtype::F64 => (&raw const both.1).cast(),
                _ => (&raw const both.0).cast(),
            }
        };
        let (one, zero) = (scalar(&ones), scalar(&zeros));
        let [m, k, n] = extents.map(|x| x as i32);
        let (h, plan) = (self.handle, sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT);
        let (op_b, ldb) = if order == Order::AlongK { (TURNED, k) } else { (AS_IS, n) };
        let (op_a, lda) = if order == Order::Turned { (TURNED, m) } else { (AS_IS, k) };
        let [a, b, c] = pointers.map(|x| x as *mut c_void);
        // SAFETY: a, b, c are device buffers of m*k, k*n, m*n elements; the scalars are read before the call returns.
        let status = unsafe {
            sys::cublasGemmEx(
                h, op_b, op_a, n, m, k, one, b, t, ldb, a, t, lda, zero, c, t, n, compute, plan,
            )
        };
        check(status, "cublasGemmEx")
    }

    /// C = A B for each item of `[batch, m, k, n]`, all row-major and contiguous; not for f64.
    pub fn gemm_batched(
        &self,
        dtype: Dtype,
        extents: [usize; 4],
        pointers: [u64; 3],
    ) -> Result<()> {
        let (t, compute) = self.types(dtype);
        let (ones, zeros) = (1f32, 0f32);
        let (one, zero) = ((&raw const ones).cast(), (&raw const zeros).cast());
        let [count, m, k, n] = extents.map(|x| x as i32);
        let [_, mi, ki, ni] = extents.map(|x| x as i64);
        let (of_a, of_b, of_c) = (mi * ki, ki * ni, mi * ni);
        let (h, plan) = (self.handle, sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT);
        let [a, b, c] = pointers.map(|x| x as *mut c_void);
        // SAFETY: a, b, c are device buffers of batch times m*k, k*n, m*n elements; the scalars are read before the
        // call returns.
        let status = unsafe {
            sys::cublasGemmStridedBatchedEx(
                h, AS_IS, AS_IS, n, m, k, one, b, t, n, of_b, a, t, k, of_a, zero, c, t, n, of_c,
                count, compute, plan,
            )
        };
        check(status, "cublasGemmStridedBatchedEx")
    }

    /// C = A B for several row-major products, one for each `[m, k, n]` in `extents`, with addresses of each, in one
    /// call; not for f64.
    pub fn gemm_grouped(
        &self,
        dtype: Dtype,
        extents: &[[usize; 3]],
        lists: [&Addresses; 3],
    ) -> Result<()> {
        let (t, compute) = self.types(dtype);
        let groups = extents.len();
        let of = |axis: usize| -> Vec<i32> { extents.iter().map(|e| e[axis] as i32).collect() };
        let all = [of(0), of(1), of(2)];
        let [m, k, n] = all.each_ref().map(|list| list.as_ptr());
        let (ops, singles) = (vec![AS_IS; groups], vec![1i32; groups]);
        let (ones, zeros) = (vec![1f32; groups], vec![0f32; groups]);
        let (op, each) = (ops.as_ptr(), singles.as_ptr());
        let (one, zero) = (ones.as_ptr().cast(), zeros.as_ptr().cast());
        let [a, b, c] = lists.map(|own| own.list.ptr as *const *const c_void);
        let (h, c, count) = (self.handle, c as *const *mut c_void, groups as i32);
        // SAFETY: the lists hold one device address of m*k, k*n, m*n elements for each group; host arrays are read
        // before the call returns.
        let status = unsafe {
            sys::cublasGemmGroupedBatchedEx(
                h, op, op, n, m, k, one, b, t, n, a, t, k, zero, c, t, n, count, each, compute,
            )
        };
        check(status, "cublasGemmGroupedBatchedEx")
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
        self.engine()
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
            self.gemm(dtype, extents, [dense.ptr, b, c], Order::Rows)
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
