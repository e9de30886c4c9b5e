//! An operand whose sparsity is known only while running.

use super::Tensor;

/// A dense tensor as an operand that is sparse in every run in another way (a ReLU's output, a masked activation):
/// where a kernel finds and skips its empty micro-tiles (of 128, 64 or 32 rows by one column; of a right operand, or
/// one that is `[k,m]`, of one row by 64 columns) while running, a plan may take it, and keeps room then: for the
/// values of as large a tensor, or for the transpose of the other one. A tenth of the micro-tiles is expected to hold
/// something, which [`Dynamic::expecting`] changes. The expression stays what it is, and so does its result, but for
/// elements of the other operand that are not finite and meet zeros only (`zeros = Dense`).
///
/// ```
/// use einsparse::{Context, dynamic::Dynamic, einsum};
/// use einsparse::formats::Dense;
/// let ctx = Context::new();
/// let a = ctx.upload_dense(&Dense::new([2, 2], vec![0.0f32, 2.0, 0.0, 3.0])?)?;
/// let b = ctx.upload_dense(&Dense::new([2, 2], vec![1.0f32, 2.0, 3.0, 4.0])?)?;
/// let c = einsum!(ctx, "C[m,n] = A[m,k] * B[k,n]", A = Dynamic::new(&a), B = &b)?;
/// assert_eq!(c.to_dense()?.values(), &[6.0, 8.0, 9.0, 12.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Dynamic<'a, T> {
    /// The tensor; its zeros are stored.
    pub(crate) tensor: &'a Tensor<T>,
    /// What kernels are chosen for; the result does not depend on it.
    pub(crate) expected: SparsityHint,
}

/// What is expected to hold something, from 0 to 1.
///
/// ```
/// use einsparse::dynamic::SparsityHint;
/// // A single row of a micro-tile is enough for it to be there.
/// assert!(SparsityHint::Elements(0.1).share(64) > 0.99);
/// assert_eq!(SparsityHint::default(), SparsityHint::MicroTiles(0.1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SparsityHint {
    /// This share of the micro-tiles, whatever their shape: rows come and go together.
    MicroTiles(f64),
    /// This share of the elements, each by itself.
    Elements(f64),
    /// About what there was in the steps before: a plan looks at a sample of the operand in each run (some 264 boxes of
    /// 128 x 64 elements) and takes in the next ones what is best by then, of the dense kernel and those that skip
    /// micro-tiles of 128, 64 and 32 rows, by the times of the GPU. The host waits
    /// for nothing: what the GPU has not told yet is not known yet, and before the first report a tenth is expected.
    /// Which kernel rounds a step therefore depends on time, so plans do this with
    /// [`Determinism::Relaxed`](crate::Determinism::Relaxed) only, else they expect a tenth. A captured CUDA graph
    /// keeps the kernel that was best when it was captured. Of a right operand, and of one that is `[k,m]`, a tenth is
    /// expected.
    LastSteps,
}

impl SparsityHint {
    /// The share of micro-tiles of so many elements that hold something: for single elements the closed form
    /// `1 - (1 - share)^elements` of independent ones.
    ///
    /// ```
    /// use einsparse::dynamic::SparsityHint;
    /// assert_eq!(SparsityHint::MicroTiles(0.25).share(32), 0.25);
    /// assert!((SparsityHint::Elements(0.5).share(2) - 0.75).abs() < 1e-12);
    /// ```
    pub fn share(self, elements: usize) -> f64 {
        match self {
            SparsityHint::MicroTiles(share) => share,
            SparsityHint::Elements(share) => 1.0 - (1.0 - share).powf(elements as f64),
            SparsityHint::LastSteps => UNKNOWN,
        }
    }
}

impl Default for SparsityHint {
    fn default() -> Self {
        SparsityHint::MicroTiles(UNKNOWN)
    }
}

/// Of an operand of which nothing is known.
const UNKNOWN: f64 = 0.1;

impl<'a, T> Dynamic<'a, T> {
    /// The tensor as a dynamic operand.
    pub fn new(tensor: &'a Tensor<T>) -> Self {
        Dynamic { tensor, expected: SparsityHint::default() }
    }

    /// The same with something else expected; of what is no share the nearest.
    ///
    /// ```
    /// use einsparse::dynamic::{Dynamic, SparsityHint};
    /// use einsparse::{Context, einsum};
    /// let ctx = Context::cpu();
    /// let (a, b) = (ctx.zeros::<f32>(&[2, 2])?, ctx.zeros::<f32>(&[2, 2])?);
    /// let a = Dynamic::new(&a).expecting(SparsityHint::Elements(0.02));
    /// let c = einsum!(ctx, "C[m,n] = A[m,k] * B[k,n]", A = a, B = &b)?;
    /// assert_eq!(c.to_dense()?.values(), [0.0; 4]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    pub fn expecting(self, expected: SparsityHint) -> Self {
        let within = |share: f64| {
            let share = if share.is_nan() { UNKNOWN } else { share };
            share.clamp(0.0, 1.0)
        };
        let expected = match expected {
            SparsityHint::MicroTiles(share) => SparsityHint::MicroTiles(within(share)),
            SparsityHint::Elements(share) => SparsityHint::Elements(within(share)),
            SparsityHint::LastSteps => SparsityHint::LastSteps,
        };
        Dynamic { expected, ..self }
    }
}
