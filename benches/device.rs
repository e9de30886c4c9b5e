//! The GPU of a bench: one primary context, one stream, plain buffers, and the kernels of `timing.ptx`.
//!
//! Handles are raw (`u64` pointers, `CUstream`), so that einsparse and every baseline use the same ones.

use cudarc::driver::sys;
use einsparse::module::MODULES;
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{Ordering, fence};

/// Reason of a failure, as one readable line.
pub type Reason = Box<dyn std::error::Error + Send + Sync>;

pub type Result<T, E = Reason> = std::result::Result<T, E>;

/// Returns the opened object. On failure it prints why `what` is left out and returns `None`.
pub fn or_said<T>(opened: Result<T>, what: &str) -> Option<T> {
    let said = opened.inspect_err(|reason| println!("{what} left out: {reason}"));
    said.ok()
}

/// Nanoseconds after which the spin kernel stops waiting for the host.
const SPIN_LIMIT: u64 = 1_000_000_000;
/// Bytes that are read before each cold run: more than three times the 60 MiB of L2.
pub const FLUSH_BYTES: usize = 192 << 20;
const FLUSH_BLOCKS: u32 = 1024;
const FLUSH_THREADS: u32 = 256;
const FLUSH_STEPS: u32 = FLUSH_BYTES as u32 / 16 / 4 / FLUSH_BLOCKS / FLUSH_THREADS;

/// Converts a driver status to a result. The error names the call.
pub fn check(status: sys::CUresult, call: &str) -> Result<()> {
    if status == sys::CUresult::CUDA_SUCCESS {
        Ok(())
    } else {
        Err(format!("{call}: {status:?}").into())
    }
}

/// Device memory, freed on drop. It is never empty, so its pointer is always valid.
pub struct Buffer {
    /// Device address.
    pub ptr: u64,
    /// Requested bytes.
    pub bytes: usize,
}

impl Buffer {
    /// Allocates `bytes` of device memory with undefined contents.
    pub fn new(bytes: usize) -> Result<Self> {
        let mut ptr = 0;
        // SAFETY: `ptr` outlives the call; a context is current on this thread (see `Gpu::open`).
        let status = unsafe { sys::cuMemAlloc_v2(&mut ptr, bytes.max(256)) };
        check(status, &format!("cuMemAlloc of {bytes} bytes"))?;
        Ok(Self { ptr, bytes })
    }

    /// Uploads `data` to a new buffer.
    pub fn from_slice<T: bytemuck::NoUninit>(data: &[T]) -> Result<Self> {
        let buffer = Self::new(size_of_val(data))?;
        buffer.write(0, bytemuck::cast_slice(data))?;
        Ok(buffer)
    }

    /// Fills a new buffer of `bytes` bytes with `data`, which repeats.
    pub fn repeated<T: bytemuck::NoUninit>(data: &[T], bytes: usize) -> Result<Self> {
        let (piece, buffer): (&[u8], _) = (bytemuck::cast_slice(data), Self::new(bytes)?);
        for from in (0..bytes).step_by(piece.len()) {
            buffer.write(from, &piece[..piece.len().min(bytes - from)])?;
        }
        Ok(buffer)
    }

