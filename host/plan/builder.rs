//! How a plan is asked for.

use std::borrow::Cow;
use std::marker::PhantomData;

use super::{AnyPlan, Options, Plan};
use crate::context::Context;
use crate::error::Result;
use crate::offer::Types;
use crate::registry::Scalar;
use crate::tensor::{AnySparseTensor, AnyTensor, Operand, SparseTensor, Tensor, erase};

/// A plan that is being asked for: [`Context::plan`].
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
    pub(super) context: &'a Context,
    pub(super) text: &'a str,
    pub(super) operands: Cow<'a, [(&'a str, Operand<'a, T>)]>,
    sparse: Option<&'a AnySparseTensor>,
    pub(super) options: Cow<'a, Options>,
    out: PhantomData<Out>,
}

impl Context {
    /// Plans an expression for operands of these formats and shapes.
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
    /// Binds a name of the expression. The output may be among the operands, to give the extent of a scattered axis or
    /// its leading dimension.
    pub fn operand(mut self, name: &'a str, operand: impl Into<Operand<'a, T>>) -> Self {
        self.operands.to_mut().push((name, operand.into()));
        self
    }

    /// Binds these names as well.
    pub fn operands(mut self, operands: &'a [(&'a str, Operand<'a, T>)]) -> Self {
        if self.operands.is_empty() {
            self.operands = Cow::Borrowed(operands);
        } else {
            self.operands.to_mut().extend_from_slice(operands);
        }
        self
    }

    /// Precision, zeros, determinism and more.
    pub fn options(mut self, options: &'a Options) -> Self {
        self.options = Cow::Borrowed(options);
        self
    }

    /// An output of another type than the operands.
    ///
    /// `i8` with A of single entries (CSR, COO, ELL, GroupCOO) is `C[m,n] (= | +=) A[m,k] * B[k,n]`, B by rows, into
    /// `i32`, f16, bf16, f32 or `i8`; eight neighbouring rows have at most 65,536 values.
    ///
    /// On a GPU the rest is for operands of 8 bits, [`E4m3`](crate::formats::E4m3) and [`E5m2`](crate::formats::E5m2)
    /// into f16, bf16 or f32, `i8` into these and `i32`: `C[m,n] (= | +=) A[m,k] * B[n,k]`, A made of blocks of 32 x 32
    /// or of multiples of 64 x 64, or dense, or for `i8` in `nm:2:4`, and rows of B of multiples of 16 elements. The
    /// Tensor Cores want both operands contiguous along k. ReLU, GELU and scalar factors are allowed, a bias is not; a
    /// factor undoes the quantisation. Into `i32` factors are whole numbers, and there is no activation.
    ///
    /// fp8 is summed in f32: Hopper's Tensor Cores keep about 14 bits of a sum of fp8 products, so every 128 terms of
    /// it are added to f32 registers. `i8` is summed exactly. The CPU sums in f64.
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

    /// A sparse output with the pattern of `out`, and its type: what is computed where it has places.
    ///
    /// `S[m,n] (= | +=) P[m,n] * X[m,k] * Y[n,k]` (SDDMM): P is a sparse factor with the same pattern and may be
    /// missing, the axes of X and Y may be swapped, scalar factors are allowed. On a GPU CSR, COO, ELL and GroupCOO in
    /// every type with X and Y `[m,k]`, `[n,k]`, in f16 and bf16 with `[k,m]`, `[k,n]` too; blocks of
    /// multiples of 16 x 16 in f16 and bf16, with X and Y both `[m,k]`, `[n,k]` or both `[k,m]`, `[k,n]`. `i8` into
    /// f16, bf16, f32 and `i32`, onto CSR, COO, ELL and GroupCOO, with X and Y `[m,k]`, `[n,k]` and a mask of `i8`:
    /// sums are exact; into `i32` factors are whole numbers, and results are saturated.
    ///
    /// Every other expression is computed over the places of the output, in any format and order: more dense factors
    /// (`S[i,j,k] = P[i,j,k] * X[i,r] * Y[j,r] * Z[k,r]`), scaling (`S[m,n] = P[m,n] * d[m]`), `relu`, several sparse
    /// factors, also of other patterns than the output's (`S[m,n] = A[m,k] * B[k,n]`). A context runs those that
    /// a family of kernels over index arrays takes.
    ///
    /// [`SparseTensor::to_host`] reads the values of a run.
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

    /// Parses, checks, rewrites and chooses.
    ///
    /// # Errors
    /// What parsing and checking find: unknown names, extents that differ, index arrays out of range.
    /// [`Error::NoKernel`](crate::Error::NoKernel) where no kernel of the context takes the formats, types or order of
    /// axes, with the reason of each; [`Error::Overflow`](crate::Error::Overflow) for rows of `i8` that `i32` may not
    /// hold the sums of: more than 131071 stored terms, and for an [`Options::memory_limit`] that not even two chunks of A fit
    /// into. Into a sparse output also for a bias, a gate, and an index twice in
    /// the output.
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

/// An output of any type.
#[derive(Debug)]
pub enum AnyOut<'a> {
    Dense(&'a mut AnyTensor),
    Sparse(&'a mut AnySparseTensor),
}

mod sealed {
    pub trait Sealed {}
}

/// What a plan runs into: a [`Tensor`] or a [`SparseTensor`] of elements `Out`.
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
    /// Without its element type.
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
