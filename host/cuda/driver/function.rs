//! Modules, kernels, their attributes, and the launch.

use std::collections::BTreeSet;
use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use super::sys::{self, CUfunction, CUmodule, LaunchAttribute, RawLaunchConfig};
#[cfg(feature = "testing")]
use super::trial;
use super::{PrimaryContext, RawStream, check};
use crate::error::{Error, Result};

/// Loaded module of device code. It is unloaded when its last function is dropped, on any thread.
#[derive(Debug)]
pub struct LoadedModule {
    handle: CUmodule,
    waits: Waits,
    context: Arc<PrimaryContext>,
}

// SAFETY: the driver locks, so any thread may use a module handle.
unsafe impl Send for LoadedModule {}
// SAFETY: the driver locks.
unsafe impl Sync for LoadedModule {}

impl LoadedModule {
    /// Compiles PTX for the context's device. If the driver rejects the PTX, the error contains the compiler's log.
    pub fn from_ptx(context: &Arc<PrimaryContext>, ptx: &str) -> Result<Arc<Self>> {
        // The driver reads a C string, so everything from a NUL on is padding.
        let text = ptx.split('\0').next().unwrap_or_default();
        let mut image = Vec::with_capacity(text.len() + 1);
        image.extend_from_slice(text.as_bytes());
        image.push(0);
        // SAFETY: `image` was NUL-terminated above.
        unsafe { Self::load(context, &image, Waits::of_text(text)) }
    }

    /// Loads a cubin made for the context's device. `waits`: its kernels wait for the previous kernel of the stream.
    pub fn from_cubin(
        context: &Arc<PrimaryContext>,
        cubin: &[u8],
        waits: bool,
    ) -> Result<Arc<Self>> {
        const ELF: &[u8] = b"\x7fELF";
        // An ELF header states the length of the file. A truncated file must not reach the driver.
        if !cubin.starts_with(ELF) || !elf_is_whole(cubin) {
            let reason = format!("{} bytes that are not a whole cubin", cubin.len());
            return Err(Error::cuda("cuModuleLoadDataEx", reason));
        }
        // SAFETY: the image is a complete ELF file.
        unsafe {
            let waits = if waits { Waits::All } else { Waits::Entries(BTreeSet::new()) };
            Self::load(context, cubin, waits)
        }
    }

    /// # Safety
    /// `image` is NUL-terminated PTX or a complete cubin.
    unsafe fn load(context: &Arc<PrimaryContext>, image: &[u8], waits: Waits) -> Result<Arc<Self>> {
        context.set_current()?;
        const LOG_BYTES: usize = 16 << 10;
        let mut log = vec![0u8; LOG_BYTES];
        /// Values of CU_JIT_ERROR_LOG_BUFFER and CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES.
        const LOG: [c_int; 2] = [5, 6];
        let mut options = LOG;
        // Option values are passed in the pointers themselves.
        let mut values =
            [log.as_mut_ptr().cast::<c_void>(), ptr::without_provenance_mut(LOG_BYTES)];
        let mut module = ptr::null_mut();
        // SAFETY: the caller guarantees the image. Options, values and the log have the given lengths and outlive the
        // call.
        let code = unsafe {
            sys::cuModuleLoadDataEx(
                &mut module,
                image.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        check("cuModuleLoadDataEx", code).map_err(|error| with_log(error, &log))?;
        Ok(Arc::new(Self { handle: module, waits, context: Arc::clone(context) }))
    }

    /// Returns the kernel with this name.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function> {
        self.context.set_current()?;
        let text = CString::new(name).map_err(|_| {
            Error::cuda(format!("cuModuleGetFunction({name:?})"), "a NUL in the name")
        })?;
        let mut function = ptr::null_mut();
        // SAFETY: the module is alive and the name is NUL-terminated.
        let code = unsafe { sys::cuModuleGetFunction(&mut function, self.handle, text.as_ptr()) };
        check(&format!("cuModuleGetFunction({name})"), code)?;
        #[cfg(feature = "testing")]
        trial::on_load(function.addr(), name);
        Ok(Function { handle: function, waits: self.waits.holds(name), module: Arc::clone(self) })
    }
}

/// Kernels of a module that wait for the previous kernel before they access its memory. Launches of other kernels must
/// not overlap the previous kernel.
#[derive(Debug)]
enum Waits {
    /// Machine code of compute capability 9.0: all kernels that are launched with overlap wait.
    All,
    /// PTX: the kernels whose text contains the wait. PTX that is compiled for every GPU contains none.
    Entries(BTreeSet<String>),
}

impl Waits {
    fn of_text(ptx: &str) -> Self {
        const ENTRY: &str = ".entry ";
        let entries = ptx.split(ENTRY).skip(1);
        let waiting = entries.filter(|text| text.contains("griddepcontrol.wait"));
        let name = |text: &str| {
            let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '$');
            text[..end.unwrap_or(text.len())].to_owned()
        };
        Waits::Entries(waiting.map(name).collect())
    }

