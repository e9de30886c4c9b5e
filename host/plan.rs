//! Plans: an expression and its operands are parsed, checked and rewritten, and a kernel is selected. A plan is built
//! once. It runs any number of times, with new values, without allocating.

mod advise;
mod any;
mod arrays;
mod builder;
mod choose;
mod cpu;
mod joined;
mod path;
mod prepacked;
mod sampled;
mod slabs;
mod window;

use std::fmt;
use std::marker::PhantomData;

use crate::device::Stream;
use crate::driver::RawStream;
use crate::einsum::Einsum;
use crate::error::Result;
use crate::indirect::IndirectEinsum;
use crate::kernel::Queue;
use crate::launch::RawOperands;
use crate::registry::Scalar;
use crate::tensor::{Operand, erase};

pub use advise::FormatAdvice;
#[doc(hidden)]
pub use advise::{Target, advice, advised_formats};
pub(crate) use any::AnyPlan;
pub(crate) use arrays::without_arrays;
pub use builder::{Output, PlanBuilder};
pub use joined::PositionLists;

pub use crate::families::sddmm::cost::{Samples, predict_samples};
pub use crate::offer::{
    Candidate, Choice, Determinism, Options, Precision, PrepackedForm, Problem, Weights, ZerosRule,
};

/// An expression bound to formats, shapes and a kernel, with operands of type `T` and an output of type `Out`.
/// [`Context::plan`] creates it. It runs any number of times, with new values.
///
/// [`Context::plan`]: crate::Context::plan
///
/// ```
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// let a = Csr::new(CsrPattern::new(2, 3, vec![0, 1, 3], vec![2, 0, 1])?, vec![2.0f32, 3.0, 4.0])?;
/// let ctx = einsparse::Context::new();
/// let (mut a, b) = (ctx.upload(a)?, ctx.upload_dense(&Dense::new([3, 1], vec![1.0, 10.0, 100.0])?)?);
/// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).operand("B", &b).build()?;
/// let (mut c, stream) = (ctx.zeros(plan.out_shape())?, ctx.stream()?);
/// for step in 1..3 {
///     a.set_values(&[step as f32; 3])?;
///     plan.run(&[("A", (&a).into()), ("B", (&b).into())], &mut c, &stream)?;
/// }
/// stream.synchronize()?;
/// assert_eq!(c.to_dense()?.values(), [200.0, 22.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Plan<T: Scalar, Out: Scalar = T> {
    any: AnyPlan,
    elements: PhantomData<(T, Out)>,
}

impl<T: Scalar, Out: Scalar> Plan<T, Out> {
    /// Shape of the output.
    pub fn out_shape(&self) -> &[usize] {
        &self.any.expression.out_shape
    }

    /// The expression as parsed.
    #[doc(hidden)]
    pub fn einsum(&self) -> &Einsum {
        &self.any.expression.einsum
    }

    /// The expression after the formats are substituted.
    #[doc(hidden)]
    pub fn indirect(&self) -> &IndirectEinsum {
        &self.any.expression.indirect
    }

    /// The selected kernel, the other candidates, and the refused kernels.
    pub fn choice(&self) -> &Choice {
        &self.any.choice
    }

    /// Name of the kernel; `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.any.variant()
    }

    /// Form into which the plan prepacks the sparse factor: `dense`, or the text of a format. `None` if the kernel
    /// reads the operand itself. [`Weights`] states when values are copied into this form.
    pub fn prepacked(&self) -> Option<String> {
        self.any.prepacked().map(|form| form.to_string())
    }

    /// Device bytes that this plan holds in addition to the operands: work list, partial sums, and the prepacked sparse
    /// factor.
    pub fn workspace_bytes(&self) -> usize {
        self.any.workspace_bytes()
    }

    /// Runs on `stream` and writes `out`: a [`Tensor`](crate::Tensor), or a [`SparseTensor`](crate::SparseTensor) if
    /// the plan has a sparse output. On a GPU, a run does not allocate and does not wait, and can be captured in a CUDA
    /// graph.
    ///
    /// A plan that splits long rows, or windows along k, has one set of partial sums. A plan that searches for
    /// micro-tiles has one set of lists. Runs of such a plan wait for each other, on any stream. A replay of a captured
    /// run must not overlap another run of the same plan. The caller orders all other work on different streams.
    ///
    /// A plan that streams A ([`Options::memory_limit`]) from memory that is not page-locked blocks the caller until A
    /// has been read, and cannot be captured. If a streamed run fails, no work is left running and C is partly written.
    ///
    /// Index arrays written by hand ([`Operand::Index`]) are part of the plan. They are not passed to a run.
    ///
    /// # Errors
    /// If the shape, pattern or context of an operand differs from the plan, if an index array is passed, or if the
    /// product of the factors of an i32 output is not an integer. The output is then unchanged.
    pub fn run<O: Output<Out>>(
        &self,
        operands: &[(&str, Operand<'_, T>)],
        out: &mut O,
        stream: &Stream,
    ) -> Result<()> {
        self.any.run(&erase(operands), out.erased(), stream)
    }

    /// Queues the update of the sparse factor's values. It has an effect if the plan prepacks the values, or reads them
    /// before earlier work on the stream has ended ([`Weights::Static`]). Does not allocate and does not wait.
    ///
    /// # Errors
    /// If the pattern or context of the sparse factor differs from the plan.
    pub fn update_values(
        &self,
        operands: &[(&str, Operand<'_, T>)],
        stream: &Stream,
    ) -> Result<()> {
        self.any.update_values(&erase(operands), stream)
    }

    /// Runs on raw device addresses and a raw stream, for users of other CUDA crates. SpMM plans accept a
    /// [`RawSpmm`](crate::raw::RawSpmm), plans with a sparse output a [`RawSddmm`](crate::raw::RawSddmm). A plan that
    /// prepacks its sparse factor does not read that factor's addresses. With [`Weights::Static`], new values take
    /// effect after [`update_values`](Self::update_values).
    ///
    /// # Safety
    /// - The addresses hold operands of the planned shapes, element type and pattern, in the primary context of the
    ///   plan's GPU, until the work is done.
    /// - The output overlaps none of the operands.
    /// - In blocks at the edge, elements outside the matrix are zero.
    /// - `stream` is a stream of that context. This call makes the context current on the thread.
    /// - The caller orders replays of captured runs.
    ///
    /// # Errors
    /// [`Error::Alignment`](crate::Error::Alignment) if an address is less aligned than planned;
    /// [`Error::RowStride`](crate::Error::RowStride) if a row stride is below the number of columns;
    /// [`Error::MissingOperand`](crate::Error::MissingOperand) if a bias or a mask is missing;
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) if an i32 output is multiplied by a number that is not an
    /// integer. [`Error::Cuda`](crate::Error::Cuda) on a CPU context.
    pub unsafe fn run_raw<'r>(
        &self,
        raw: impl Into<RawOperands<'r>>,
        stream: RawStream<'_>,
    ) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        let queue = unsafe { Queue::new(stream) };
        self.any.run_raw(raw.into(), queue)
    }
}

impl<T: Scalar, Out: Scalar> fmt::Display for Plan<T, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.any.fmt(f)
    }
}
