//! Operations that launch kernels of their own. Operands are validated in one place for the GPU and for the CPU: an
//! operator on a CPU context also holds a launch on a simulated GPU, which refuses what a GPU refuses.

use std::sync::Arc;

use crate::context::Context;
use crate::device::{Device, Stream};
use crate::driver::RawStream;
use crate::error::{Error, Result, check_shape};
use crate::kernel::Queue;
use crate::launch::Turns;
use crate::tensor::{AnySparseTensor, AnyTensor, DenseMatrix};

/// Launch of an operation in a context, and the order of its runs.
#[derive(Debug)]
pub struct Operator<L> {
    context: Context,
    /// On a CPU context: a launch on the simulated GPU. `None` on a CPU context without checks.
    launch: Option<L>,
    /// Serializes runs that share scratch memory. `None` if the launch has none, or serializes runs itself.
    order: Option<Turns>,
}

impl<L> Operator<L> {
    /// Creates the launch with `make` on the GPU, or on the simulated GPU of a CPU context.
    ///
    /// # Safety
    /// Before the caller queues a run, it validates the operands that the launch receives with the methods of that run.
    pub unsafe fn of_layer(
        context: &Context,
        make: impl FnOnce(&Arc<Device>) -> Result<L>,
    ) -> Result<Self> {
        Self::new(context, make)
    }

    /// [`of_layer`](Self::of_layer) for this crate.
    pub(crate) fn new(
        context: &Context,
        make: impl FnOnce(&Arc<Device>) -> Result<L>,
    ) -> Result<Self> {
        let launch = match context.checks() {
            true => Some(make(context.planned_on()?)?),
            false => None,
        };
        Ok(Operator { context: context.clone(), launch, order: None })
    }

    /// Serializes the runs, on any stream: they share scratch memory.
    pub fn serialized(self) -> Result<Self> {
        let order = self.context.on_gpu(|device| Turns::new(device))?;
        Ok(Operator { order, ..self })
    }

    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The launch on a GPU; `None` on the CPU.
    pub fn on_gpu(&self) -> Option<&L> {
        self.launch.as_ref().filter(|_| self.context.is_cuda())
    }

    /// The launch on a GPU or on the simulated GPU; `None` on a CPU context without checks.
    pub fn launch(&self) -> Option<&L> {
        self.launch.as_ref()
    }

