//! Sums of rows that came from several places, in an order that stays: a product with a matrix of ones.

use einsparse_formats::Csr;

use crate::context::Context;
use crate::device::Stream;
use crate::error::Result;
use crate::plan::Plan;
use crate::registry::Scalar;
use crate::tensor::{SparseTensor, Tensor};

/// `C[m,n] = A[m,k] * B[k,n]`, or `+=`, with A of ones: which rows of B each row of C adds up.
#[derive(Debug)]
pub(super) struct RowSum<T: Scalar> {
    ones: SparseTensor<T>,
    plan: Plan<T>,
}

impl<T: Scalar> RowSum<T> {
    /// For operands like these; `onto`: added to what is there.
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
