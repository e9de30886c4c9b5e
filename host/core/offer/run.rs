//! Expression as planned, and one run of it, to which kernels are bound.

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

/// Expression with the shapes for which it was planned.
#[derive(Debug)]
pub(crate) struct Expression {
    pub(crate) types: Types,
    pub(crate) context: Context,
    pub(crate) einsum: Einsum,
    pub(crate) indirect: IndirectEinsum,
    pub(crate) out_shape: Vec<usize>,
    pub(crate) shapes: BTreeMap<String, Vec<usize>>,
}

/// Operands of one run of an expression, and its stream.
#[derive(Clone, Copy)]
pub(crate) struct Run<'r> {
    pub(crate) of: &'r Expression,
    pub(crate) operands: &'r [(&'r str, AnyOperand<'r>)],
    pub(crate) stream: &'r Stream,
}

impl Run<'_> {
    /// Returns a queue for work on the operands and the output of this run.
    ///
    /// # Errors
    /// An operand, the output or the stream belongs to another context than the plan.
    pub(crate) fn queue(&self, out: &AnyTensor) -> Result<Queue<'_>> {
        self.of.check_places(self.operands, out, self.stream)
    }

    /// Returns a queue for a run without an output. Errors are those of [`queue`](Self::queue).
    pub(crate) fn queue_of_operands(&self) -> Result<Queue<'_>> {
        self.of.check_stream(self.operands, self.stream)
    }

    /// Returns the product of the scalar factors.
    pub(crate) fn factor(&self) -> Result<f64> {
        self.of.factor(self.operands)
    }

    /// Returns the address of a dense operand, and its row stride in elements.
    pub(crate) fn tensor(&self, name: &str) -> Result<(u64, usize)> {
        device_tensor(self.operands, name)
    }

    /// Returns the address of the output, and its row stride in elements.
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
            let planned =
                self.shapes.get(*name).ok_or_else(|| Error::unknown(name, &self.einsum))?;
            check_shape(name, planned, operand.shape())?;
        }
        check_shape(&self.einsum.out.tensor, &self.out_shape, out)
    }

    /// Checks that all operands, the output and the stream belong to the GPU of the plan, so that kernels may be
    /// launched. Shapes are checked before; patterns are checked when the operands are bound.
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

    /// Checks operands and stream, as [`check_places`](Self::check_places) does, for a run without an output.
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
        // SAFETY: the operands are on the GPU of the stream and have the planned shapes. The tensors are borrowed for
        // the call. Device memory is freed only after the work queued on the context. Memory of another owner is freed
        // in the order of the work (`Tensor::from_raw`).
        Ok(unsafe { Queue::new(stream.raw()) })
    }

    /// Error of a run with another output format than planned.
    pub(super) fn other_output(&self, planned: &str, given: &str) -> Error {
        let name = &self.einsum.out.tensor;
        Error::kind(
            name,
            format_args!("a {planned} output, as planned,"),
            format_args!("a {given} one"),
        )
    }

    /// Error of a run with raw addresses on a plan that does not support them.
    pub(crate) fn no_addresses(&self, variant: &str, products: &str) -> Error {
        let reason = format!("takes tensors (`Plan::run`): raw addresses are for {products}");
        let indirect = self.indirect.to_string();
        Error::no_kernel(indirect, [Refusal::of(variant, reason)])
    }

    /// Returns the product of the scalar factors.
    pub(crate) fn factor(&self, operands: &[(&str, AnyOperand<'_>)]) -> Result<f64> {
        let mut alpha = 1.0;
        for factor in &self.einsum.scalars {
            alpha *= scalar_value(operands, factor)?;
        }
        whole_factor(self.types.out, alpha).map(|()| alpha)
    }
}

/// Maximum number of products of 8-bit integers per row whose sum always fits in an i32.
const MOST_TERMS: u64 = (1 << 17) - 1;

/// Checks that a sum of `terms` products of `dtype` cannot overflow.
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

/// Checks that the scalar factor of an i32 output is an i32.
pub(crate) fn whole_factor(out: Dtype, alpha: f64) -> Result<()> {
    if out != Dtype::Int32 || alpha == f64::from(alpha as i32) {
        return Ok(());
    }
    Err(Error::range("product of scalar factors", alpha, "an int32 for an int32 output"))
}
