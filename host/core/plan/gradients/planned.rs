//! Operands of a plan without their values.

use einsparse_formats::SharedPattern;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::offer::{Options, Types, Weights, given_alignment};
use crate::registry::Dtype;
use crate::tensor::{AnyOperand, AnySparseTensor};

/// Operands of a plan without their values. Gradients are planned for them.
#[derive(Debug)]
pub(in crate::plan) struct Planned {
    pub(super) types: Types,
    pub(super) options: Options,
    pub(super) operands: Vec<(String, Kept)>,
    pub(super) out: Option<Sparse>,
}

/// Operand without its values.
#[derive(Debug)]
pub(super) enum Kept {
    /// Shape and row stride.
    Dense(Vec<usize>, usize),
    Sparse(Sparse),
    Index(Vec<usize>, Vec<u32>),
    Scalar,
}

impl Kept {
    /// Extents; empty for a number.
    pub(super) fn shape(&self) -> &[usize] {
        match self {
            Kept::Dense(shape, _) | Kept::Index(shape, _) => shape,
            Kept::Sparse(Sparse::Here(own)) => own.shape(),
            Kept::Sparse(Sparse::Host(own)) => own.view().shape(),
            Kept::Scalar => &[],
        }
    }
}

/// Sparse operand without its values.
#[derive(Debug)]
pub(super) enum Sparse {
    /// A tensor of the context without values: its pattern, and the device arrays of the pattern.
    Here(AnySparseTensor),
    /// In host memory.
    Host(SharedPattern),
}

impl Sparse {
    fn of(operand: &AnySparseTensor) -> Result<Self> {
        Ok(match operand.is_pinned() {
            true => Sparse::Host(operand.pattern().shared()),
            false => Sparse::Here(operand.structure()?),
        })
    }

    /// Creates a tensor of zeros with this pattern.
    pub(super) fn zeros(&self, context: &Context, dtype: Dtype) -> Result<AnySparseTensor> {
        match self {
            Sparse::Here(own) => own.zeros_like(context.device()),
            Sparse::Host(pattern) => {
                AnySparseTensor::new(context.device(), pattern.clone(), (dtype, None))
            }
        }
    }
}

impl Planned {
    pub(in crate::plan) fn of(
        types: Types,
        operands: &[(&str, AnyOperand<'_>)],
        out: Option<&AnySparseTensor>,
        options: &Options,
    ) -> Result<Self> {
        let kept = |operand: &AnyOperand<'_>| {
            Ok::<_, Error>(match operand {
                AnyOperand::Sparse(tensor) => Kept::Sparse(Sparse::of(tensor)?),
                AnyOperand::HostSparse(pattern, _) => Kept::Sparse(Sparse::Host(pattern.shared())),
                AnyOperand::Dense(d) | AnyOperand::Dynamic(d, _) => {
                    Kept::Dense(d.shape().to_vec(), d.leading())
                }
                AnyOperand::HostDense(shape, _) | AnyOperand::Shape(shape) => {
                    Kept::Dense(shape.to_vec(), shape.last().copied().unwrap_or(1))
                }
                AnyOperand::Index(shape, data) => Kept::Index(shape.to_vec(), data.to_vec()),
                AnyOperand::Scalar(_) => Kept::Scalar,
            })
        };
        let each =
            |(name, operand): &(&str, AnyOperand<'_>)| Ok((name.to_string(), kept(operand)?));
        let options = Options {
            // The gradients run other kernels, and values change between steps of training.
            variant: None,
            weights: Weights::EachRun,
            alignment: Some(given_alignment(options, operands)),
            ..options.clone()
        };
        let operands = operands.iter().map(each).collect::<Result<_>>()?;
        Ok(Planned { types, options, operands, out: out.map(Sparse::of).transpose()? })
    }

    pub(super) fn find(&self, name: &str) -> Result<&Kept> {
        let found = self.operands.iter().find(|(own, _)| own == name);
        found.map(|(_, kept)| kept).ok_or_else(|| Error::missing(name))
    }
}
