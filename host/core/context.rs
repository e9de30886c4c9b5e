//! The device of a computation: one GPU, or the CPU.

mod shadow;

use std::sync::Arc;

use crate::device::{Device, Stream};
use crate::driver::{RawStream, mem_get_info};
use crate::error::{Error, Result};
use crate::machine::Machine;

pub(crate) use shadow::Shadow;

/// A GPU or the CPU. It is cheap to clone. Every tensor and plan belongs to the context that created it.
///
/// ```
/// use einsparse::Context;
/// let ctx = Context::new(); // a GPU if there is one
/// let ones = ctx.upload_dense(&einsparse::formats::Dense::new([2], vec![1.0f32; 2])?)?;
/// assert_eq!(ones.to_dense()?.values(), [1.0, 1.0]);
/// assert!(!Context::cpu().is_cuda());
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Context {
    device: Option<Arc<Device>>,
    /// Skips the checks for a GPU: accepts all operands that the CPU code supports.
    unchecked: bool,
}

impl Context {
    /// Selects the first GPU for which this build has kernels, or the CPU if no GPU qualifies. The reason for each GPU
    /// that is not used is logged through `tracing`.
    ///
    /// ```
    /// let ctx = einsparse::Context::new();
    /// println!("{ctx}");
    /// ```
    pub fn new() -> Context {
        let gpus = crate::driver::device_count().unwrap_or_else(|reason| {
            tracing::info!(%reason, "no GPU");
            0
        });
        for ordinal in 0..gpus {
            match Context::cuda(ordinal) {
                Ok(context) => return context,
                Err(reason) => tracing::info!(ordinal, %reason, "GPU not used"),
            }
        }
        tracing::info!("working on the CPU");
        Context::cpu()
    }

    /// Opens GPU `ordinal`.
    ///
    /// # Errors
    /// [`Error::Cuda`] without a driver, without that GPU, or if this build lacks kernels for it.
    pub fn cuda(ordinal: u32) -> Result<Context> {
        Ok(Context::of(&Device::open(ordinal)?))
    }

    /// CPU context that uses all threads of rayon's pool. It refuses the operands that a GPU refuses.
    pub fn cpu() -> Context {
        Context { device: None, unchecked: false }
    }

    /// CPU context without the checks for a GPU. It accepts every element type, shape and stride that the CPU code
    /// supports, such as references in f64.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::nn::CrossEntropy;
    /// assert!(CrossEntropy::<f64>::new(&Context::cpu(), [4, 10]).is_err());
    /// assert!(CrossEntropy::<f64>::new(&Context::unchecked_cpu(), [4, 10]).is_ok());
    /// ```
    pub fn unchecked_cpu() -> Context {
        Context { device: None, unchecked: true }
    }

    /// Whether operands are checked as for a GPU.
    #[doc(hidden)]
    pub fn checks(&self) -> bool {
        !self.unchecked
    }

    /// Context of a simulated H200: it creates and refuses what an H200 would, and runs nothing. For tests.
    #[doc(hidden)]
    pub fn absent() -> Context {
        Context::of(Device::absent())
    }

    /// Whether this context is a GPU.
    pub fn is_cuda(&self) -> bool {
        self.device.is_some()
    }

    /// The GPU, or `None` for the CPU.
    pub fn device(&self) -> Option<&Arc<Device>> {
        self.device.as_ref()
    }

    /// Creates a stream of this context.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self.device())
    }

    /// Waits for all work submitted to this context.
    pub fn synchronize(&self) -> Result<()> {
        self.device().map_or(Ok(()), |d| d.synchronize())
    }

    /// Peak rates for predictions: those of this GPU. On a CPU context: those of an H200.
    #[doc(hidden)]
    pub fn machine(&self) -> Machine {
        self.device().map_or_else(Machine::absent, |d| *d.machine())
    }

    /// Bytes of the GPU's memory that are free: allocated neither by this process nor by another one.
    ///
    /// # Errors
    /// On a CPU context.
    pub fn free_memory(&self) -> Result<u64> {
        self.expect_device()?.context().set_current()?;
        Ok(mem_get_info()?.free)
    }

    /// Context of an open GPU.
    pub(crate) fn of(device: &Arc<Device>) -> Context {
        Context { device: Some(Arc::clone(device)), unchecked: false }
    }

    /// Whether memory of `place` belongs to this context. `None` is host memory.
    pub(crate) fn holds(&self, place: Option<&Arc<Device>>) -> bool {
        match (self.device(), place) {
            (None, None) => true,
            (Some(own), Some(place)) => own.is_same(place),
            _ => false,
        }
    }

    /// Checks that the stream accepts work of this context.
    #[doc(hidden)]
    pub fn check_stream(&self, stream: &Stream) -> Result<()> {
        match stream.is_of(self.device()) {
            true => Ok(()),
            false => Err(Error::elsewhere("stream")),
        }
    }

    /// Stream on which kernels are queued. On the CPU, queued work is checked as for a GPU and does not run.
    pub(crate) fn stream_of<'s>(&self, stream: &'s Stream) -> Result<RawStream<'s>> {
        self.check_stream(stream)?;
        Ok(match self.is_cuda() {
            true => stream.raw(),
            false => RawStream::ABSENT,
        })
    }

    /// The GPU, or the model of a GPU for a CPU context.
    ///
    /// # Errors
    /// With the feature `testing`: an invalid EINSPARSE_ARCH, on a CPU context that checks.
    #[doc(hidden)]
    pub fn planned_on(&self) -> Result<&Arc<Device>> {
        if let Some(device) = self.device() {
            return Ok(device);
        }
        #[cfg(feature = "testing")]
        if self.checks() {
            crate::device::asked_capability()?;
        }
        Ok(Device::absent())
    }

    /// Calls `make` on a GPU. Returns `None` on the CPU.
    pub(crate) fn on_gpu<M>(
        &self,
        make: impl FnOnce(&Arc<Device>) -> Result<M>,
    ) -> Result<Option<M>> {
        self.device().map(make).transpose()
    }

    pub(crate) fn expect_device(&self) -> Result<&Arc<Device>> {
        self.device().ok_or_else(|| Error::cuda("launch", "the context is the CPU"))
    }
}

impl Default for Context {
    fn default() -> Self {
        Context::new()
    }
}

impl std::fmt::Display for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.device() {
            Some(d) => {
                let facts = d.facts();
                let (major, minor) = facts.compute_capability;
                write!(f, "GPU {} ({}, sm_{major}{minor})", facts.ordinal, facts.name)
            }
            None => write!(f, "CPU ({} threads)", rayon::current_num_threads()),
        }
    }
}
