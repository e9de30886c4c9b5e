//! How a plan into a sparse output is asked for.

use std::marker::PhantomData;

use super::{AnySampledPlan, SampledPlan};
use crate::context::Context;
use crate::error::Result;
use crate::offer::Types;
use crate::plan::Options;
use crate::registry::Scalar;
use crate::tensor::{Operand, SparseTensor, erase};

impl Context {
    /// Plans an expression whose output is sparse: `S[m,n] (= | +=) P[m,n] * X[m,k] * Y[n,k]`, computed where `out` has
    /// places. P is a sparse factor with the same pattern and may be missing, the axes of X and Y may be swapped,
    /// scalar factors are allowed. On a GPU CSR, COO, ELL and GroupCOO in every type with X and Y `[m,k]`, `[n,k]`, on
    /// Hopper in f16 and bf16 with `[k,m]`, `[k,n]` too; blocks of multiples of 16 x 16 in f16 and bf16, with X and Y
    /// both `[m,k]`, `[n,k]` or both `[k,m]`, `[k,n]`.
    ///
    /// Every other expression is computed over the places of the output, in any format and order: more dense factors
    /// (`S[i,j,k] = P[i,j,k] * X[i,r] * Y[j,r] * Z[k,r]`), scaling (`S[m,n] = P[m,n] * d[m]`), `relu`, several sparse
    /// factors, also of other patterns than the output's (`S[m,n] = A[m,k] * B[k,n]`). The CPU executor runs all of
    /// them, a GPU those that a family of kernels over index arrays takes.
    ///
    /// # Errors
    /// What parsing and checking find; [`Error::NoKernel`](crate::Error::NoKernel) for a bias, a gate, an index twice in the output, sparse
    /// factors whose zeros are fill (blocks, 2:4) and whose pattern is another one, and on a GPU for a format, type or order of
    /// axes that no kernel of the table takes.
    pub fn plan_sampled<T: Scalar>(
        &self,
        text: &str,
        operands: &[(&str, Operand<'_, T>)],
        out: &SparseTensor<T>,
    ) -> Result<SampledPlan<T>> {
        self.plan_sampled_with(text, operands, out, &Options::default())
    }

    /// [`Context::plan_sampled`] with a variant by name, less alignment of X and Y than the operands have, or leave to
    /// round f32 to TF32; the other options change nothing here.
    ///
    /// # Errors
    /// As [`Context::plan_sampled`]; [`Error::NoKernel`](crate::Error::NoKernel) where the variant does not exist or does not take the operands.
    pub fn plan_sampled_with<T: Scalar>(
        &self,
        text: &str,
        operands: &[(&str, Operand<'_, T>)],
        out: &SparseTensor<T>,
        options: &Options,
    ) -> Result<SampledPlan<T>> {
        self.plan_sampled_into(text, operands, out, options)
    }

    /// [`Context::plan_sampled_with`] into an output of another type than the operands. On a GPU that is for `i8` into
    /// f16, bf16, f32 and `i32`, onto CSR, COO, ELL and GroupCOO, with X and Y `[m,k]`, `[n,k]` and a mask of `i8`.
    /// Sums are exact; into `i32` factors are whole numbers, and results are saturated. The CPU sums in f64, and takes
    /// any types.
    ///
    /// ```
    /// use einsparse::{Context, Options};
    /// use einsparse::formats::{Csr, CsrPattern, Dense};
    /// let ctx = Context::cpu();
    /// let pattern = CsrPattern::new(2, 2, vec![0, 1, 2], vec![1, 0])?;
    /// let mut s = ctx.upload(Csr::new(pattern, vec![0i32; 2])?)?;
    /// let x = ctx.upload_dense(&Dense::new([2, 2], vec![100i8, 100, 1, 2])?)?;
    /// let y = ctx.upload_dense(&Dense::new([2, 2], vec![3i8, 4, 100, 100])?)?;
    /// let operands = [("X", (&x).into()), ("Y", (&y).into())];
    /// let text = "S[m,n] = X[m,k] * Y[n,k]";
    /// let plan = ctx.plan_sampled_into::<i8, i32>(text, &operands, &s, &Options::default())?;
    /// let stream = ctx.stream()?;
    /// plan.run(&operands, &mut s, &stream)?;
    /// stream.synchronize()?;
    /// assert_eq!(s.to_host()?.values(), [20_000, 11]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Context::plan_sampled_with`], and [`Error::Overflow`](crate::Error::Overflow) for more terms of `i8` than `i32` may hold the sum of: 131071.
    pub fn plan_sampled_into<T: Scalar, Out: Scalar>(
        &self,
        text: &str,
        operands: &[(&str, Operand<'_, T>)],
        out: &SparseTensor<Out>,
        options: &Options,
    ) -> Result<SampledPlan<T, Out>> {
        let on = (self, Types::of::<T, Out>());
        Ok(SampledPlan {
            any: AnySampledPlan::new(on, text, &erase(operands), out, options)?,
            elements: PhantomData,
        })
    }
}
