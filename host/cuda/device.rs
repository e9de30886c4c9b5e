//! The GPU of a context: primary context, modules, peak rates, and streams.

#[cfg(feature = "testing")]
mod asked;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::driver::{
    DeviceFacts, DeviceMemory, Event, OwnedStream, PrimaryContext, RawStream, RowBytes,
    device_facts, memset_d8_async,
};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::module::{MODULES, Modules, arch_for};
use einsparse_kernels::table::shared_bytes_of;

#[cfg(feature = "testing")]
pub use asked::asked_capability;

/// Max dynamic shared memory of a thread block on a GPU of this compute capability, at most `own`.
fn shared_bytes(capability: (u32, u32), own: u32) -> u32 {
    shared_bytes_of(capability).map_or(own, |bytes| bytes.min(own))
}

impl Machine {
    /// Rates of the GPU for which a CPU context checks operands: of an H200, or with the feature `testing` those that
    /// EINSPARSE_ARCH selects.
    pub fn absent() -> Machine {
        #[cfg(feature = "testing")]
        {
            asked::absent()
        }
        #[cfg(not(feature = "testing"))]
        {
            Machine::H200
        }
    }

    /// Combines the driver's facts about a GPU, the compute capability whose kernels it runs, and its known rates.
    pub fn of(facts: &DeviceFacts, capability: (u32, u32)) -> Machine {
        // Two transfers per clock; units are kHz and bits.
        let memory =
            2e3 * f64::from(facts.memory_clock_khz) * f64::from(facts.memory_bus_bits) / 8.0;
        let machine = Machine::scaled(facts.sms, facts.clock_khz, memory, facts.l2_bytes);
        machine
            .with_shared_bytes(shared_bytes(capability, facts.smem_per_block_optin))
            .with_capability(capability)
            .named(&facts.name, memory > 0.0)
    }
}

/// A GPU on which a `Context` computes.
///
/// ```
/// let ctx = einsparse::Context::new();
/// if let Some(device) = ctx.device() {
///     device.context().set_current()?; // for calls of other CUDA libraries on this thread
/// }
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Device {
    machine: Machine,
    /// Errors due to which queued work may not have completed, each with the number of its source.
    failures: Mutex<Vec<(u64, Error)>>,
    // Fields drop in this order: resources of the context must be dropped before the context.
    copies: OwnedStream,
    modules: Modules,
    context: Arc<PrimaryContext>,
}

impl Device {
    /// Opens GPU `ordinal`, and makes its context current on this thread. All calls of a process return one device with
    /// its loaded modules, unless its context has failed. The device retains the primary context, which other CUDA
    /// crates share.
    pub fn open(ordinal: u32) -> Result<Arc<Device>> {
        static OPEN: Mutex<BTreeMap<u32, Arc<Device>>> = Mutex::new(BTreeMap::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = open.get(&ordinal) {
            if device.has_failed() {
                open.remove(&ordinal);
            } else {
                return Ok(Arc::clone(device));
            }
        }
        let device = Self::new(ordinal)?;
        open.insert(ordinal, Arc::clone(&device));
        Ok(device)
    }

    /// Makes the context current on this thread. Returns whether it or queued work has failed.
    fn has_failed(&self) -> bool {
        let current = self.context.set_current();
        match current.and_then(|()| self.copies.raw().is_done()) {
            // During a capture, the driver refuses the question.
            Ok(_) | Err(Error::Cuda { code: Some(900..=907), .. }) => self.check().is_err(),
            Err(_) => true,
        }
    }

    fn new(ordinal: u32) -> Result<Arc<Device>> {
        crate::driver::available()?;
        if MODULES.is_empty() {
            let reason = "this build holds no device code: run `cargo xtask setup` and build again";
            return Err(Error::cuda("load kernels", reason));
        }
        // Check this before creating the context, which is the most expensive step.
        arch_for(device_facts(ordinal)?.compute_capability)?;
        let context = Arc::new(PrimaryContext::retain(ordinal)?);
        let facts = context.facts();
        let capability = facts.compute_capability;
        #[cfg(feature = "testing")]
        let capability = asked::capability(capability)?;
        let machine = Machine::of(facts, capability);
        let modules = Modules::new(Arc::clone(&context), capability)?;
        let copies = OwnedStream::new()?;
        Ok(Arc::new(Device { context, machine, failures: Mutex::default(), modules, copies }))
    }

    /// Model of an H200 without hardware. A CPU context prepares the work of a GPU on this model, so that both refuse the
    /// same operands with the same message. The model allocates nothing and runs nothing.
    #[doc(hidden)]
    pub fn absent() -> &'static Arc<Device> {
        static ABSENT: OnceLock<Arc<Device>> = OnceLock::new();
        ABSENT.get_or_init(|| {
            let context = Arc::new(PrimaryContext::absent(DeviceFacts::h200()));
            let machine = Machine::absent();
            Arc::new(Device {
                machine,
                failures: Mutex::default(),
                copies: OwnedStream::absent(),
                modules: Modules::absent(&context, machine.capability),
                context,
            })
        })
    }

