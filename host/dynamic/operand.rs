//! An operand whose sparsity is known only while running.

use crate::tensor::Tensor;

/// A dense tensor of which a plan expects most micro-tiles to hold nothing but zeros, others at each run. Made by [`dynamic`].
#[derive(Clone, Copy, Debug)]
pub struct Dynamic<'a, T> {
    /// The tensor; its zeros are stored.
    pub tensor: &'a Tensor<T>,
    /// Share of the micro-tiles that hold something, 0 to 1, that kernels are chosen for; the result does not depend on it.
    pub share: f64,
}

/// What is expected of an operand of which nothing is known, as at 90 % sparsity.
const SHARE: f64 = 0.1;

/// A dense tensor as an operand that is sparse in every run in another way (a ReLU's output, a masked activation): where a kernel finds
/// and skips its empty micro-tiles while running, a plan may take it; a tenth of the micro-tiles is expected to hold something. The
/// expression stays what it is, and so does its result, but for elements of the other operand that are not finite and meet zeros only
/// (`zeros = Dense`).
///
/// ```
/// use einsparse::{Context, dynamic::dynamic, einsum};
/// use einsparse::formats::Dense;
/// let ctx = Context::new();
/// let a = ctx.upload_dense(&Dense::new([2, 2], vec![0.0f32, 2.0, 0.0, 3.0])?)?;
/// let b = ctx.upload_dense(&Dense::new([2, 2], vec![1.0f32, 2.0, 3.0, 4.0])?)?;
/// let c = einsum!(ctx, "C[m,n] = A[m,k] * B[k,n]", A = dynamic(&a), B = &b)?;
/// assert_eq!(c.to_dense()?.values(), &[6.0, 8.0, 9.0, 12.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
pub fn dynamic<T>(tensor: &Tensor<T>) -> Dynamic<'_, T> {
    Dynamic {
        tensor,
        share: SHARE,
    }
}

impl<T> Dynamic<'_, T> {
    /// The same with another share of micro-tiles expected to hold something; of what is no share the nearest.
    pub fn with_share(self, share: f64) -> Self {
        let share = if share.is_nan() { SHARE } else { share };
        Dynamic {
            share: share.clamp(0.0, 1.0),
            ..self
        }
    }
}
