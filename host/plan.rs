//! From an expression and its operands to a kernel: parse, check, rewrite, choose. A plan is built once
//! and runs many times, with new values, without allocating.

mod adaptive;
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
use builder::AnyOut;
pub use builder::{Output, PlanBuilder};
pub use joined::PositionLists;

pub use crate::families::sddmm::cost::{Samples, predict_samples};
pub use crate::offer::{
    Candidate, Choice, Determinism, Options, Precision, PrepackedForm, Problem, Weights, ZerosRule,
};

/// An expression bound to formats, shapes and a kernel, over elements `T` into elements `Out`. [`Context::plan`] makes
/// it; it runs many times, with new values.
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

    /// The expression with the format written in.
    #[doc(hidden)]
    pub fn indirect(&self) -> &IndirectEinsum {
        &self.any.expression.indirect
    }

    /// The kernel chosen, what it was chosen from, and what was refused.
    pub fn choice(&self) -> &Choice {
        &self.any.choice
    }

    /// Name of the kernel, `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.any.variant()
    }

    /// The form in which the plan holds the sparse factor for its kernel: `dense`, or a format as it is written; `None`
    /// where the kernel reads the operand. Values come there as [`Weights`] says.
    pub fn prepacked(&self) -> Option<String> {
        self.any.prepacked().map(|form| form.to_string())
    }

    /// Device bytes this plan holds beside the operands: work list and partial sums, and what it keeps of the sparse
    /// factor.
    pub fn workspace_bytes(&self) -> usize {
        self.any.workspace_bytes()
    }

    /// Runs on `stream` into `out`, a [`Tensor`](crate::Tensor), or a [`SparseTensor`](crate::SparseTensor) where that
    /// was planned. On a GPU nothing is allocated and nothing waited for; the call can be captured in a CUDA graph. A
    /// plan that cuts long rows, or windows along k, holds one set of partial sums, one that looks for micro-tiles one
    /// set of lists: its runs wait for each other, on whatever stream; a replay of a captured run must not overlap
    /// another run of the same plan. Beyond that, the order of work on different streams is the caller's.
    ///
    /// A plan that streams A ([`Options::memory_limit`]) out of memory that is not page-locked keeps the caller until the
    /// last of it is read, and is not captured. What fails midway of a stream leaves nothing running, and C in part
    /// written.
    ///
    /// Index arrays written by hand ([`Operand::Index`]) are part of the plan: they are not among the operands of a
    /// run.
    ///
    /// # Errors
    /// Operands of another shape, pattern or context than planned, an index array, factors of an i32 output whose
    /// product is no whole number; output untouched.
    pub fn run<O: Output<Out>>(
        &self,
        operands: &[(&str, Operand<'_, T>)],
        out: &mut O,
        stream: &Stream,
    ) -> Result<()> {
        match out.erased() {
            AnyOut::Dense(out) => self.any.run(&erase(operands), out, stream),
            AnyOut::Sparse(out) => self.any.run_sparse(&erase(operands), out, stream),
        }
    }

    /// Queues the taking of new values of the sparse factor, where the plan keeps them or reads them ahead of the end of what
    /// is queued before ([`Weights::Static`]); nothing otherwise. Allocates nothing and waits for nothing.
    ///
    /// # Errors
    /// A sparse factor of another pattern or context than planned.
    pub fn update_values(
        &self,
        operands: &[(&str, Operand<'_, T>)],
        stream: &Stream,
    ) -> Result<()> {
        self.any.update_values(&erase(operands), stream)
    }

    /// Runs on raw device addresses and a raw stream, for users of other CUDA crates: a product of a matrix on a
    /// [`RawSpmm`](crate::raw::RawSpmm), one at the places of a sparse output on a [`RawSddmm`](crate::raw::RawSddmm).
    /// A plan that keeps its sparse factor does not read the addresses of it. With [`Weights::Static`] new values of it are read
    /// behind [`update_values`](Self::update_values).
    ///
    /// # Safety
    /// The addresses hold operands of the planned shapes, element type and pattern, in the primary context of the
    /// plan's GPU, until the work is done; the output overlaps none of them; the parts of edge blocks outside the
    /// matrix are zero; `stream` is a stream of that context, which this call makes current on the thread. Replays of
    /// captured runs are ordered by the caller.
    ///
    /// # Errors
    /// [`Error::Operand`](crate::Error::Operand) for addresses less aligned than planned, leading dimensions below the
    /// number of columns, a bias or a mask that is missing, or an i32 output times what is no whole number;
    /// [`Error::Cuda`](crate::Error::Cuda) on a CPU context.
    pub unsafe fn run_raw<'r>(
        &self,
        raw: impl Into<RawOperands<'r>>,
        stream: RawStream<'_>,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let queue = unsafe { Queue::new(stream) };
        match raw.into() {
            RawOperands::Spmm(raw) => self.any.run_raw(raw, queue),
            RawOperands::Sddmm(raw) => self.any.run_raw_sparse(raw, queue),
        }
    }
}

impl<T: Scalar, Out: Scalar> fmt::Display for Plan<T, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.any.fmt(f)
    }
}