    fn holds(&self, entry: &str) -> bool {
        match self {
            Waits::All => true,
            Waits::Entries(names) => names.contains(entry),
        }
    }
}

/// Whether the section headers are inside of the image. They are at the end of a cubin or before it.
fn elf_is_whole(image: &[u8]) -> bool {
    let u16_at =
        |at: usize| Some(u16::from_le_bytes(image.get(at..at + 2)?.try_into().ok()?) as u64);
    let u64_at = |at: usize| Some(u64::from_le_bytes(image.get(at..at + 8)?.try_into().ok()?));
    let end = (|| {
        let (sections, segments) = (u64_at(40)?, u64_at(32)?);
        let sections = sections.checked_add(u16_at(58)? * u16_at(60)?)?;
        Some(sections.max(segments.checked_add(u16_at(54)? * u16_at(56)?)?))
    })();
    end.is_some_and(|end| end <= image.len() as u64)
}

fn with_log(error: Error, log: &[u8]) -> Error {
    let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
    let log = String::from_utf8_lossy(&log[..end]);
    match error {
        Error::Cuda { call, code, reason } if !log.trim().is_empty() => {
            Error::Cuda { call, code, reason: format!("{reason}; {}", log.trim()) }
        }
        error => error,
    }
}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        if self.context.is_absent() {
            return;
        }
        let unloaded = self.context.set_current().and_then(|()| {
            // SAFETY: this value owns the module, which is unloaded once.
            check("cuModuleUnload", unsafe { sys::cuModuleUnload(self.handle) })
        });
        if let Err(error) = unloaded {
            tracing::warn!(%error, "module was not unloaded");
        }
    }
}

/// Kernel. It keeps its module loaded; clones share the module.
#[derive(Clone, Debug)]
pub struct Function {
    handle: CUfunction,
    /// Whether it may start before the previous kernel of the stream ends.
    waits: bool,
    module: Arc<LoadedModule>,
}

// SAFETY: the driver locks, so any thread may use a function handle.
unsafe impl Send for Function {}
// SAFETY: the driver locks.
unsafe impl Sync for Function {}

/// Resource usage of a compiled kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionFacts {
    /// Registers per thread.
    pub registers: u32,
    /// Local memory per thread, bytes: spills and stack.
    pub local_bytes: u32,
    /// Static shared memory per block, bytes.
    pub static_smem_bytes: u32,
    /// Max dynamic shared memory of a launch, bytes.
    pub max_dynamic_smem_bytes: u32,
    /// Max threads of a block.
    pub max_threads: u32,
}

/// Geometry of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub smem_bytes: u32,
    /// Blocks per cluster in x, y, z (compute capability 9.0 and newer); must divide the grid.
    pub cluster: Option<[u32; 3]>,
    /// Programmatic dependent launch: the kernel may start before the previous kernel of the stream ends. It is ignored
    /// for kernels that do not wait for the previous kernel.
    pub overlap_previous: bool,
}