    /// Copies `data` to byte `offset` and waits.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<()> {
        assert!(offset + data.len() <= self.bytes);
        // SAFETY: both ranges are in bounds (asserted above).
        let status = unsafe {
            sys::cuMemcpyHtoD_v2(self.ptr + offset as u64, data.as_ptr().cast(), data.len())
        };
        check(status, "cuMemcpyHtoD")?;
        // The call may return before the last part of the copy is complete, and the bench's stream does not wait for
        // it.
        // SAFETY: a context is current.
        let status = unsafe { sys::cuCtxSynchronize() };
        check(status, "cuCtxSynchronize")
    }

    /// Copies `into.len()` bytes from byte `offset` to host memory and waits.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        assert!(offset + into.len() <= self.bytes);
        // SAFETY: both ranges are in bounds (asserted above).
        let status = unsafe {
            sys::cuMemcpyDtoH_v2(into.as_mut_ptr().cast(), self.ptr + offset as u64, into.len())
        };
        check(status, "cuMemcpyDtoH")
    }

    /// Sets every byte to `byte`, on `stream`. 0xff is a NaN in every float type.
    pub fn fill(&self, byte: u8, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the range is that of this buffer.
        let status = unsafe { sys::cuMemsetD8Async(self.ptr, byte, self.bytes, stream) };
        check(status, "cuMemsetD8Async")
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed once. cuMemFree waits for work that still uses it.
        unsafe { sys::cuMemFree_v2(self.ptr) };
    }
}

/// The device, its stream, and the bench's kernels.
pub struct Gpu {
    /// Stream of all work.
    pub stream: sys::CUstream,
    /// Name of the product, e.g. `NVIDIA H200`.
    pub name: String,
    /// Version of the kernel module if it can be read, or else the driver's CUDA version, e.g. `cuda-13.0`.
    pub driver: String,
    /// Pairs of start and end events, one for each run of a series.
    pub events: Vec<(sys::CUevent, sys::CUevent)>,
    module: sys::CUmodule,
    spin: sys::CUfunction,
    read_flush: sys::CUfunction,
    empty: sys::CUfunction,
    flag: *mut u32,
    flag_device: u64,
    flush: Buffer,
    sink: Buffer,
}

/// Calls `cuInit` and retains the primary context of device 0. Every CUDA program does this before its first kernel.
pub fn open_primary() -> Result<sys::CUdevice> {
    // SAFETY: only tries to open the library.
    if !unsafe { sys::is_culib_present() } {
        return Err("libcuda.so.1 is not there".into());
    }
    let (mut device, mut context) = (0, std::ptr::null_mut());
    // SAFETY: out-pointers outlive the calls; the context is retained for the life of the process.
    unsafe {
        check(sys::cuInit(0), "cuInit")?;
        check(sys::cuDeviceGet(&mut device, 0), "cuDeviceGet")?;
        check(sys::cuDevicePrimaryCtxRetain(&mut context, device), "cuDevicePrimaryCtxRetain")?;
        check(sys::cuCtxSetCurrent(context), "cuCtxSetCurrent")?;
    }
    Ok(device)
}

impl Gpu {
    /// Opens device 0. The error states why this failed.
    pub fn open() -> Result<Self> {
        let device = open_primary()?;
        let mut stream = std::ptr::null_mut();
        let mut module = std::ptr::null_mut();
        let mut flag: *mut c_void = std::ptr::null_mut();
        let mut flag_device = 0;
        let text = CString::new(include_str!("timing.ptx"))?;
        // SAFETY: out-pointers outlive the calls; the PTX text ends with a NUL.
        unsafe {
            let non_blocking = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
            check(sys::cuStreamCreate(&mut stream, non_blocking), "cuStreamCreate")?;
            check(
                sys::cuModuleLoadData(&mut module, text.as_ptr().cast()),
                "cuModuleLoadData of timing.ptx",
            )?;
            check(
                sys::cuMemHostAlloc(&mut flag, 8, sys::CU_MEMHOSTALLOC_DEVICEMAP),
                "cuMemHostAlloc",
            )?;
            check(
                sys::cuMemHostGetDevicePointer_v2(&mut flag_device, flag, 0),
                "cuMemHostGetDevicePointer",
            )?;
        }
        let flush = Buffer::new(FLUSH_BYTES)?;
        flush.fill(0, stream)?;
        let gpu = Self {
            stream,
            name: device_name(device)?,
            driver: driver_version()?,
            events: (0..32).map(|_| Ok((event()?, event()?))).collect::<Result<_>>()?,
            module,
            spin: function(module, c"spin")?,
            read_flush: function(module, c"read_flush")?,
            empty: function(module, c"empty")?,
            flag: flag.cast(),
            flag_device,
            flush,
            sink: Buffer::new(4)?,
        };
        gpu.wait()?;
        Ok(gpu)
    }

