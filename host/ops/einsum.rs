//! An expression run once: operands copied to the context where needed, planned, run, waited for.

use crate::context::Context;
use crate::einsum::{Einsum, Mode};
use crate::error::{Error, Result};
use crate::plan::Options;
use crate::registry::Scalar;
use crate::tensor::{Operand, SparseTensor, Tensor};

/// An operand that had to be copied to the context.
enum Copied<T: Scalar> {
    Sparse(SparseTensor<T>),
    Dense(Tensor<T>),
}

/// Runs an expression once and returns the output. Host operands are copied to the context. For `+=` the output is
/// among the operands and is added to in a copy. What [`einsum!`](crate::einsum!) calls.
///
/// # Errors
/// Whatever parsing, checking, planning or running finds; see [`Error`].
pub fn einsum<T: Scalar>(
    context: &Context,
    text: &str,
    operands: &[(&str, Operand<'_, T>)],
) -> Result<Tensor<T>> {
    let copied: Vec<Option<Copied<T>>> = operands
        .iter()
        .map(|(_, operand)| {
            Ok(match operand {
                Operand::HostSparse(a) => Some(Copied::Sparse(context.upload(a.clone())?)),
                Operand::HostDense(d) => Some(Copied::Dense(context.upload_dense(d)?)),
                _ => None,
            })
        })
        .collect::<Result<_>>()?;
    let bound: Vec<(&str, Operand<'_, T>)> = operands
        .iter()
        .zip(&copied)
        .map(|((name, operand), copy)| {
            let operand = match (operand, copy) {
                (_, Some(Copied::Sparse(s))) => Operand::Sparse(s),
                (_, Some(Copied::Dense(d))) => Operand::Dense(d),
                (Operand::Sparse(s), None) => Operand::Sparse(s),
                (Operand::Dense(d), None) => Operand::Dense(d),
                (Operand::Index(shape, data), None) => Operand::Index(shape, data),
                (Operand::Dynamic(d), None) => Operand::Dynamic(*d),
                (Operand::Scalar(x), None) => Operand::Scalar(*x),
                // Host tensors were all copied above.
                (Operand::HostSparse(s), None) => Operand::HostSparse(s.clone()),
                (Operand::HostDense(d), None) => Operand::HostDense(d),
            };
            (*name, operand)
        })
        .collect();
    let plan = context.plan(text, &bound, &Options::default())?;
    let mut out = context.zeros(plan.out_shape())?;
    let Einsum {
        out: access, mode, ..
    } = plan.einsum();
    if *mode == Mode::Accumulate {
        let start = bound.iter().find(|(name, _)| *name == access.tensor);
        let Some((_, Operand::Dense(start))) = start else {
            return Err(Error::Operand {
                name: access.tensor.clone(),
                reason: "is added to by `+=` and must be given as a dense operand".into(),
            });
        };
        out.write(&start.to_dense()?)?;
    }
    let stream = context.stream()?;
    plan.run(&bound, &mut out, &stream)?;
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
            &[$((stringify!($name), $crate::Operand::from($operand))),*],
        )
    };
}