    /// The driver's facts about this GPU.
    pub fn facts(&self) -> &DeviceFacts {
        self.context.facts()
    }

    /// The primary context.
    pub fn context(&self) -> &Arc<PrimaryContext> {
        &self.context
    }

    /// Whether both are the same GPU; it may have been opened twice.
    pub fn is_same(&self, other: &Device) -> bool {
        std::ptr::eq(self, other) || self.context.as_raw() == other.context.as_raw()
    }

    /// Peak rates for predictions.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Stores an error of this source. Later waits for this GPU return it.
    #[doc(hidden)]
    pub fn fail(&self, source: u64, reason: Error) {
        self.failures().push((source, reason));
    }

    /// Removes the errors of this source.
    #[doc(hidden)]
    pub fn recover(&self, source: u64) {
        self.failures().retain(|(of, _)| *of != source);
    }

    fn failures(&self) -> MutexGuard<'_, Vec<(u64, Error)>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stored error if work of this GPU may not have completed.
    #[doc(hidden)]
    pub fn check(&self) -> Result<()> {
        self.failures().first().map_or(Ok(()), |(_, error)| Err(error.clone()))
    }

    /// Whether this is the model without hardware.
    #[doc(hidden)]
    pub fn is_absent(&self) -> bool {
        self.context.is_absent()
    }

    /// Waits for all work submitted to this GPU.
    #[doc(hidden)]
    pub fn synchronize(&self) -> Result<()> {
        self.context.synchronize()?;
        self.check()
    }

    /// The device modules. Each is loaded at its first use.
    pub fn modules(&self) -> &Modules {
        &self.modules
    }

    /// Copies to new device memory. Returns when the copy is done.
    #[doc(hidden)]
    pub fn upload<T: bytemuck::Pod>(&self, data: &[T]) -> Result<DeviceMemory> {
        DeviceMemory::from_slice(&self.context, data, self.copies.raw())
    }

    /// Copies to new device memory, followed by `room` elements of zeros: kernels load whole vectors.
    #[doc(hidden)]
    pub fn upload_padded<T: bytemuck::Pod>(&self, data: &[T], room: usize) -> Result<DeviceMemory> {
        let memory = DeviceMemory::alloc(&self.context, size_of_val(data) + room * size_of::<T>())?;
        let behind = memory.address() + size_of_val(data) as u64;
        // SAFETY: the range is the end of the allocation, which outlives the wait in `write`.
        unsafe { memset_d8_async(behind, 0, room * size_of::<T>(), self.copies.raw())? };
        memory.write(data, self.copies.raw())?;
        Ok(memory)
    }

    /// Allocates device memory of zero bytes.
    #[doc(hidden)]
    pub fn zeros(&self, bytes: usize) -> Result<DeviceMemory> {
        let memory = DeviceMemory::alloc(&self.context, bytes)?;
        // SAFETY: the range is the whole allocation, which outlives the wait below.
        unsafe { memset_d8_async(memory.address(), 0, bytes, self.copies.raw())? };
        self.copies.raw().synchronize()?;
        Ok(memory)
    }

