//! Operands of a run: checked against the plan, turned into addresses or handed to the CPU executor.

use std::sync::Arc;

use super::Plan;
use crate::cpu::{self, AnyOperands, AnyOutput};
use crate::device::{Device, Stream};
use crate::dynamic::{Dynamic, Expected};
use crate::einsum::Scalar as Factor;
use crate::error::{Error, Result};
use crate::indirect::SpmmForm;
use crate::launch::{Launch, RawSpmm};
use crate::registry::Scalar;
use crate::tensor::{Operand, Tensor, told_by};
use crate::values::{Slice, SliceMut};

/// Operands as kernels take them, and what is expected of those that are dynamic.
pub(super) type Given<'o, 'a, T> = (&'o [(&'o str, Operand<'a, T>)], &'o [(&'o str, Expected)]);

/// The same, owned.
pub(super) type Owned<'o, 'a, T> = (Vec<(&'o str, Operand<'a, T>)>, Vec<(&'o str, Expected)>);

/// The operands with the dynamic ones as the dense tensors that they are, and which those were; `None` where there are none.
pub(super) fn as_dense<'o, 'a, T: Scalar>(
    operands: &[(&'o str, Operand<'a, T>)],
) -> Option<Owned<'o, 'a, T>> {
    let dynamic = operands.iter().filter_map(|(name, operand)| match operand {
        Operand::Dynamic(d) => Some((*name, d.expected)),
        _ => None,
    });
    let dynamic: Vec<_> = dynamic.collect();
    if dynamic.is_empty() {
        return None;
    }
    let dense = operands.iter().map(|(name, operand)| match operand {
        Operand::Dynamic(d) => (*name, Operand::Dense(d.tensor)),
        other => (*name, other.clone()),
    });
    Some((dense.collect(), dynamic))
}

/// The operand of this name.
pub(super) fn find<'s, 'a, T: Scalar>(
    operands: &'s [(&str, Operand<'a, T>)],
    name: &str,
) -> Result<&'s Operand<'a, T>> {
    operands
        .iter()
        .find(|(n, _)| *n == name)
        .map(|(_, o)| o)
        .ok_or_else(|| Error::Operand {
            name: name.into(),
            reason: "was not given".into(),
        })
}

pub(super) fn wrong<T: Scalar>(name: &str, wanted: &str, found: &Operand<'_, T>) -> Error {
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

pub(super) fn device_tensor<T: Scalar>(
    operands: &[(&str, Operand<'_, T>)],
    name: &str,
) -> Result<(u64, usize)> {
    match find(operands, name)? {
        Operand::Dense(d) => Ok((d.address().ok_or_else(|| elsewhere(name))?, d.leading())),
        other => Err(wrong(name, "an uploaded dense tensor", other)),
    }
}

pub(super) fn scalar_value<T: Scalar>(
    operands: &[(&str, Operand<'_, T>)],
    factor: &Factor,
) -> Result<f64> {
    match factor {
        Factor::Literal(x) => Ok(*x),
        Factor::Name(name) => match find(operands, name)? {
            Operand::Scalar(x) => Ok(*x),
            other => Err(wrong(name, "a number", other)),
        },
    }
}

impl<T: Scalar, Out: Scalar> Plan<T, Out> {
    pub(super) fn check_shapes(
        &self,
        operands: &[(&str, Operand<'_, T>)],
        out: &Tensor<Out>,
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

    /// Everything a kernel touches lies on the plan's GPU, and the stream is one of it.
    pub(super) fn check_places(
        &self,
        operands: &[(&str, Operand<'_, T>)],
        out: &Tensor<Out>,
        stream: &Stream,
    ) -> Result<()> {
        let device = self.context.expect_device()?;
        if !stream.belongs_to(device) {
            return Err(elsewhere("stream"));
        }
        let here = |on: Option<&Arc<Device>>, name: &str| match on {
            Some(on) if on.is_same(device) => Ok(()),
            _ => Err(elsewhere(name)),
        };
        here(out.device(), &self.einsum.out.tensor)?;
        for (name, operand) in operands {
            match operand {
                Operand::Dense(d) => here(d.device(), name)?,
                Operand::Sparse(a) => here(a.device().map(|arrays| &arrays.device), name)?,
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn bind(
        &self,
        launch: &Launch,
        form: &SpmmForm,
        operands: &[(&str, Operand<'_, T>)],
        out: &Tensor<Out>,
    ) -> Result<RawSpmm> {
        let (columns, values) = match find(operands, &form.sparse)? {
            Operand::Sparse(a) => {
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
            Operand::Dense(a) if form.format.is_none() => {
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
        operands: &[(&str, Operand<'_, T>)],
        out: &mut Tensor<Out>,
    ) -> Result<()> {
        self.factor(operands)?;
        let mut bound = AnyOperands::default();
        for (name, operand) in operands
            .iter()
            .filter(|(n, _)| *n != self.einsum.out.tensor)
        {
            match operand {
                Operand::Sparse(a) => {
                    let a = a.host().ok_or_else(|| elsewhere(name))?;
                    bound.sparse(&self.indirect, a.pattern(), Slice::of(a.values()))?;
                }
                Operand::HostSparse(a) => {
                    bound.sparse(&self.indirect, a.pattern(), Slice::of(a.values()))?;
                }
                Operand::Dense(d) | Operand::Dynamic(Dynamic { tensor: d, .. }) => {
                    let values = d.host().ok_or_else(|| elsewhere(name))?;
                    bound.strided(name, d.shape(), &d.strides(), Slice::of(values))?;
                }
                Operand::HostDense(d) => {
                    bound.dense(name, d.shape(), d.strides(), Slice::of(d.values()));
                }
                Operand::Index(shape, data) => bound.index(name, shape, data)?,
                Operand::Scalar(x) => bound.scalar(name, *x),
            }
        }
        let (shape, leading) = (out.shape().to_vec(), out.leading());
        let values = out
            .host_mut()
            .ok_or_else(|| elsewhere(&self.einsum.out.tensor))?;
        let output = AnyOutput::new(&shape, leading, SliceMut::of(values))?;
        cpu::run_any(T::DTYPE, &self.indirect, &bound, output)
    }
}
