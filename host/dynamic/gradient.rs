//! Gradients of a product with an operand that is sparse for one step.

use crate::context::Context;
use crate::device::Stream;
use crate::error::Result;
use crate::plan::{Options, Plan};
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// The gradients of `C[m,n] = A[m,k] * B[k,n]` ([`DynamicMatmul`](super::DynamicMatmul)) from that of C: `dB[k,n] = A[m,k] * dC[m,n]`,
/// whose rows are zero where A's columns are, and `dA[m,k] = dC[m,n] * B[k,n]`, for an A that came out of a ReLU only where it is
/// positive. Both by dense kernels: they read what A has, whatever its pattern, so forward and backward may follow one another
/// with other patterns each time.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::DynamicMatmulGradient;
/// use einsparse::formats::Dense;
/// let ctx = Context::cpu();
/// let a = ctx.upload_dense(&Dense::new([1, 2], vec![3.0f32, 0.0])?)?;
/// let b = ctx.upload_dense(&Dense::new([2, 1], vec![5.0, 7.0])?)?;
/// let dc = ctx.upload_dense(&Dense::new([1, 1], vec![2.0])?)?;
/// let (mut da, mut db) = (ctx.zeros(&[1, 2])?, ctx.zeros(&[2, 1])?);
/// let gradient = DynamicMatmulGradient::new(&ctx, [1, 2, 1], true)?;
/// gradient.run([&a, &b, &dc], [&mut da, &mut db], &ctx.stream()?)?;
/// assert_eq!(da.to_dense()?.values(), [10.0, 0.0]);
/// assert_eq!(db.to_dense()?.values(), [6.0, 0.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct DynamicMatmulGradient<T: Scalar> {
    first: Plan<T>,
    second: Plan<T>,
    relu_input: bool,
}

impl<T: Scalar> DynamicMatmulGradient<T> {
    /// Gradients for these extents, `[m, k, n]`. `relu_input`: A came out of a ReLU, and its gradient is zero where it is not
    /// positive, in the same kernel.
    ///
    /// # Errors
    /// [`Error::NoKernel`](crate::Error::NoKernel) where no kernel of the context takes the type.
    pub fn new(context: &Context, [m, k, n]: [usize; 3], relu_input: bool) -> Result<Self> {
        // Only the shapes are planned with.
        let (a, b) = (context.zeros::<T>(&[m, k])?, context.zeros::<T>(&[k, n])?);
        let dc = context.zeros::<T>(&[m, n])?;
        let mut operands = vec![("dC", (&dc).into()), ("B", (&b).into())];
        let first = if relu_input {
            operands.push(("A", (&a).into()));
            "dA[m,k] = relu_grad(dC[m,n] * B[k,n], A[m,k])"
        } else {
            "dA[m,k] = dC[m,n] * B[k,n]"
        };
        let first = context.plan(first, &operands, &Options::default())?;
        let operands = [("A", (&a).into()), ("dC", (&dc).into())];
        let second = context.plan("dB[k,n] = A[m,k] * dC[m,n]", &operands, &Options::default())?;
        Ok(DynamicMatmulGradient {
            first,
            second,
            relu_input,
        })
    }

    /// Queues the gradients `[dA, dB]` of `[A, B, dC]`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if an operand is not of the planned extents,
    /// [`Error::Operand`](crate::Error::Operand) if one lies in another context.
    pub fn run(
        &self,
        [a, b, dc]: [&Tensor<T>; 3],
        [da, db]: [&mut Tensor<T>; 2],
        stream: &Stream,
    ) -> Result<()> {
        let mut operands = vec![("dC", dc.into()), ("B", b.into())];
        if self.relu_input {
            operands.push(("A", a.into()));
        }
        self.first.run(&operands, da, stream)?;
        let operands = [("A", a.into()), ("dC", dc.into())];
        self.second.run(&operands, db, stream)
    }

    /// Kernels of A's gradient and of B's.
    pub fn variants(&self) -> [&'static str; 2] {
        [self.first.variant(), self.second.variant()]
    }
}
