//! Plans whose output has another type than the operands: 8-bit operands into what their sums fit.

use std::marker::PhantomData;

use super::any::AnyPlan;
use super::{Options, Plan};
use crate::context::Context;
use crate::error::Result;
use crate::offer::Types;
use crate::registry::Scalar;
use crate::tensor::{Operand, erase};

impl Context {
    /// [`plan`](Context::plan) with an output of another type than the operands.
    ///
    /// `i8` with A of single entries (CSR, COO, ELL, GroupCOO) is `C[m,n] (= | +=) A[m,k] * B[k,n]`, B by rows, into
    /// the same types; eight neighbouring rows have at most 65,536 values.
    ///
    /// On a GPU the rest is for operands of 8 bits, [`E4m3`](crate::formats::E4m3) and [`E5m2`](crate::formats::E5m2)
    /// into f16, bf16 or f32, `i8` into these and `i32`: `C[m,n] (= | +=) A[m,k] * B[n,k]`, A made of blocks of 32 x 32
    /// or of multiples of 64 x 64, or dense, or for `i8` in `nm:2:4`, and rows of B of multiples of 16 elements. The
    /// Tensor Cores want both operands contiguous along k. ReLU, GELU and scalar factors are allowed, a bias is not; a
    /// factor undoes the quantisation. Into `i32` factors are whole numbers, and there is no activation.
    ///
    /// fp8 is summed in f32: Hopper's Tensor Cores keep about 14 bits of a sum of fp8 products, so every 128 terms of
    /// it are added to f32 registers. `i8` is summed exactly. The CPU sums in f64, and takes operands and outputs of
    /// any type.
    ///
    /// ```
    /// use einsparse::{Context, Options};
    /// use einsparse::formats::{Bsr, BsrPattern, Dense, E4m3, Element};
    /// let ctx = Context::cpu();
    /// let pattern = BsrPattern::new(2, 4, (2, 2), vec![0, 1], vec![1])?;
    /// let a = [1.0, 0.5, 2.0, -3.0].map(E4m3::from_f64);
    /// let a = ctx.upload(Bsr::new(pattern, a.to_vec())?)?;
    /// let b = Dense::from_fn(vec![3, 4], |i| E4m3::from_f64((i[0] + i[1]) as f64))?; // [n, k]
    /// let b = ctx.upload_dense(&b)?;
    /// let operands = [("A", (&a).into()), ("B", (&b).into()), ("s", 0.25.into())];
    /// let text = "C[m,n] = s * A[m,k] * B[n,k]";
    /// let plan = ctx.plan_into::<E4m3, f32>(text, &operands, &Options::default())?;
    /// let mut c = ctx.zeros::<f32>(plan.out_shape())?;
    /// let stream = ctx.stream()?;
    /// plan.run(&operands, &mut c, &stream)?;
    /// stream.synchronize()?;
    /// assert_eq!(c.to_dense()?.values(), &[0.875, 1.25, 1.625, -1.25, -1.5, -1.75]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`plan`](Context::plan), and [`Error::Overflow`](crate::Error::Overflow) for rows of `i8` that `i32` may not hold the sums of: more than 131071
    /// stored terms.
    pub fn plan_into<T: Scalar, Out: Scalar>(
        &self,
        text: &str,
        operands: &[(&str, Operand<'_, T>)],
        options: &Options,
    ) -> Result<Plan<T, Out>> {
        let types = Types::of::<T, Out>();
        Ok(Plan {
            any: AnyPlan::new((self, types), text, &erase(operands), options)?,
            elements: PhantomData,
        })
    }
}
