//! cuSPARSELt: 2:4 matrices on sparse Tensor Cores, row-major B and C, by the algorithm that its search finds fastest.
//! Times exclude compression and search.

use crate::case::{Case, Engine, Prepared};
use crate::device::{Buffer, Result};
use crate::problems::Dtype;
use libloading::os::unix::Library;
use std::ffi::{c_int, c_void};
use std::time::Instant;

/// File names of the library, the newest first.
const NAMES: [&str; 2] = ["libcusparseLt.so.0", "libcusparseLt.so"];
/// Constants of the library's headers.
const ORDER_ROW: c_int = 2;
const NO_TRANSPOSE: c_int = 0;
const HALF_OF_FOUR: c_int = 0;
const COMPUTE_F32: c_int = 2;
const DEFAULT_ALGORITHM: c_int = 0;
const SEARCH_ITERATIONS: c_int = 2;
/// Runs of each algorithm in a search. The library's default is five, which is too noisy.
const ITERATIONS: c_int = 40;
/// Bytes to which rows of the operands are aligned.
const ALIGNMENT: u32 = 16;

/// Memory for one of the library's opaque structures, the largest of any version.
#[repr(C, align(64))]
struct Opaque([u8; 16384]);

impl Opaque {
    fn new() -> Box<Self> {
        Box::new(Self([0; 16384]))
    }
}

type At = *mut c_void;

/// The opened library.
pub struct CuSparseLt {
    loaded: Library,
    handle: Box<Opaque>,
}

impl CuSparseLt {
    pub fn open() -> Result<Self> {
        // SAFETY: NVIDIA's library, whose initialisers only initialise it.
        let opened = NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok());
        let library = opened.ok_or_else(|| {
            format!("{} does not load (LD_LIBRARY_PATH must name its folder)", NAMES[0])
        })?;
        let mut own = Self { loaded: library, handle: Opaque::new() };
        let handle: At = (&raw mut *own.handle).cast();
        // SAFETY: the signature is that of the library's header; the handle is large enough.
        unsafe { own.call::<unsafe extern "C" fn(At) -> c_int>("cusparseLtInit", |f| f(handle)) }?;
        Ok(own)
    }

    /// Calls the function of this name.
    ///
    /// # Safety
    /// `F` is its signature, and `call` satisfies the requirements in its documentation.
    unsafe fn call<F: Copy>(&self, name: &str, call: impl FnOnce(F) -> c_int) -> Result<()> {
        // SAFETY: the caller guarantees the signature.
        let function = unsafe { self.loaded.get::<F>(name.as_bytes()) };
        let function = *function.map_err(|e| format!("{name}: {e}"))?;
        match call(function) {
            0 => Ok(()),
            status => Err(format!("{name}: status {status}").into()),
        }
    }

    fn at(&self) -> At {
        (&raw const *self.handle).cast_mut().cast()
    }
}

impl Drop for CuSparseLt {
    fn drop(&mut self) {
        let handle: At = (&raw mut *self.handle).cast();
        // SAFETY: created in `open`, destroyed once, after every product.
        let _ = unsafe {
            type Destroy = unsafe extern "C" fn(At) -> c_int;
            self.call::<Destroy>("cusparseLtDestroy", |f| f(handle))
        };
    }
}

/// One product, after compression and search.
struct Product<'a> {
    lt: &'a CuSparseLt,
    plan: Box<Opaque>,
    /// Descriptors that the plan references.
    _descriptions: [Box<Opaque>; 5],
    compressed: Buffer,
    workspace: Buffer,
    b: u64,
    c: u64,
    stream: At,
}

/// The library's number of an element type.
fn kind(dtype: Dtype) -> Option<c_int> {
    match dtype {
        Dtype::F16 => Some(2),
        Dtype::Bf16 => Some(14),
        _ => None,
    }
}

type Structured = unsafe extern "C" fn(At, At, i64, i64, i64, u32, c_int, c_int, c_int) -> c_int;
type Full = unsafe extern "C" fn(At, At, i64, i64, i64, u32, c_int, c_int) -> c_int;
type Describe = unsafe extern "C" fn(At, At, c_int, c_int, At, At, At, At, c_int) -> c_int;
type Select = unsafe extern "C" fn(At, At, At, c_int) -> c_int;
type Attribute = unsafe extern "C" fn(At, At, c_int, At, usize) -> c_int;
type Plan = unsafe extern "C" fn(At, At, At, At) -> c_int;
type Size = unsafe extern "C" fn(At, At, *mut usize) -> c_int;
type Sizes = unsafe extern "C" fn(At, At, *mut usize, *mut usize) -> c_int;
type Compress = unsafe extern "C" fn(At, At, At, At, At, At) -> c_int;
type Multiply = unsafe extern "C" fn(At, At, At, At, At, At, At, At, At, *mut At, c_int) -> c_int;