    /// The stream for copies.
    #[doc(hidden)]
    pub fn copies(&self) -> RawStream<'_> {
        self.copies.raw()
    }

    /// Waits for all work of the GPU and returns the stream for copies.
    #[doc(hidden)]
    pub fn after_all(&self) -> Result<RawStream<'_>> {
        self.synchronize()?;
        Ok(self.copies.raw())
    }

    /// Overwrites device memory after all work of the GPU.
    #[doc(hidden)]
    pub fn write<T: bytemuck::Pod>(&self, memory: &DeviceMemory, data: &[T]) -> Result<()> {
        self.context.synchronize()?;
        memory.write(data, self.copies.raw())
    }

    /// Copies to host memory after all work of the GPU.
    #[doc(hidden)]
    pub fn read<T: bytemuck::Pod>(&self, memory: &DeviceMemory, data: &mut [T]) -> Result<()> {
        self.synchronize()?;
        memory.read(data, self.copies.raw())
    }

    /// Overwrites rows from byte `first` on, after all work of the GPU. The gaps between rows are unchanged.
    #[doc(hidden)]
    pub fn write_rows(
        &self,
        memory: &DeviceMemory,
        first: usize,
        rows: RowBytes,
        values: &[u8],
    ) -> Result<()> {
        self.context.synchronize()?;
        memory.write_rows(first, rows, values, self.copies.raw())
    }

    /// Copies rows from byte `first` on to host memory, without gaps, after all work of the GPU.
    #[doc(hidden)]
    pub fn read_rows(
        &self,
        memory: &DeviceMemory,
        first: usize,
        rows: RowBytes,
        values: &mut [u8],
    ) -> Result<()> {
        self.synchronize()?;
        memory.read_rows(first, rows, values, self.copies.raw())
    }
}

/// Queue of work on a GPU. On a CPU context, all work is done when a call returns.
///
/// ```
/// let ctx = einsparse::Context::new();
/// let (a, b) = (ctx.zeros::<f32>(&[4, 4])?, ctx.zeros::<f32>(&[4, 4])?);
/// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).operand("B", &b).build()?;
/// let mut c = ctx.zeros(&[4, 4])?;
/// let stream = ctx.stream()?;
/// plan.run(&[("A", (&a).into()), ("B", (&b).into())], &mut c, &stream)?; // queued
/// stream.synchronize()?; // done
/// assert_eq!(c.to_dense()?.values(), [0.0; 16]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Stream(Kind);

#[derive(Debug)]
enum Kind {
    Cpu,
    Owned(OwnedStream, Arc<Device>),
    Raw(RawStream<'static>),
    #[cfg(feature = "cudarc")]
    Cudarc(Arc<cudarc::driver::CudaStream>),
}

impl Stream {
    /// Creates a stream of a GPU, or of the CPU for `None`.
    #[doc(hidden)]
    pub fn new(device: Option<&Arc<Device>>) -> Result<Stream> {
        Self::made(device, OwnedStream::new)
    }

    /// Creates a stream of high priority, for transfers that overlap with products.
    #[doc(hidden)]
    pub fn ahead(device: Option<&Arc<Device>>) -> Result<Stream> {
        Self::made(device, OwnedStream::ahead)
    }

    fn made(
        device: Option<&Arc<Device>>,
        make: impl FnOnce() -> Result<OwnedStream>,
    ) -> Result<Stream> {
        let Some(device) = device else {
            return Ok(Stream(Kind::Cpu));
        };
        device.context.set_current()?;
        let own = match device.is_absent() {
            true => OwnedStream::absent(),
            false => make()?,
        };
        Ok(Stream(Kind::Owned(own, Arc::clone(device))))
    }

    /// Wraps a stream of another CUDA crate (a `CUstream` or `cudaStream_t`). Null is the default stream.
    ///
    /// # Safety
    /// `raw` belongs to the primary context of the GPU it is used with and outlives this value.
    pub unsafe fn from_raw(raw: *mut c_void) -> Stream {
        // SAFETY: guaranteed by the caller.
        Stream(Kind::Raw(unsafe { RawStream::from_raw(raw) }))
    }

