//! Sums of rows in a fixed order, as a product with a sparse matrix of ones.

use einsparse_formats::Csr;

use crate::context::Context;
use crate::device::Stream;
use crate::error::Result;
use crate::plan::Plan;
use crate::registry::Scalar;
use crate::tensor::{SparseTensor, Tensor};

/// `C[m,n] = A[m,k] * B[k,n]`, or `+=`. All values of A are 1: A states which rows of B are summed to each row of C.
#[derive(Debug)]
pub(super) struct RowSum<T: Scalar> {
    ones: SparseTensor<T>,
    plan: Plan<T>,
}

impl<T: Scalar> RowSum<T> {
    /// Plans the sums for operands of these shapes. `onto`: adds to the output instead of overwriting it.
    pub(super) fn new(
        context: &Context,
        ones: Csr<T>,
        (from, to): (&Tensor<T>, &Tensor<T>),
        onto: bool,
    ) -> Result<Self> {
        let ones = context.upload(ones)?;
        let text = match onto {
            true => "C[m,n] += A[m,k] * B[k,n]",
            false => "C[m,n] = A[m,k] * B[k,n]",
        };
        let plan = context.plan(text).operand("A", &ones).operand("B", from);
        let plan = plan.operand("C", to).build()?;
        Ok(RowSum { ones, plan })
    }

    /// Queues the sums.
    pub(super) fn run(&self, from: &Tensor<T>, to: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        let operands = [("A", (&self.ones).into()), ("B", from.into())];
        self.plan.run(&operands, to, stream)
    }
}