impl<'a> Product<'a> {
    fn new(library: &'a CuSparseLt, case: &Case<'_>, dense: &Buffer) -> Result<Self> {
        let (m, k, _) = case.problem.extents();
        let (m, k, n) = (m as i64, k as i64, case.n as i64);
        let kind = kind(case.dtype()).ok_or("cuSPARSELt is asked for f16 and bf16")?;
        let mut all: [Box<Opaque>; 6] = std::array::from_fn(|_| Opaque::new());
        let [a, b, c, product, selection, plan] =
            std::array::from_fn(|i| -> At { (&raw mut *all[i]).cast() });
        let lib = library.at();
        let (mut workspace, mut bytes, mut scratch) = (0usize, 0usize, 0usize);
        // SAFETY: signatures of the library's header; every structure is large enough and is initialized before its
        // use, and the sizes are out-pointers.
        unsafe {
            library.call::<Structured>("cusparseLtStructuredDescriptorInit", |f| {
                f(lib, a, m, k, k, ALIGNMENT, kind, ORDER_ROW, HALF_OF_FOUR)
            })?;
            for (matrix, rows) in [(b, k), (c, m)] {
                library.call::<Full>("cusparseLtDenseDescriptorInit", |f| {
                    f(lib, matrix, rows, n, n, ALIGNMENT, kind, ORDER_ROW)
                })?;
            }
            library.call::<Describe>("cusparseLtMatmulDescriptorInit", |f| {
                f(lib, product, NO_TRANSPOSE, NO_TRANSPOSE, a, b, c, c, COMPUTE_F32)
            })?;
            library.call::<Select>("cusparseLtMatmulAlgSelectionInit", |f| {
                f(lib, selection, product, DEFAULT_ALGORITHM)
            })?;
            let mut iterations = ITERATIONS;
            library.call::<Attribute>("cusparseLtMatmulAlgSetAttribute", |f| {
                let value: At = (&raw mut iterations).cast();
                f(lib, selection, SEARCH_ITERATIONS, value, size_of::<c_int>())
            })?;
            library
                .call::<Plan>("cusparseLtMatmulPlanInit", |f| f(lib, plan, product, selection))?;
            library.call::<Sizes>("cusparseLtSpMMACompressedSize", |f| {
                f(lib, plan, &mut bytes, &mut scratch)
            })?;
        }
        let (compressed, scratch) = (Buffer::new(bytes)?, Buffer::new(scratch)?);
        let stream: At = case.gpu.stream.cast();
        let [a, b, c, product, selection, plan] = all;
        let mut own = Self {
            lt: library,
            plan,
            _descriptions: [a, b, c, product, selection],
            compressed,
            workspace: Buffer::new(0)?,
            b: case.operands.b.ptr,
            c: case.operands.c.ptr,
            stream,
        };
        let at = own.at();
        // SAFETY: signatures of the library's header; device buffers of the described extents, one stream.
        unsafe {
            library.call::<Compress>("cusparseLtSpMMACompress", |f| {
                let to = own.compressed.ptr as At;
                f(lib, at, dense.ptr as At, to, scratch.ptr as At, stream)
            })?;
        }
        own.multiply("cusparseLtMatmulSearch", std::ptr::null_mut())?;
        // SAFETY: signature of the library's header. The size is that of the selected algorithm.
        unsafe {
            library.call::<Size>("cusparseLtMatmulGetWorkspace", |f| f(lib, at, &mut workspace))?;
        }
        own.workspace = Buffer::new(workspace)?;
        Ok(own)
    }

    fn at(&self) -> At {
        (&raw const *self.plan).cast_mut().cast()
    }

    /// Calls the product, or the search for its algorithm, which has the same signature.
    fn multiply(&self, name: &str, workspace: At) -> Result<()> {
        let (one, zero) = (1f32, 0f32);
        let scalar = |x: &f32| -> At { (&raw const *x).cast_mut().cast() };
        let (alpha, beta) = (scalar(&one), scalar(&zero));
        let (lib, plan) = (self.lt.at(), self.at());
        let (a, b, c) = (self.compressed.ptr as At, self.b as At, self.c as At);
        let mut streams = [self.stream];
        let streams = streams.as_mut_ptr();
        // SAFETY: as in `new`; scalars of the compute type on the host, read before the call returns.
        unsafe {
            self.lt.call::<Multiply>(name, |f| {
                f(lib, plan, alpha, a, b, beta, c, c, workspace, streams, 1)
            })
        }
    }

    fn run(&self) -> Result<()> {
        self.multiply("cusparseLtMatmul", self.workspace.ptr as At)
    }
}

impl Drop for Product<'_> {
    fn drop(&mut self) {
        let plan = self.at();
        // SAFETY: created in `new`, destroyed once.
        let _ = unsafe {
            type Destroy = unsafe extern "C" fn(At) -> c_int;
            self.lt.call::<Destroy>("cusparseLtMatmulPlanDestroy", |f| f(plan))
        };
    }
}

impl Engine for CuSparseLt {
    fn name(&self) -> &'static str {
        "cusparselt"
    }

    fn variants(&self, case: &Case<'_>) -> Vec<String> {
        let known = case.problem.two_of_four && kind(case.dtype()).is_some();
        known.then(|| "searched".to_owned()).into_iter().collect()
    }

    fn prepare<'a>(&'a self, case: &Case<'a>, _variant: &str) -> Result<Prepared<'a>> {
        let (m, k, _) = case.problem.extents();
        let dense = Buffer::new(m * k * case.dtype().size())?;
        case.densify(&dense)?;
        case.gpu.wait()?;
        let start = Instant::now();
        let product = Product::new(self, case, &dense)?;
        case.gpu.wait()?;
        Ok(Prepared {
            prepare_ms: start.elapsed().as_secs_f64() * 1e3,
            prepared_bytes: product.compressed.bytes + product.workspace.bytes,
            run: Box::new(move || product.run()),
            zeros: "dense",
            note: String::new(),
        })
    }

    fn tolerance(&self, dtype: Dtype) -> Option<f64> {
        Some(if dtype == Dtype::Bf16 { 2e-2 } else { 3e-3 })
    }
}