    /// Wraps a stream of `cudarc` (feature `cudarc`) and keeps it alive. If the stream is not of a GPU's primary
    /// context, work of that GPU is refused.
    #[cfg(feature = "cudarc")]
    pub fn from_cudarc(stream: &Arc<cudarc::driver::CudaStream>) -> Stream {
        Stream(Kind::Cudarc(Arc::clone(stream)))
    }

    /// The stream as the driver module accepts it. A CPU stream returns one on which nothing is queued.
    pub fn raw(&self) -> RawStream<'_> {
        match &self.0 {
            Kind::Cpu => RawStream::ABSENT,
            Kind::Owned(stream, _) => stream.raw(),
            Kind::Raw(raw) => *raw,
            // SAFETY: the stream is kept alive while `self` is borrowed.
            #[cfg(feature = "cudarc")]
            Kind::Cudarc(stream) => unsafe { RawStream::from_raw(stream.cu_stream().cast()) },
        }
    }

    /// Whether work of `device` may be queued on this stream: not on a stream of the CPU or of another GPU. The context
    /// of a raw stream is guaranteed by the caller of [`Stream::from_raw`].
    pub fn belongs_to(&self, device: &Device) -> bool {
        match &self.0 {
            Kind::Cpu => false,
            Kind::Owned(_, own) => own.is_same(device),
            Kind::Raw(_) => true,
            #[cfg(feature = "cudarc")]
            Kind::Cudarc(stream) => stream.context().cu_ctx().cast() == device.context.as_raw(),
        }
    }

    /// For a CPU stream, the stream of the simulated GPU; other streams are returned unchanged.
    #[doc(hidden)]
    pub fn shadow(&self) -> &Stream {
        static ABSENT: OnceLock<Stream> = OnceLock::new();
        match self.0 {
            Kind::Cpu => ABSENT.get_or_init(|| {
                Stream(Kind::Owned(OwnedStream::absent(), Arc::clone(Device::absent())))
            }),
            _ => self,
        }
    }

    /// Whether the stream accepts work of this GPU. `None` is the CPU.
    #[doc(hidden)]
    pub fn is_of(&self, device: Option<&Arc<Device>>) -> bool {
        match device {
            Some(device) => self.belongs_to(device),
            None => matches!(self.0, Kind::Cpu),
        }
    }

    /// Makes later work on this stream wait for the work that is queued on `other` now. The host does not wait.
    /// Independent work can therefore run on two streams, and a [`Graph`](crate::driver::Graph) that captures one of them
    /// captures both. The streams may belong to two GPUs.
    ///
    /// ```
    /// let ctx = einsparse::Context::new();
    /// let (main, beside) = (ctx.stream()?, ctx.stream()?);
    /// beside.wait_for(&main)?; // what is queued on `beside` now runs beside what is queued on `main`
    /// main.wait_for(&beside)?; // and both are done before what comes next on `main`
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn wait_for(&self, other: &Stream) -> Result<()> {
        if self.raw().is_absent() || other.raw().is_absent() {
            return Ok(());
        }
        // The event belongs to the context of `other`. A default stream belongs to the current context: set that of the
        // other stream.
        self.raw().set_current()?;
        other.raw().set_current()?;
        let event = Event::for_order()?;
        event.record(other.raw())?;
        self.raw().wait(&event)
    }

    /// Waits until the work on this stream is done.
    pub fn synchronize(&self) -> Result<()> {
        match &self.0 {
            Kind::Cpu => Ok(()),
            Kind::Owned(stream, device) => {
                device.context.set_current()?;
                stream.raw().synchronize()?;
                device.check()
            }
            Kind::Raw(raw) => raw.synchronize(),
            #[cfg(feature = "cudarc")]
            Kind::Cudarc(stream) => stream.synchronize().map_err(|error| Error::Cuda {
                call: "cuStreamSynchronize".into(),
                code: Some(error.0 as u32),
                reason: error.to_string(),
            }),
        }
    }
}
