//! Plans: an expression and its operands are parsed, checked and rewritten, and a kernel is selected. A plan is built
//! once. It runs any number of times, with new values, without allocating.

mod advise;
mod any;
mod arrays;
mod choose;
mod cpu;
mod gradients;
mod joined;
mod path;
mod prepacked;
mod sampled;
mod slabs;
mod window;

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use crate::context::Context;
use crate::device::Stream;
use crate::driver::RawStream;
use crate::einsum::Einsum;
use crate::error::Result;
use crate::indirect::IndirectEinsum;
use crate::kernel::Queue;
use crate::launch::RawOperands;
use crate::offer::{AnyOut, Types};
use crate::registry::Scalar;
use crate::tensor::{AnySparseTensor, Operand, SparseTensor, Tensor, erase};

pub use advise::FormatAdvice;
#[doc(hidden)]
pub use advise::{Target, advice, advised_formats};
pub(crate) use any::AnyPlan;
pub(crate) use arrays::without_arrays;
pub use gradients::Gradients;
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

    /// Runs on `stream` and writes `out`: a [`Tensor`], or a [`SparseTensor`] if
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
        let operands = operands.iter().map(|(name, operand)| (*name, operand.any()));
        self.any.run(operands, out.erased(), stream)
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
        let operands = operands.iter().map(|(name, operand)| (*name, operand.any()));
        self.any.update_values(operands, stream)
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

/// Builder of a plan, from [`Context::plan`].
///
/// ```
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// let ctx = einsparse::Context::cpu();
/// let a = ctx.upload(Csr::new(CsrPattern::new(1, 2, vec![0, 2], vec![0, 1])?, vec![1i8; 2])?)?;
/// let b = ctx.upload_dense(&Dense::new([2, 64], vec![1i8; 128])?)?;
/// // int8 into int32.
/// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).operand("B", &b).output::<i32>().build()?;
/// assert_eq!(plan.out_shape(), [1, 64]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "`build` makes the plan"]
pub struct PlanBuilder<'a, T: Scalar, Out: Scalar = T> {
    context: &'a Context,
    text: &'a str,
    operands: Cow<'a, [(&'a str, Operand<'a, T>)]>,
    sparse: Option<&'a AnySparseTensor>,
    options: Cow<'a, Options>,
    out: PhantomData<Out>,
}

impl Context {
    /// Starts a plan of an expression for operands of these formats and shapes.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::formats::{Csr, CsrPattern, Dense};
    /// let ctx = Context::cpu();
    /// let pattern = CsrPattern::new(2, 3, vec![0, 1, 3], vec![2, 0, 1])?;
    /// let a = ctx.upload(Csr::new(pattern, vec![2.0f32, 3.0, 4.0])?)?;
    /// let b = ctx.upload_dense(&Dense::from_fn(vec![3, 2], |i| (i[0] * 2 + i[1]) as f32)?)?;
    /// let operands = [("A", (&a).into()), ("B", (&b).into())];
    /// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operands(&operands).build()?;
    /// let mut c = ctx.zeros(plan.out_shape())?;
    /// let stream = ctx.stream()?;
    /// plan.run(&operands, &mut c, &stream)?;
    /// stream.synchronize()?;
    /// assert_eq!(c.to_dense()?.values(), &[8.0, 10.0, 8.0, 15.0]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    pub fn plan<'a, T: Scalar>(&'a self, text: &'a str) -> PlanBuilder<'a, T> {
        PlanBuilder {
            context: self,
            text,
            operands: Cow::Borrowed(&[]),
            sparse: None,
            options: Cow::Owned(Options::default()),
            out: PhantomData,
        }
    }
}

impl<'a, T: Scalar, Out: Scalar> PlanBuilder<'a, T, Out> {
    /// Binds an operand to a name of the expression. The output may be bound too: it determines the extent of a
    /// scattered axis or the row stride of the output.
    pub fn operand(mut self, name: &'a str, operand: impl Into<Operand<'a, T>>) -> Self {
        self.operands.to_mut().push((name, operand.into()));
        self
    }

    /// Binds several operands, in addition to earlier ones.
    pub fn operands(mut self, operands: &'a [(&'a str, Operand<'a, T>)]) -> Self {
        if self.operands.is_empty() {
            self.operands = Cow::Borrowed(operands);
        } else {
            self.operands.to_mut().extend_from_slice(operands);
        }
        self
    }

