//! Sparse matrix x dense matrix.

use crate::context::Context;
use crate::error::Result;
use crate::registry::Scalar;
use crate::tensor::{Operand, Tensor};

/// Computes `C[m,n] = A[m,k] * B[k,n]`. A is sparse, in any format; B is dense. Both are in host memory or in the
/// context.
///
/// ```
/// use einsparse::{Context, ops};
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// let a = Csr::new(CsrPattern::new(1, 3, vec![0, 2], vec![0, 2])?, vec![1.0f64, 10.0])?;
/// let b = Dense::new(vec![3, 1], vec![1.0, 2.0, 3.0])?;
/// let c = ops::spmm(&Context::cpu(), &a, &b)?;
/// assert_eq!(c.to_dense()?.values(), &[31.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if A's columns differ from B's rows;
/// [`Error::NoKernel`](crate::Error::NoKernel) if no kernel of the context reads A's format.
pub fn spmm<'a, T: Scalar>(
    context: &Context,
    a: impl Into<Operand<'a, T>>,
    b: impl Into<Operand<'a, T>>,
) -> Result<Tensor<T>> {
    super::einsum(context, "C[m,n] = A[m,k] * B[k,n]", &[("A", a.into()), ("B", b.into())])
}
