//! Operands of a run: checked against the plan, turned into addresses or handed to the CPU executor.

use std::sync::Arc;

use super::any::AnyPlan;
use super::arrays::PlannedArrays;
use crate::cpu::{self, AnyOperands, AnyOutput};
use crate::device::{Device, Stream};
use crate::dynamic::Expected;
use crate::einsum::Scalar as Factor;
use crate::error::{Error, Result};
use crate::indirect::SpmmForm;
use crate::kernel::Queue;
use crate::launch::{Launch, RawSpmm};
use crate::tensor::{AnyOperand, AnyTensor, row_major, told_by};

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

    pub(super) fn bind(
        &self,
        launch: &Launch,
        form: &SpmmForm,
        operands: &[(&str, AnyOperand<'_>)],
        out: &AnyTensor,
    ) -> Result<RawSpmm> {
        let (columns, values) = match find(operands, &form.sparse)? {
            AnyOperand::Sparse(a) => {
                let same = Some(a.format()) == form.format
                    && a.product_runs()
                        .is_some_and(|r| launch.fits(r, told_by(a.pattern())));
                let (true, Some(arrays)) = (same, a.device()) else {
                    return Err(Error::Operand {
                        name: form.sparse.clone(),
                        reason: "has not the pattern, the format or the context that was planned"
                            .into(),
                    });
                };
                (arrays.columns.address(), arrays.values.address())
            }
            AnyOperand::Dense(a) if form.format.is_none() => {
                launch.check_leading(&form.sparse, a.leading())?;
                (0, a.address().ok_or_else(|| elsewhere(&form.sparse))?)
            }
            other => return Err(wrong(&form.sparse, "an uploaded sparse tensor", other)),
        };
        let (b, ldb) = device_tensor(operands, &form.dense)?;
        let bias = match &form.bias {
            Some((name, _)) => device_tensor(operands, name)?.0,
            None => 0,
        };
        let (gate, ldg) = match &form.gate {
            Some(name) => device_tensor(operands, name)?,
            None => (0, 0),
        };
        let c = out
            .address()
            .ok_or_else(|| elsewhere(&self.einsum.out.tensor))?;
        Ok(RawSpmm {
            columns,
            values,
            b,
            ldb,
            c,
            ldc: out.leading(),
            bias,
            gate,
            ldg,
            value_stride: 0,
            alpha: self.factor(operands)?,
        })
    }

    pub(super) fn run_cpu(
        &self,
        arrays: &PlannedArrays,
        operands: &[(&str, AnyOperand<'_>)],
        out: &mut AnyTensor,
    ) -> Result<()> {
        self.factor(operands)?;
        let mut bound = AnyOperands::default();
        arrays.bind(&mut bound)?;
        for (name, operand) in operands
            .iter()
            .filter(|(n, _)| *n != self.einsum.out.tensor)
        {
            match operand {
                AnyOperand::Sparse(a) => {
                    let values = a.host().ok_or_else(|| elsewhere(name))?;
                    bound.sparse(&self.indirect, a.pattern(), values)?;
                }
                AnyOperand::HostSparse(pattern, values) => {
                    bound.sparse(&self.indirect, *pattern, *values)?;
                }
                AnyOperand::Dense(d) | AnyOperand::Dynamic(d, _) => {
                    let values = d.host().ok_or_else(|| elsewhere(name))?;
                    bound.strided(name, d.shape(), &d.strides(), values)?;
                }
                AnyOperand::HostDense(shape, values) => {
                    bound.dense(name, shape, row_major(shape), *values);
                }
                // Those of the plan are bound.
                AnyOperand::Index(..) => {}
                AnyOperand::Scalar(x) => bound.scalar(name, *x),
            }
        }
        let (shape, leading) = (out.shape().to_vec(), out.leading());
        let values = out
            .host_mut()
            .ok_or_else(|| elsewhere(&self.einsum.out.tensor))?;
        let output = AnyOutput::new(&shape, leading, values)?;
        cpu::run_any(self.types.operands, &self.indirect, &bound, output)
    }
}
