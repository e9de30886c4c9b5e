//! Operands of a run: checked against the plan, turned into addresses or handed to the CPU executor.

use std::sync::Arc;

use super::any::AnyPlan;
use crate::device::{Device, Stream};
use crate::einsum::Scalar as Factor;
use crate::error::{Error, Result};
use crate::kernel::Queue;
use crate::tensor::Expected;
use crate::tensor::{AnyOperand, AnyTensor};

/// Operands as kernels take them, and what is expected of those that are dynamic.
pub(super) type Given<'o, 'a> = (&'o [(&'o str, AnyOperand<'a>)], &'o [(&'o str, Expected)]);

/// The same, owned.
pub(super) type Owned<'o, 'a> = (Vec<(&'o str, AnyOperand<'a>)>, Vec<(&'o str, Expected)>);

/// The operands with the dynamic ones as the dense tensors that they are, and which those were; `None` where there are none.
pub(super) fn as_dense<'o, 'a>(operands: &[(&'o str, AnyOperand<'a>)]) -> Option<Owned<'o, 'a>> {
    let dynamic = operands.iter().filter_map(|(name, operand)| match operand {
        AnyOperand::Dynamic(_, expected) => Some((*name, *expected)),
        _ => None,
    });
    let dynamic: Vec<_> = dynamic.collect();
    if dynamic.is_empty() {
        return None;
    }
    let dense = operands.iter().map(|(name, operand)| match operand {
        AnyOperand::Dynamic(d, _) => (*name, AnyOperand::Dense(d)),
        other => (*name, *other),
    });
    Some((dense.collect(), dynamic))
}

/// The operand of this name.
pub(super) fn find<'s, 'a>(
    operands: &'s [(&str, AnyOperand<'a>)],
    name: &str,
) -> Result<&'s AnyOperand<'a>> {
    operands
        .iter()
        .find(|(n, _)| *n == name)
        .map(|(_, o)| o)
        .ok_or_else(|| Error::Operand {
            name: name.into(),
            reason: "was not given".into(),
        })
}

pub(super) fn wrong(name: &str, wanted: &str, found: &AnyOperand<'_>) -> Error {
    Error::Operand {
        name: name.into(),
        reason: format!("{wanted} wanted, given is a {}", found.describe()),
    }
}

pub(super) fn elsewhere(name: &str) -> Error {
    Error::Operand {
        name: name.into(),
        reason: "lies in another context than the plan".into(),
    }
}

pub(super) fn device_tensor(
    operands: &[(&str, AnyOperand<'_>)],
    name: &str,
) -> Result<(u64, usize)> {
    match find(operands, name)? {
        AnyOperand::Dense(d) => Ok((d.address().ok_or_else(|| elsewhere(name))?, d.leading())),
        other => Err(wrong(name, "an uploaded dense tensor", other)),
    }
}

pub(super) fn scalar_value(operands: &[(&str, AnyOperand<'_>)], factor: &Factor) -> Result<f64> {
    match factor {
        Factor::Literal(x) => Ok(*x),
        Factor::Name(name) => match find(operands, name)? {
            AnyOperand::Scalar(x) => Ok(*x),
            other => Err(wrong(name, "a number", other)),
        },
    }
}

impl AnyPlan {
    pub(super) fn check_shapes(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        out: &AnyTensor,
    ) -> Result<()> {
        let shape = |name: &str, planned: &[usize], found: &[usize]| {
            if planned == found {
                return Ok(());
            }
            Err(Error::Shape {
                index: name.into(),
                left: format!("planned with {planned:?}"),
                right: format!("run with {found:?}"),
            })
        };
        for (name, operand) in operands {
            let planned = self.shapes.get(*name).ok_or_else(|| Error::Operand {
                name: name.to_string(),
                reason: "is not part of the plan".into(),
            })?;
            shape(name, planned, operand.shape())?;
        }
        shape(&self.einsum.out.tensor, &self.out_shape, out.shape())
    }

    /// Everything a kernel touches lies on the plan's GPU, and the stream is one of it: what is bound of these operands
    /// may be launched. Shapes were looked at; the binding looks at patterns.
    pub(super) fn check_places<'s>(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        out: &AnyTensor,
        stream: &'s Stream,
    ) -> Result<Queue<'s>> {
        let device = self.context.expect_device()?;
        let queue = self.check_stream(operands, stream)?;
        match out.device() {
            Some(on) if on.is_same(device) => Ok(queue),
            _ => Err(elsewhere(&self.einsum.out.tensor)),
        }
    }

    /// The same without an output.
    pub(super) fn check_stream<'s>(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        stream: &'s Stream,
    ) -> Result<Queue<'s>> {
        let device = self.context.expect_device()?;
        if !stream.belongs_to(device) {
            return Err(elsewhere("stream"));
        }
        let here = |on: Option<&Arc<Device>>, name: &str| match on {
            Some(on) if on.is_same(device) => Ok(()),
            _ => Err(elsewhere(name)),
        };
        for (name, operand) in operands {
            match operand {
                AnyOperand::Dense(d) => here(d.device(), name)?,
                AnyOperand::Sparse(a) => here(a.device().map(|arrays| &arrays.device), name)?,
                _ => {}
            }
        }
        // SAFETY: the operands are where the stream works, and of planned shapes; the tensors are borrowed for the
        // call, and device memory is freed only after the work queued on the context.
        Ok(unsafe { Queue::new(stream.raw()) })
    }
}
