//! Gradient of the sums before an activation, which precedes the other gradients.

use einsparse_kernels::abi::FLAG_GELU;
use smallvec::SmallVec;

use super::{Making, Plan, Written};
use crate::cpu::gelu_slope;
use crate::device::Stream;
use crate::einsum::{Einsum, IndexExpr, SumsGradient};
use crate::error::{Elsewhere, Error, Result};
use crate::families::elementwise::ActivationLaunch;
use crate::offer::{AnyOut, wrong};
use crate::operator::Operator;
use crate::registry::Scalar;
use crate::tensor::{AnyOperand, AnyTensor, DenseMatrix, SparseTensor};
use crate::values::Slice;

/// Gradient of the sums before an activation.
#[derive(Debug)]
pub(super) struct Sums<T: Scalar> {
    pub(super) step: SumsStep<T>,
    pub(super) of: SumsGradient,
    /// With the pattern of the output if that is sparse. The step then reads and writes the values as vectors.
    pub(super) gradient: Written<T>,
}

/// How the gradient of the sums is computed.
#[derive(Debug)]
pub(super) enum SumsStep<T: Scalar> {
    Relu(Box<Plan<T>>),
    /// With the shape of the sums.
    Gelu(Box<Operator<ActivationLaunch>>, Vec<usize>),
}

impl Making<'_> {
    /// Plans the gradient of the sums before an activation.
    pub(super) fn sums<T: Scalar>(&self, of: &SumsGradient) -> Result<Sums<T>> {
        let (gradient, shape) = match &self.planned.out {
            None => {
                let shape = self.plan.out_shape().to_vec();
                (Written::Dense(self.context.zeros(&shape)?), shape)
            }
            Some(out) => {
                let gradient = out.zeros(self.context, self.planned.types.out)?;
                let shape = vec![gradient.pattern().slots()];
                (Written::Sparse(SparseTensor::of(gradient)), shape)
            }
        };
        let step = match of.einsum() {
            Some(mut e) => {
                if let Written::Sparse(_) = gradient {
                    over_values(&mut e);
                }
                let mut operands = vec![(&of.seed.tensor[..], AnyOperand::Shape(&shape))];
                operands.push((&of.gate.tensor, AnyOperand::Shape(&shape)));
                SumsStep::Relu(Box::new(self.plan(&e.to_string(), (&operands, None))?))
            }
            None => {
                let matrix = matrix_of(&shape);
                let operator = Operator::new(self.context, |device| {
                    ActivationLaunch::new(device, T::DTYPE, matrix, FLAG_GELU)
                })?;
                SumsStep::Gelu(Box::new(operator), shape)
            }
        };
        Ok(Sums { step, of: of.clone(), gradient })
    }
}

/// Replaces the indices of the gradient of the sums by one index over the values of a sparse output.
fn over_values(e: &mut Einsum) {
    let all = [&mut e.out].into_iter().chain(&mut e.factors).chain(&mut e.epilogue.gate);
    all.for_each(|access| access.indices = vec![IndexExpr::Name("p".into())]);
}

/// Rows and columns of a tensor whose rows are those of its last axis.
fn matrix_of(shape: &[usize]) -> [usize; 2] {
    let columns = shape.last().copied().unwrap_or(1);
    [shape.iter().rev().skip(1).product(), columns]
}

impl<T: Scalar> Sums<T> {
    pub(super) fn run(&mut self, given: &[(&str, AnyOperand<'_>)], stream: &Stream) -> Result<()> {
        let Sums { step, of, gradient } = self;
        let names = [&of.seed.tensor[..], &of.gate.tensor];
        match gradient {
            Written::Dense(out) => {
                let mut operands = SmallVec::<[_; 2]>::new();
                for name in names {
                    let found = given.iter().find(|(own, _)| *own == name);
                    operands.push(*found.ok_or_else(|| Error::missing_in(name, &*of))?);
                }
                step.run(&operands, &mut out.any, stream)
            }
            Written::Sparse(out) => {
                let mut vectors = SmallVec::<[_; 2]>::new();
                for name in names {
                    let found = given.iter().find(|(own, _)| *own == name);
                    let tensor = match found {
                        Some((_, AnyOperand::Sparse(tensor))) => tensor,
                        Some((_, other)) => {
                            return Err(wrong(name, "an uploaded sparse tensor", other));
                        }
                        None => return Err(Error::missing_in(name, &*of)),
                    };
                    if tensor.pattern() != out.pattern() {
                        return Err(Error::pattern(name, out.pattern(), tensor.pattern()));
                    }
                    vectors.push((name, AnyTensor::of_values(tensor)?));
                }
                let operands = vectors.iter().map(|(name, own)| (*name, AnyOperand::Dense(own)));
                let operands: SmallVec<[_; 2]> = operands.collect();
                step.run(&operands, &mut out.values_mut()?.any, stream)
            }
        }
    }
}

impl<T: Scalar> SumsStep<T> {
    /// Runs on the gradient of the output and the tensor that determines the slope.
    fn run(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        out: &mut AnyTensor,
        stream: &Stream,
    ) -> Result<()> {
        let (operator, shape) = match self {
            SumsStep::Relu(plan) => {
                return plan.any.run(operands.iter().copied(), AnyOut::Dense(out), stream);
            }
            SumsStep::Gelu(operator, shape) => (operator, shape),
        };
        let run = operator.start(stream)?;
        let tensor = |at: usize| match &operands[at] {
            (_, AnyOperand::Dense(tensor)) => Ok(*tensor),
            (name, other) => Err(wrong(name, "an uploaded dense tensor", other)),
        };
        let (dy, x) = (tensor(0)?, tensor(1)?);
        let [rows, columns] = matrix_of(shape);
        let matrix = |name: &str, own: &AnyTensor| -> Result<DenseMatrix> {
            run.check(name, own, shape)?;
            Ok(DenseMatrix { address: own.place(), rows, columns, leading: own.leading() })
        };
        let of = [matrix(operands[1].0, x)?, matrix(operands[0].0, dy)?, matrix("sums", out)?];
        run.queue(
            |launch, queue| launch.run(of[0], Some(of[1]), of[2], queue),
            || {
                let x = x.host().and_then(Slice::typed::<T>).or_elsewhere(operands[1].0)?;
                let dy = dy.host().and_then(Slice::typed::<T>).or_elsewhere(operands[0].0)?;
                let to = out.host_mut().or_elsewhere("sums")?;
                let to = to.typed::<T>().or_elsewhere("sums")?;
                for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |c| (row, c))) {
                    let at = of.each_ref().map(|own| row * own.leading + column);
                    let slope = gelu_slope(x[at[0]].to_f64());
                    to[at[2]] = T::from_f64(slope * dy[at[1]].to_f64());
                }
                Ok(())
            },
        )
    }
}