impl Function {
    /// Creates a kernel of an absent GPU.
    pub fn absent(context: &Arc<PrimaryContext>) -> Self {
        let module = LoadedModule {
            handle: ptr::null_mut(),
            waits: Waits::All,
            context: Arc::clone(context),
        };
        Function { handle: ptr::null_mut(), waits: true, module: Arc::new(module) }
    }

    /// Returns the handle, for other CUDA crates.
    pub fn as_raw(&self) -> *mut c_void {
        self.handle.cast()
    }

    /// Returns the context that the module was loaded in.
    pub fn context(&self) -> &Arc<PrimaryContext> {
        &self.module.context
    }

    /// Allows launches with up to `bytes` of dynamic shared memory. The driver requires this call above 48 KiB.
    pub fn set_max_dynamic_smem(&self, bytes: u32) -> Result<()> {
        self.module.context.set_current()?;
        // SAFETY: the function is alive.
        let code =
            unsafe { sys::cuFuncSetAttribute(self.handle, MAX_DYNAMIC_SHARED, clamp(bytes)) };
        check(&format!("cuFuncSetAttribute(dynamic shared memory = {bytes})"), code)
    }

    /// Allows clusters of more than 8 blocks.
    pub fn allow_large_clusters(&self) -> Result<()> {
        self.module.context.set_current()?;
        /// Value of CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED.
        const NON_PORTABLE: c_int = 14;
        // SAFETY: the function is alive.
        let code = unsafe { sys::cuFuncSetAttribute(self.handle, NON_PORTABLE, 1) };
        check("cuFuncSetAttribute(cluster size)", code)
    }

    /// Returns the registers, local memory and shared memory of the kernel.
    pub fn facts(&self) -> Result<FunctionFacts> {
        self.module.context.set_current()?;
        // Values of CU_FUNC_ATTRIBUTE_*.
        const MAX_THREADS: c_int = 0;
        const SHARED: c_int = 1;
        const LOCAL: c_int = 3;
        const REGISTERS: c_int = 4;
        Ok(FunctionFacts {
            registers: self.attribute(REGISTERS)?,
            local_bytes: self.attribute(LOCAL)?,
            static_smem_bytes: self.attribute(SHARED)?,
            max_dynamic_smem_bytes: self.attribute(MAX_DYNAMIC_SHARED)?,
            max_threads: self.attribute(MAX_THREADS)?,
        })
    }

    fn attribute(&self, which: c_int) -> Result<u32> {
        let mut value = 0;
        // SAFETY: `value` can hold one int, and the function is alive.
        let code = unsafe { sys::cuFuncGetAttribute(&mut value, which, self.handle) };
        check("cuFuncGetAttribute", code)?;
        Ok(value.unsigned_abs())
    }