    /// Waits until the stream is idle.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        let status = unsafe { sys::cuStreamSynchronize(self.stream) };
        check(status, "cuStreamSynchronize")
    }

    /// Records `event` on the stream.
    pub fn record(&self, event: sys::CUevent) -> Result<()> {
        // SAFETY: both handles live as long as `self`.
        let status = unsafe { sys::cuEventRecord(event, self.stream) };
        check(status, "cuEventRecord")
    }

    /// Milliseconds between two recorded events. Both must be complete.
    pub fn elapsed(&self, start: sys::CUevent, end: sys::CUevent) -> Result<f64> {
        let mut ms = 0f32;
        // SAFETY: both events belong to this context and `ms` outlives the call.
        let status = unsafe { sys::cuEventElapsedTime_v2(&mut ms, start, end) };
        check(status, "cuEventElapsedTime")?;
        Ok(f64::from(ms))
    }

    /// Stalls the stream until [`Gpu::release`].
    pub fn hold(&self) -> Result<()> {
        // SAFETY: `flag` is 8 bytes of pinned memory; the stream is idle, so no kernel reads it now.
        unsafe {
            self.flag.write_volatile(0);
            self.flag.add(1).write_volatile(0);
        }
        fence(Ordering::SeqCst);
        self.launch(self.spin, 1, 1, &[Arg::U64(self.flag_device), Arg::U64(SPIN_LIMIT)])
    }

    /// Releases the queued work and waits for it. Returns whether the spin kernel timed out first. In that case the
    /// operation synchronizes with the host, and the measured time includes host time.
    pub fn release(&self) -> Result<bool> {
        fence(Ordering::SeqCst);
        // SAFETY: pinned memory, 8 bytes.
        unsafe { self.flag.write_volatile(1) };
        self.wait()?;
        // SAFETY: pinned memory, 8 bytes; the kernel has ended.
        Ok(unsafe { self.flag.add(1).read_volatile() } != 0)
    }

    /// Evicts the L2 cache by reading a large buffer.
    pub fn flush_l2(&self) -> Result<()> {
        let arguments = [Arg::U64(self.flush.ptr), Arg::U32(FLUSH_STEPS), Arg::U64(self.sink.ptr)];
        self.launch(self.read_flush, FLUSH_BLOCKS, FLUSH_THREADS, &arguments)
    }

    /// Launches an empty kernel, the min time of this method.
    pub fn empty(&self) -> Result<()> {
        self.launch(self.empty, 1, 32, &[])
    }

    /// dense[rows[p], columns[p]] = values[p] for elements of `size` bytes. `dense` must be zero before.
    pub fn scatter(
        &self,
        size: usize,
        dense: u64,
        sparse: [u64; 3],
        entries: usize,
        width: usize,
    ) -> Result<()> {
        let name = CString::new(format!("scatter{size}"))?;
        let [rows, columns, values] = sparse.map(Arg::U64);
        let sizes = [Arg::U32(entries as u32), Arg::U32(width as u32)];
        let arguments = [Arg::U64(dense), rows, columns, values, sizes[0], sizes[1]];
        let blocks = entries.div_ceil(256) as u32;
        if blocks == 0 {
            Ok(())
        } else {
            self.launch(function(self.module, &name)?, blocks, 256, &arguments)
        }
    }

    /// c[row, column] = max(c[row, column] + bias[row], 0) for elements of `size` bytes: the second kernel for products
    /// that have no epilogue.
    pub fn bias_relu(
        &self,
        size: usize,
        [c, bias]: [u64; 2],
        [rows, width]: [usize; 2],
    ) -> Result<()> {
        let each = if (width * size).is_multiple_of(16) { 16 / size } else { 1 };
        let wide = if each > 1 { "_wide" } else { "" };
        let name = CString::new(format!("bias_relu{size}{wide}"))?;
        let arguments = [Arg::U64(c), Arg::U64(bias), Arg::U32(width as u32)];
        let grid = [width.div_ceil(each * 256) as u32, rows as u32];
        self.launch_grid(function(self.module, &name)?, grid, 256, &arguments)
    }

    fn launch(
        &self,
        kernel: sys::CUfunction,
        blocks: u32,
        threads: u32,
        arguments: &[Arg],
    ) -> Result<()> {
        self.launch_grid(kernel, [blocks, 1], threads, arguments)
    }

    fn launch_grid(
        &self,
        kernel: sys::CUfunction,
        [across, down]: [u32; 2],
        threads: u32,
        arguments: &[Arg],
    ) -> Result<()> {
        let mut pointers: Vec<*mut c_void> = arguments.iter().map(Arg::pointer).collect();
        // SAFETY: number and sizes of the arguments are those of the entry in timing.ptx; the driver copies them
        // before it returns.
        let status = unsafe {
            let (parameters, none) = (pointers.as_mut_ptr(), std::ptr::null_mut());
            sys::cuLaunchKernel(
                kernel,
                across,
                down,
                1,
                threads,
                1,
                1,
                0,
                self.stream,
                parameters,
                none,
            )
        };
        check(status, "cuLaunchKernel")
    }
}