    /// Sets precision, treatment of zeros, determinism and more.
    pub fn options(mut self, options: &'a Options) -> Self {
        self.options = Cow::Borrowed(options);
        self
    }

    /// Sets the element type of the output, which may differ from that of the operands.
    ///
    /// `i8` with unstructured nonzeros in A (CSR, COO, ELL, GroupCOO): `C[m,n] (= | +=) A[m,k] * B[k,n]` with row-major
    /// B, into `i32`, f16, bf16, f32 or `i8`. Eight adjacent rows of A may store at most 65,536 values.
    ///
    /// Other supported combinations on a GPU have operands of 8 bits: [`E4m3`](crate::formats::E4m3) and
    /// [`E5m2`](crate::formats::E5m2) into f16, bf16 or f32, and `i8` into these and `i32`. The expression is
    /// `C[m,n] (= | +=) A[m,k] * B[n,k]`, because Tensor Cores require both operands contiguous along k. A has blocks
    /// of 32 x 32 or of multiples of 64 x 64, or is dense, or is `i8` in `nm:2:4`. Rows of B have a multiple of 16
    /// elements. ReLU, GELU and scalar factors, which undo the quantization, are supported; a bias is not. With an
    /// `i32` output, factors must be integers, and activations are not supported.
    ///
    /// Products of fp8 are accumulated in f32. Hopper's Tensor Cores keep about 14 bits of a sum of fp8 products, so
    /// partial sums of 128 terms are added to f32 registers. Sums of `i8` are exact. The CPU accumulates in f64.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::formats::{Bsr, BsrPattern, Dense, E4m3, Element};
    /// let ctx = Context::cpu();
    /// let pattern = BsrPattern::new(64, 128, (64, 64), vec![0, 1], vec![1])?;
    /// let a = vec![E4m3::from_f64(0.5); 64 * 64];
    /// let a = ctx.upload(Bsr::new(pattern, a)?)?;
    /// let b = Dense::from_fn(vec![16, 128], |i| E4m3::from_f64(i[0] as f64))?; // [n, k]
    /// let b = ctx.upload_dense(&b)?;
    /// let operands = [("A", (&a).into()), ("B", (&b).into()), ("s", 0.25.into())];
    /// let text = "C[m,n] = s * A[m,k] * B[n,k]";
    /// let plan = ctx.plan(text).operands(&operands).output::<f32>().build()?;
    /// let mut c = ctx.zeros::<f32>(plan.out_shape())?;
    /// let stream = ctx.stream()?;
    /// plan.run(&operands, &mut c, &stream)?;
    /// stream.synchronize()?;
    /// assert_eq!(c.to_dense()?.values()[..4], [0.0, 8.0, 16.0, 24.0]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    pub fn output<O: Scalar>(self) -> PlanBuilder<'a, T, O> {
        PlanBuilder {
            context: self.context,
            text: self.text,
            operands: self.operands,
            sparse: self.sparse,
            options: self.options,
            out: PhantomData,
        }
    }

    /// Sets a sparse output with the element type and the pattern of `out`. Only the elements of the pattern are
    /// computed.
    ///
    /// `S[m,n] (= | +=) P[m,n] * X[m,k] * Y[n,k]` (SDDMM): P is an optional sparse factor with the pattern of S. The
    /// axes of X and Y may be swapped, and scalar factors are allowed. GPUs support these combinations:
    ///
    /// - CSR, COO, ELL and GroupCOO in every type, with X and Y `[m,k]`, `[n,k]`; in f16 and bf16 also `[k,m]`,
    ///   `[k,n]`.
    /// - Blocks of multiples of 16 x 16 in f16 and bf16, with X and Y both `[m,k]`, `[n,k]` or both `[k,m]`, `[k,n]`.
    /// - `i8` into f16, bf16, f32 and `i32`, onto CSR, COO, ELL and GroupCOO, with X and Y `[m,k]`, `[n,k]` and a mask
    ///   of `i8`. Sums are exact. Into `i32`, factors must be integers, and results saturate.
    ///
    /// All other expressions are computed at the nonzeros of the output, in any format and order: more dense factors
    /// (`S[i,j,k] = P[i,j,k] * X[i,r] * Y[j,r] * Z[k,r]`), scaling (`S[m,n] = P[m,n] * d[m]`), `relu`, and several
    /// sparse factors, also with other patterns than the output (`S[m,n] = A[m,k] * B[k,n]`). A context runs those that
    /// a kernel family over index arrays supports.
    ///
    /// [`SparseTensor::to_host`] copies the values of a run to host memory.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::formats::{Csr, CsrPattern, Dense};
    /// let ctx = Context::cpu();
    /// let pattern = CsrPattern::new(2, 2, vec![0, 1, 2], vec![1, 0])?;
    /// let mut s = ctx.upload(Csr::new(pattern, vec![0.0f32; 2])?)?;
    /// let x = ctx.upload_dense(&Dense::new([2, 1], vec![2.0f32, 3.0])?)?;
    /// let y = ctx.upload_dense(&Dense::new([2, 1], vec![5.0, 7.0])?)?;
    /// let operands = [("X", (&x).into()), ("Y", (&y).into())];
    /// let plan = ctx.plan("S[m,n] = X[m,k] * Y[n,k]").operands(&operands).sparse_output(&s).build()?;
    /// let stream = ctx.stream()?;
    /// plan.run(&operands, &mut s, &stream)?;
    /// stream.synchronize()?;
    /// assert_eq!(s.to_host()?.values(), [14.0, 15.0]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    pub fn sparse_output<O: Scalar>(self, out: &'a SparseTensor<O>) -> PlanBuilder<'a, T, O> {
        PlanBuilder { sparse: Some(&out.any), ..self.output() }
    }

    /// Parses, checks and rewrites the expression, and selects a kernel.
    ///
    /// # Errors
    /// - Errors of parsing and checking: unknown names, extents that differ, index arrays out of range.
    /// - [`Error::NoKernel`](crate::Error::NoKernel) if no kernel of the context supports the formats, types or order
    ///   of axes, with the reason for each kernel. For a sparse output also a bias or a `relu_grad`.
    /// - [`Error::Overflow`](crate::Error::Overflow) for rows of `i8` whose sums may not fit in `i32`: more than 131071
    ///   stored terms. Also for an [`Options::memory_limit`] that is too small for two chunks of A.
    pub fn build(self) -> Result<Plan<T, Out>> {
        let types = Types::of::<T, Out>();
        let operands = erase(&self.operands);
        let of = (&operands[..], self.sparse);
        Ok(Plan {
            any: AnyPlan::new((self.context, types), self.text, of, &self.options)?,
            elements: PhantomData,
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Output of a plan: a [`Tensor`] or a [`SparseTensor`] of elements `Out`.
///
/// ```
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// let ctx = einsparse::Context::cpu();
/// let x = ctx.upload_dense(&Dense::new([2, 1], vec![2.0f32, 3.0])?)?;
/// let pattern = CsrPattern::new(2, 2, vec![0, 1, 2], vec![1, 0])?;
/// let mut s = ctx.upload(Csr::new(pattern, vec![0.0f32; 2])?)?;
/// let operands = [("X", (&x).into())];
/// // Into the entries of a sparse tensor.
/// let plan = ctx.plan("S[m,n] = X[m,k] * X[n,k]").operands(&operands).sparse_output(&s).build()?;
/// plan.run(&operands, &mut s, &ctx.stream()?)?;
/// assert_eq!(s.to_host()?.values(), [6.0, 6.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
pub trait Output<Out: Scalar>: sealed::Sealed {
    /// Returns the output without its static element type.
    #[doc(hidden)]
    fn erased(&mut self) -> AnyOut<'_>;
}

impl<Out: Scalar> sealed::Sealed for Tensor<Out> {}

impl<Out: Scalar> Output<Out> for Tensor<Out> {
    fn erased(&mut self) -> AnyOut<'_> {
        AnyOut::Dense(&mut self.any)
    }
}

impl<Out: Scalar> sealed::Sealed for SparseTensor<Out> {}

impl<Out: Scalar> Output<Out> for SparseTensor<Out> {
    fn erased(&mut self) -> AnyOut<'_> {
        AnyOut::Sparse(&mut self.any)
    }
}