    /// Returns the name of the kernel; `cpu` on a CPU context.
    pub fn variant(&self, of: impl FnOnce(&L) -> &'static str) -> &'static str {
        self.on_gpu().map_or("cpu", of)
    }

    /// Returns the names of the kernels; `cpu` on a CPU context.
    pub fn variants<const N: usize>(
        &self,
        of: impl FnOnce(&L) -> [&'static str; N],
    ) -> [&'static str; N] {
        self.on_gpu().map_or(["cpu"; N], of)
    }

    /// Returns the bytes of device memory; 0 on a CPU context.
    pub fn bytes(&self, of: impl FnOnce(&L) -> usize) -> usize {
        self.on_gpu().map_or(0, of)
    }

    /// Begins a run: validates the stream.
    pub fn start<'o>(&'o self, stream: &'o Stream) -> Result<Run<'o, L>> {
        Ok(Run { stream: self.context.stream_of(stream)?, operator: self })
    }

    /// Begins a run on a raw stream of the GPU.
    ///
    /// # Safety
    /// The guarantees of [`Queue::new`] hold for all memory that the launch receives.
    ///
    /// # Errors
    /// [`Error::Cuda`] on a CPU context.
    pub(crate) unsafe fn run_raw(
        &self,
        stream: RawStream<'_>,
        launch: impl FnOnce(&L, Queue<'_>) -> Result<()>,
    ) -> Result<()> {
        self.context.expect_device()?;
        Run { operator: self, stream }.queue(launch, || Ok(()))
    }
}

impl<L> Operator<Option<L>> {
    /// Returns the operator if there is a launch.
    pub(crate) fn transpose(self) -> Option<Operator<L>> {
        let Operator { context, launch, order } = self;
        Some(Operator { context, launch: Some(launch.flatten()?), order })
    }
}

/// One run of an operator. Its methods validate operands and return them as launches receive them. On a CPU context,
/// these are addresses of equal alignment in the memory of the simulated GPU.
pub struct Run<'o, L> {
    operator: &'o Operator<L>,
    stream: RawStream<'o>,
}

impl<L> Run<'_, L> {
    /// Validates shape and context of a tensor.
    pub fn check(&self, name: &str, tensor: &AnyTensor, shape: &[usize]) -> Result<()> {
        check_shape(name, shape, tensor.shape())?;
        self.check_context(name, tensor)
    }

    /// Validates the context of a tensor.
    pub(crate) fn check_context(&self, name: &str, tensor: &AnyTensor) -> Result<()> {
        match self.operator.context.holds(tensor.device()) {
            true => Ok(()),
            false => Err(Error::elsewhere(name)),
        }
    }

    /// Validates shape and context of a matrix.
    pub fn matrix(&self, name: &str, tensor: &AnyTensor, shape: &[usize]) -> Result<DenseMatrix> {
        self.check(name, tensor, shape)?;
        Ok(DenseMatrix {
            address: tensor.place(),
            rows: shape.first().copied().unwrap_or(1),
            columns: shape.last().copied().unwrap_or(1),
            leading: tensor.leading(),
        })
    }

    /// Validates shape and context of a matrix. Returns its address and row stride.
    pub(crate) fn rows(
        &self,
        name: &str,
        tensor: &AnyTensor,
        shape: &[usize],
    ) -> Result<(u64, usize)> {
        let matrix = self.matrix(name, tensor, shape)?;
        Ok((matrix.address, matrix.leading))
    }

    /// Validates shape and context of an optional matrix.
    pub fn optional(
        &self,
        name: &str,
        tensor: Option<&AnyTensor>,
        shape: &[usize],
    ) -> Result<Option<DenseMatrix>> {
        tensor.map(|tensor| self.matrix(name, tensor, shape)).transpose()
    }

    /// Validates shape and context of a tensor, and that its rows have no gaps as kernels require. Returns its address.
    pub fn contiguous(&self, name: &str, tensor: &AnyTensor, shape: &[usize]) -> Result<u64> {
        match self.operator.context.checks() {
            true => self.whole(name, tensor, shape),
            false => self.matrix(name, tensor, shape).map(|matrix| matrix.address),
        }
    }

    /// Validates shape and context of a tensor, and that its rows have no gaps on any context. Returns its address.
    pub fn whole(&self, name: &str, tensor: &AnyTensor, shape: &[usize]) -> Result<u64> {
        let matrix = self.matrix(name, tensor, shape)?;
        if matrix.leading == matrix.columns {
            return Ok(matrix.address);
        }
        let expected = format!("{}, without gaps between rows", matrix.columns);
        Err(Error::stride(name, matrix.leading, expected))
    }

    /// Validates the context of a sparse tensor and returns the address of its values.
    pub(crate) fn values(&self, name: &str, tensor: &AnySparseTensor) -> Result<u64> {
        match self.operator.context.holds(tensor.device().map(|arrays| &arrays.device)) {
            true => Ok(tensor.places()[0]),
            false => Err(Error::elsewhere(name)),
        }
    }

    /// Passes the launch to `launch`, which checks what the kernels require and, on a GPU, queues them. On the CPU,
    /// `host` then computes the result.
    pub fn queue(
        self,
        launch: impl FnOnce(&L, Queue<'_>) -> Result<()>,
        host: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let Operator { context, launch: own, order } = self.operator;
        if let Some(own) = own {
            // SAFETY: the methods of this run validated the operands against the planned shapes, types and contexts.
            // The caller borrows them for the call and keeps them until the stream is done; device memory is freed only
            // after the work queued on the context. Runs that share scratch memory are serialized.
            let queue = unsafe { Queue::new(self.stream) };
            match order {
                Some(order) => order.queue(true, self.stream, || launch(own, queue))?,
                None => launch(own, queue)?,
            }
        }
        if context.is_cuda() { Ok(()) } else { host() }
    }
}

/// Waits for all work on the GPU, then calls `work`, which queues kernels and waits for their results.
pub(crate) fn run_alone<R>(
    device: &Device,
    work: impl FnOnce(Queue<'_>) -> Result<R>,
) -> Result<R> {
    // SAFETY: the caller validated its operands, which it borrows until `work` has waited. It allocated the outputs for
    // the sizes that it passes to the kernels.
    work(unsafe { Queue::new(device.after_all()?) })
}