    /// Returns the number of blocks of `threads` threads that fit on one multiprocessor at once.
    pub fn blocks_per_sm(&self, threads: u32, smem_bytes: u32) -> Result<u32> {
        self.module.context.set_current()?;
        let mut blocks = 0;
        // SAFETY: `blocks` can hold one int, and the function is alive.
        let code = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                self.handle,
                clamp(threads),
                smem_bytes as usize,
            )
        };
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        Ok(blocks.unsigned_abs())
    }

    /// Queues the kernel with one by-value parameter struct. A grid without blocks launches nothing.
    ///
    /// # Safety
    /// - `P` is exactly the parameter type of the kernel.
    /// - Every address in the parameters is valid for the accesses of the kernel until the kernel is done.
    /// - `self` lives until then, and its context is current.
    pub unsafe fn launch<P: Copy>(
        &self,
        config: &LaunchConfig,
        stream: RawStream<'_>,
        params: &P,
    ) -> Result<()> {
        if config.grid.contains(&0) || stream.is_absent() {
            return Ok(());
        }
        #[cfg(feature = "testing")]
        trial::on_launch(self.handle.addr())?;
        let mut pointers = [ptr::from_ref(params).cast_mut().cast::<c_void>()];
        if config.cluster.is_some() || config.overlap_previous && self.waits {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.launch_ex(config, stream, &mut pointers) };
        }
        let ([gx, gy, gz], [bx, by, bz]) = (config.grid, config.block);
        // SAFETY: the driver copies the parameter before it returns. The caller guarantees the rest.
        let code = unsafe {
            sys::cuLaunchKernel(
                self.handle,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                config.smem_bytes,
                stream.handle(),
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", code)
    }

    /// # Safety
    /// See [`Self::launch`].
    unsafe fn launch_ex(
        &self,
        config: &LaunchConfig,
        stream: RawStream<'_>,
        params: &mut [*mut c_void; 1],
    ) -> Result<()> {
        let attribute = |id, first: [u32; 3]| {
            let mut value = [0; 16];
            value[..3].copy_from_slice(&first);
            LaunchAttribute { id, pad: 0, value }
        };
        let overlap = attribute(sys::PROGRAMMATIC_STREAM_SERIALIZATION, [1, 0, 0]);
        let overlaps = config.overlap_previous && self.waits;
        let cluster = config.cluster.map(|cluster| attribute(sys::CLUSTER_DIMENSION, cluster));
        let both = [cluster.unwrap_or(overlap), overlap];
        let attributes = &both[..usize::from(cluster.is_some()) + usize::from(overlaps)];
        let raw_config = RawLaunchConfig {
            grid: config.grid,
            block: config.block,
            smem_bytes: config.smem_bytes,
            stream: stream.handle(),
            attributes: attributes.as_ptr(),
            attribute_count: attributes.len() as u32,
        };
        // SAFETY: configuration, attributes and parameter live through the call, which copies them.
        let code = unsafe {
            sys::cuLaunchKernelEx(&raw_config, self.handle, params.as_mut_ptr(), ptr::null_mut())
        };
        check("cuLaunchKernelEx", code)
    }
}

/// Value of CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
const MAX_DYNAMIC_SHARED: c_int = 8;

/// Converts to an int. No device supports a value above the range of int, so the driver rejects the clamped value too.
fn clamp(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers the PTX in the repository: in the PTX for every GPU no kernel waits. In the PTX for compute capability
    /// 9.0, every kernel that requests overlap waits.
    #[test]
    fn text_says_which_kernels_wait() {
        let two = ".entry a(.param x) { ret; }\n.visible .entry b(\n) { griddepcontrol.wait; }";
        let waits = Waits::of_text(two);
        assert!(waits.holds("b") && !waits.holds("a") && Waits::All.holds("a"));
        for module in crate::module::MODULES {
            let Some(text) = module.ptx() else { continue };
            let Waits::Entries(names) = Waits::of_text(&text.unwrap()) else {
                panic!("text names its kernels");
            };
            let waits = crate::module::overlaps(module.arch);
            let wanted = module.arch == einsparse_kernels::table::ARCHS[0].name
                && ["attention", "dense", "grouped", "pit", "pit_few"].contains(&module.name);
            assert_eq!(wanted, !names.is_empty() && wanted, "{}", module.name);
            assert!(waits || names.is_empty(), "{}", module.name);
        }
    }

    #[test]
    fn a_cut_cubin_is_refused_before_the_driver_sees_it() {
        let mut elf = vec![0u8; 64];
        elf[..4].copy_from_slice(b"\x7fELF");
        assert!(elf_is_whole(&elf));
        elf[40] = 64;
        elf[58] = 64;
        elf[60] = 3;
        assert!(!elf_is_whole(&elf));
        elf.resize(64 + 192, 0);
        assert!(elf_is_whole(&elf));
        assert!(!elf_is_whole(&elf[..100]) && !elf_is_whole(b""));
    }
}
