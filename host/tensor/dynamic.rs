//! Operands whose sparsity is known only at run time.

use super::Tensor;

/// Dense tensor as an operand whose sparsity differs in every run, such as a ReLU's output or a masked activation. A
/// plan may select a kernel that finds the empty micro-tiles at run time and skips them. Micro-tiles have 128, 64 or 32
/// rows by one column. Those of a right operand, or of one stored as `[k,m]`, have one row by 64 columns. This plan
/// allocates workspace: for the values of a tensor of this size, or for the transpose of the other operand.
///
/// By default a tenth of the micro-tiles is expected to be nonempty; [`Dynamic::expecting`] changes this. Expression
/// and result do not change, with one exception: elements of the other operand that are not finite may be skipped if
/// they meet only zeros (`zeros = Dense`).
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
    /// Expected sparsity, by which kernels are chosen. The result does not depend on it.
    pub(crate) expected: SparsityHint,
}

/// Expected share of nonempty micro-tiles or elements, from 0 to 1.
///
/// ```
/// use einsparse::dynamic::SparsityHint;
/// // A single row of a micro-tile is enough for it to be there.
/// assert!(SparsityHint::Elements(0.1).share(64) > 0.99);
/// assert_eq!(SparsityHint::default(), SparsityHint::MicroTiles(0.1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SparsityHint {
    /// Share of nonempty micro-tiles of any shape: the elements of a micro-tile are zero together.
    MicroTiles(f64),
    /// Share of nonzero elements, which are independent of each other.
    Elements(f64),
}

impl SparsityHint {
    /// Share of nonempty micro-tiles of `elements` elements. For [`SparsityHint::Elements`] it is
    /// `1 - (1 - share)^elements`, the closed form for independent elements.
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
        }
    }
}

impl Default for SparsityHint {
    fn default() -> Self {
        SparsityHint::MicroTiles(UNKNOWN)
    }
}

/// Share for an operand without an expectation.
const UNKNOWN: f64 = 0.1;

impl<'a, T> Dynamic<'a, T> {
    /// Wraps the tensor as a dynamic operand.
    pub fn new(tensor: &'a Tensor<T>) -> Self {
        Dynamic { tensor, expected: SparsityHint::default() }
    }

    /// Sets the expected sparsity. Values outside of 0 to 1 are replaced by the nearest valid one.
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
        };
        Dynamic { expected, ..self }
    }
}
