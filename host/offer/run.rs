//! An expression as it was planned, and a run of it: what a kernel is bound to.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Types;
use super::bind::{device_tensor, scalar_value};
use super::gate::once_each;
use crate::context::Context;
use crate::device::{Device, Stream};
use crate::einsum::Einsum;
use crate::error::{Elsewhere, Error, Refusal, Result, check_shape};
use crate::indirect::IndirectEinsum;
use crate::kernel::Queue;
use crate::registry::Dtype;
use crate::tensor::{AnyOperand, AnyTensor};

/// An expression with the shapes that it was planned for.
#[derive(Debug)]
pub(crate) struct Expression {
    pub(crate) types: Types,
    pub(crate) context: Context,
    pub(crate) einsum: Einsum,
    pub(crate) indirect: IndirectEinsum,
    pub(crate) out_shape: Vec<usize>,
    pub(crate) shapes: BTreeMap<String, Vec<usize>>,
}

/// The operands that an expression runs with, and the stream on which it does.
#[derive(Clone, Copy)]
pub(crate) struct Run<'r> {
    pub(crate) of: &'r Expression,
    pub(crate) operands: &'r [(&'r str, AnyOperand<'r>)],
    pub(crate) stream: &'r Stream,
}

impl Run<'_> {
    /// For work on everything that this run touches.
    ///
    /// # Errors
    /// An operand, the output or the stream in another context than the plan.
    pub(crate) fn queue(&self, out: &AnyTensor) -> Result<Queue<'_>> {
        self.of.check_places(self.operands, out, self.stream)
    }

    /// The same of a run that has no output.
    pub(crate) fn queue_of_operands(&self) -> Result<Queue<'_>> {
        self.of.check_stream(self.operands, self.stream)
    }

    /// The product of the scalar factors.
    pub(crate) fn factor(&self) -> Result<f64> {
        self.of.factor(self.operands)
    }

    /// Address of a dense operand, and the elements from one of its rows to the next.
    pub(crate) fn tensor(&self, name: &str) -> Result<(u64, usize)> {
        device_tensor(self.operands, name)
    }

    /// The same of the output.
    pub(crate) fn output(&self, out: &AnyTensor) -> Result<(u64, usize)> {
        let address = out.address();
        let address = address.or_elsewhere(&self.of.einsum.out.tensor)?;
        Ok((address, out.leading()))
    }
}

impl Expression {
    pub(crate) fn check_shapes(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        out: &[usize],
    ) -> Result<()> {
        once_each(operands)?;
        for (name, operand) in operands {
            let planned = self
                .shapes
                .get(*name)
                .ok_or_else(|| Error::operand(name, "is not part of the plan"))?;
            check_shape(name, planned, operand.shape())?;
        }
        check_shape(&self.einsum.out.tensor, &self.out_shape, out)
    }

    /// Everything a kernel touches lies on the plan's GPU, and the stream is one of it: what is bound of these operands
    /// may be launched. Shapes were looked at; the binding looks at patterns.
    pub(crate) fn check_places<'s>(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        out: &AnyTensor,
        stream: &'s Stream,
    ) -> Result<Queue<'s>> {
        let device = self.context.expect_device()?;
        let queue = self.check_stream(operands, stream)?;
        match out.device() {
            Some(on) if on.is_same(device) => Ok(queue),
            _ => Err(Error::elsewhere(&self.einsum.out.tensor)),
        }
    }

    /// The same without an output.
    pub(crate) fn check_stream<'s>(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        stream: &'s Stream,
    ) -> Result<Queue<'s>> {
        let device = self.context.expect_device()?;
        if !stream.belongs_to(device) {
            return Err(Error::elsewhere("stream"));
        }
        let here = |on: Option<&Arc<Device>>, name: &str| match on {
            Some(on) if on.is_same(device) => Ok(()),
            _ => Err(Error::elsewhere(name)),
        };
        for (name, operand) in operands {
            match operand {
                AnyOperand::Dense(d) => here(d.device(), name)?,
                AnyOperand::Sparse(a) => here(a.device().map(|arrays| &arrays.device), name)?,
                _ => {}
            }
        }
        // SAFETY: the operands are where the stream works, and of planned shapes; the tensors are borrowed for the
        // call, and device memory is freed only after the work queued on the context, that of another owner in the
        // order of the work (`Tensor::from_raw`).
        Ok(unsafe { Queue::new(stream.raw()) })
    }

    /// Of a run into another kind of output than planned.
    pub(super) fn other_output(&self, planned: &str, given: &str) -> Error {
        Error::operand(
            &self.einsum.out.tensor,
            format!("was planned as a {planned} output and is {given} in this run"),
        )
    }

    /// Of a run over addresses that a plan does not take.
    pub(crate) fn no_addresses(&self, variant: &str, products: &str) -> Error {
        let reason = format!("takes tensors (`Plan::run`): raw addresses are for {products}");
        let indirect = self.indirect.to_string();
        Error::no_kernel(indirect, [Refusal::of(variant, reason)])
    }

    /// The product of the scalar factors.
    pub(crate) fn factor(&self, operands: &[(&str, AnyOperand<'_>)]) -> Result<f64> {
        let mut alpha = 1.0;
        for factor in &self.einsum.scalars {
            alpha *= scalar_value(operands, factor)?;
        }
        whole_factor(self.types.out, alpha).map(|()| alpha)
    }
}

/// Terms of a row that an i32 holds the sum of, whatever 8-bit integers they are products of.
const MOST_TERMS: u64 = (1 << 17) - 1;

/// Sums of so many products of `dtype` do not wrap around.
pub(crate) fn sums_fit(dtype: Dtype, terms: u64) -> Result<()> {
    if dtype != Dtype::Int8 || terms <= MOST_TERMS {
        return Ok(());
    }
    Err(Error::Overflow {
        what: "terms of a row of int8".into(),
        value: terms.into(),
        limit: MOST_TERMS.into(),
    })
}

/// An i32 output is a whole multiple of whole sums.
pub(crate) fn whole_factor(out: Dtype, alpha: f64) -> Result<()> {
    if out != Dtype::Int32 || alpha == f64::from(alpha as i32) {
        return Ok(());
    }
    Err(Error::operand(
        "scalar factors",
        format!("their product is {alpha}, and an int32 output takes an int32"),
    ))
}
