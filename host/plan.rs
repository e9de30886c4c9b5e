//! From an expression and its operands to a kernel: parse, check, rewrite, choose. A plan is built once
//! and runs many times, with new values, without allocating.

mod adaptive;
mod any;
mod arrays;
mod choose;
mod cpu;
mod into;
mod joined;
mod kept;
mod path;
mod sampled;
mod window;

use std::fmt;
use std::marker::PhantomData;

use crate::context::Context;
use crate::device::Stream;
use crate::driver::RawStream;
use crate::einsum::Einsum;
use crate::error::Result;
use crate::indirect::IndirectEinsum;
use crate::kernel::Queue;
use crate::launch::RawSpmm;
use crate::registry::Scalar;
use crate::tensor::{Operand, Tensor, erase};

pub(crate) use any::AnyPlan;
pub(crate) use arrays::without_arrays;
pub use joined::PositionLists;
pub use path::{Path, Step};
pub use sampled::SampledPlan;

pub use crate::families::sddmm::cost::{Samples, predict_samples};
pub use crate::offer::{
    Candidate, Choice, Determinism, KeptForm, Options, Precision, Problem, ValuesRule, ZerosRule,
};

/// An expression bound to formats, shapes and a kernel, over elements `T` into elements `Out`.
///
/// ```
/// use einsparse::{Context, Options};
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// let ctx = Context::cpu();
/// let pattern = CsrPattern::new(2, 3, vec![0, 1, 3], vec![2, 0, 1])?;
/// let a = ctx.upload(Csr::new(pattern, vec![2.0f32, 3.0, 4.0])?)?;
/// let b = ctx.upload_dense(&Dense::from_fn(vec![3, 2], |i| (i[0] * 2 + i[1]) as f32)?)?;
/// let operands = [("A", (&a).into()), ("B", (&b).into())];
/// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]", &operands, &Options::default())?;
/// let mut c = ctx.zeros(plan.out_shape())?;
/// let stream = ctx.stream()?;
/// plan.run(&operands, &mut c, &stream)?;
/// stream.synchronize()?;
/// assert_eq!(c.to_dense()?.values(), &[8.0, 10.0, 8.0, 15.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Plan<T: Scalar, Out: Scalar = T> {
    any: AnyPlan,
    elements: PhantomData<(T, Out)>,
}

impl Context {
    /// Plans an expression for operands of these formats and shapes. The output may be among them, to give the
    /// extent of a scattered axis or its leading dimension.
    pub fn plan<T: Scalar>(
        &self,
        text: &str,
        operands: &[(&str, Operand<'_, T>)],
        options: &Options,
    ) -> Result<Plan<T>> {
        self.plan_into(text, operands, options)
    }
}

impl<T: Scalar, Out: Scalar> Plan<T, Out> {
    /// Shape of the output.
    pub fn out_shape(&self) -> &[usize] {
        &self.any.expression.out_shape
    }

    /// The expression as parsed.
    pub fn einsum(&self) -> &Einsum {
        &self.any.expression.einsum
    }

    /// The expression with the format written in.
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

    /// The form of the copy of the sparse factor that the plan keeps; `None` where it keeps none.
    pub fn kept(&self) -> Option<KeptForm> {
        self.any.kept()
    }

    /// Device bytes this plan holds beside the operands: work list and partial sums, and what it keeps of the sparse
    /// factor.
    pub fn workspace_bytes(&self) -> usize {
        self.any.workspace_bytes()
    }

    /// Runs on `stream` into `out`. On a GPU nothing is allocated and nothing waited for; the call can be captured
    /// in a CUDA graph. A plan that cuts long rows holds one set of partial sums, one that looks for
    /// micro-tiles one set of lists: its runs wait for each other, on
    /// whatever stream; a replay of a captured run must not overlap another run of the same plan. Beyond that, the
    /// order of work on different streams is the caller's.
    ///
    /// Index arrays written by hand ([`Operand::Index`]) are part of the plan: they are not among the operands of a
    /// run.
    ///
    /// # Errors
    /// Operands of another shape or pattern than planned, an index array, factors of an i32 output whose product is no whole number; output
    /// untouched.
    pub fn run(
        &self,
        operands: &[(&str, Operand<'_, T>)],
        out: &mut Tensor<Out>,
        stream: &Stream,
    ) -> Result<()> {
        self.any.run(&erase(operands), &mut out.any, stream)
    }

    /// Queues the taking of new values of the sparse factor, where the plan keeps them ([`ValuesRule::Kept`]); nothing
    /// otherwise. Allocates nothing and waits for nothing.
    ///
    /// # Errors
    /// A sparse factor of another pattern or context than planned.
    pub fn refresh(&self, operands: &[(&str, Operand<'_, T>)], stream: &Stream) -> Result<()> {
        self.any.refresh(&erase(operands), stream)
    }

    /// Runs an SpMM plan on raw device addresses and a raw stream, for users of other CUDA crates. A plan that keeps
    /// its sparse factor does not read the addresses of it.
    ///
    /// # Safety
    /// The addresses hold operands of the planned shapes, element type and pattern, in the primary context of the
    /// plan's GPU, until the work is done; C overlaps none of them; the parts of edge blocks outside the matrix are
    /// zero; `stream` is a stream of that context, which this call makes current on the thread. Replays of captured
    /// runs are ordered by the caller.
    ///
    /// # Errors
    /// [`Error::Operand`](crate::Error::Operand) for addresses less aligned than planned, leading dimensions below the
    /// number of columns, a bias that is missing, or an i32 output times what is no whole number; [`Error::Cuda`](crate::Error::Cuda) on a CPU context.
    pub unsafe fn run_raw(&self, raw: &RawSpmm, stream: RawStream<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        let queue = unsafe { Queue::new(stream) };
        self.any.run_raw(raw, queue)
    }
}

impl<T: Scalar, Out: Scalar> fmt::Display for Plan<T, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.any.fmt(f)
    }
}
