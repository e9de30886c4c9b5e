//! One-time execution of an expression: copies operands to the context if needed, plans, runs and synchronizes.

use crate::context::Context;
use crate::einsum::{Einsum, Mode};
use crate::error::{Error, Result};
use crate::offer::{AnyOut, Options, Types};
use crate::plan::{AnyPlan, without_arrays};
use crate::registry::Scalar;
use crate::tensor::{AnyOperand, AnySparseTensor, AnyTensor, IntoOperand, Operand, Tensor, erase};

/// Runs an expression once and returns the output; the macro [`einsum!`](crate::einsum!) calls this function. Operands
/// in host memory are copied to the context. For `+=`, the output is also an operand, and the result is added to a copy
/// of it.
///
/// # Errors
/// Any error of parsing, checking, planning or running; see [`Error`].
#[doc(hidden)]
pub fn einsum<T: Scalar>(
    context: &Context,
    text: &str,
    operands: &[(&str, Operand<'_, T>)],
) -> Result<Tensor<T>> {
    let types = Types::of::<T, T>();
    once((context, types), text, &erase(operands)).map(Tensor::of)
}

/// Operands of [`einsum!`](crate::einsum!), bound one at a time, so that a compiler error names the wrong operand.
///
/// ```compile_fail,E0277
/// # use einsparse::{Context, einsum, formats::Dense};
/// let (a, b) = (Dense::new([1], vec![1.0f32])?, Dense::new([1], vec![1.0f64])?);
/// einsum!(Context::cpu(), "c[i] = a[i] * b[i]", a = &a, b = &b)?;
/// # Ok::<(), einsparse::Error>(())
/// ```
#[doc(hidden)]
#[derive(Debug)]
pub struct NamedOperands<'a, T: Scalar>(Vec<(&'static str, Operand<'a, T>)>);

impl<T: Scalar> Default for NamedOperands<'_, T> {
    fn default() -> Self {
        NamedOperands(Vec::new())
    }
}

impl<'a, T: Scalar> NamedOperands<'a, T> {
    pub fn with(mut self, name: &'static str, operand: impl IntoOperand<'a, T>) -> Self {
        self.0.push((name, operand.into_operand()));
        self
    }

    pub fn operands(&self) -> &[(&'static str, Operand<'a, T>)] {
        &self.0
    }
}

/// Operand that was copied to the context.
enum Copied {
    Sparse(AnySparseTensor),
    Dense(AnyTensor),
}

fn once(
    (context, types): (&Context, Types),
    text: &str,
    operands: &[(&str, AnyOperand<'_>)],
) -> Result<AnyTensor> {
    let device = context.device();
    let copy = |(_, operand): &(&str, AnyOperand<'_>)| match operand {
        AnyOperand::HostSparse(pattern, values) => {
            let values = (types.operands, Some(*values));
            let copy = AnySparseTensor::new(device, pattern.shared(), values)?;
            Ok(Some(Copied::Sparse(copy)))
        }
        AnyOperand::HostDense(shape, values) => {
            AnyTensor::of(device, shape, *values).map(|copy| Some(Copied::Dense(copy)))
        }
        _ => Ok(None),
    };
    let copied: Vec<Option<Copied>> = operands.iter().map(copy).collect::<Result<_>>()?;
    let bound = operands.iter().zip(&copied);
    let bound = bound.map(|((name, operand), copy)| match copy {
        Some(Copied::Sparse(s)) => (*name, AnyOperand::Sparse(s)),
        Some(Copied::Dense(d)) => (*name, AnyOperand::Dense(d)),
        None => (*name, *operand),
    });
    let bound: Vec<(&str, AnyOperand<'_>)> = bound.collect();
    let options = Options { once: true, ..Options::default() };
    let plan = AnyPlan::new((context, types), text, (&bound, None), &options)?;
    let shape = plan.out_shape();
    let leading = shape.last().copied().unwrap_or(1);
    let mut out = AnyTensor::zeros(device, types.out, shape, leading)?;
    let Einsum { out: access, mode, .. } = plan.einsum();
    if *mode == Mode::Accumulate {
        let start = bound.iter().find(|(name, _)| *name == access.tensor);
        let Some((_, AnyOperand::Dense(start))) = start else {
            let reason = "`+=` adds to it: give it as a dense operand";
            return Err(Error::missing_for(&access.tensor, reason));
        };
        out.copy(start)?;
    }
    let stream = context.stream()?;
    plan.run(without_arrays(&bound), AnyOut::Dense(&mut out), &stream)?;
    stream.synchronize()?;
    Ok(out)
}

/// Runs an Einsum once in a context and returns the output tensor.
///
/// ```
/// use einsparse::{Context, einsum};
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// let ctx = Context::new();
/// let a = Csr::new(CsrPattern::new(2, 2, vec![0, 1, 2], vec![1, 0])?, vec![2.0f32, 3.0])?;
/// let b = Dense::new(vec![2, 2], vec![1.0f32, 2.0, 3.0, 4.0])?;
/// let c = einsum!(ctx, "C[m,n] = A[m,k] * B[k,n]", A = &a, B = &b)?;
/// assert_eq!(c.to_dense()?.values(), &[6.0, 8.0, 3.0, 6.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[macro_export]
macro_rules! einsum {
    ($context:expr, $text:expr $(, $name:ident = $operand:expr)* $(,)?) => {
        $crate::ops::einsum(
            &$context,
            $text,
            $crate::ops::NamedOperands::default()$(.with(stringify!($name), $operand))*.operands(),
        )
    };
}