/// One kernel argument.
#[derive(Clone, Copy)]
enum Arg {
    U32(u32),
    U64(u64),
}

impl Arg {
    fn pointer(&self) -> *mut c_void {
        match self {
            Arg::U32(v) => std::ptr::from_ref(v).cast_mut().cast(),
            Arg::U64(v) => std::ptr::from_ref(v).cast_mut().cast(),
        }
    }
}

fn event() -> Result<sys::CUevent> {
    let mut event = std::ptr::null_mut();
    // SAFETY: out-pointer; flags 0 = with timing.
    let status = unsafe { sys::cuEventCreate(&mut event, 0) };
    check(status, "cuEventCreate")?;
    Ok(event)
}

fn function(module: sys::CUmodule, name: &CStr) -> Result<sys::CUfunction> {
    let mut function = std::ptr::null_mut();
    // SAFETY: the module is loaded and the name ends with a NUL.
    let status = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
    check(status, &format!("cuModuleGetFunction {name:?}"))?;
    Ok(function)
}

fn device_name(device: sys::CUdevice) -> Result<String> {
    let mut name = [0u8; 128];
    // SAFETY: at most 128 bytes are written, the last of them a NUL.
    let status = unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), 128, device) };
    check(status, "cuDeviceGetName")?;
    let text = CStr::from_bytes_until_nul(&name)?;
    Ok(text.to_string_lossy().into_owned())
}

/// Whether this build contains an on-demand module. If not, prints a line.
pub fn is_built(module: &str) -> bool {
    let built = MODULES.iter().any(|built| built.name == module);
    if !built {
        println!("left out: {module} is not in this build (EINSPARSE_MODULES=all builds it)");
    }
    built
}

/// Version of the kernel module (`580.159.04`) if /proc contains it, or else the driver's CUDA version (`cuda-13.0`).
fn driver_version() -> Result<String> {
    let module = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let dotted =
        |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if let Some(version) =
        module.lines().next().and_then(|line| line.split_whitespace().find(dotted))
    {
        return Ok(version.to_owned());
    }
    let mut version = 0;
    // SAFETY: out-pointer.
    let status = unsafe { sys::cuDriverGetVersion(&mut version) };
    check(status, "cuDriverGetVersion")?;
    Ok(format!("cuda-{}.{}", version / 1000, version % 1000 / 10))
}
