//! Operands whose sparsity is known only at run time.

use super::Tensor;
use crate::error::{Error, Result};

/// Dense tensor as an operand whose sparsity differs in every run, such as a ReLU's output or a masked activation. A
/// plan may select a kernel that finds the empty micro-tiles at run time and skips them (PIT, arXiv 2301.10936):
///
/// | expression | dynamic | micro-tile |
/// |---|---|---|
/// | `C[m,n] = A[m,k] * B[k,n]` | A | 128, 64 or 32 rows by one column; one column if A has at most 64 rows |
/// | `C[m,n] = A[k,m] * B[k,n]` | A | one row by 64 columns |
/// | `C[m,n] = A[m,k] * B[k,n]`, or with `A[k,m]` | B | one row by 64 columns |
///
/// A leading index of all three tensors makes a batch, except for a dynamic `A[z,k,m]`. This plan allocates workspace:
/// for the values of a tensor of this size, or for the transpose of the other operand. Its runs share the workspace and
/// wait for each other, on any stream. Lists of micro-tiles are not copied to the host, and a CUDA graph can capture the
/// runs. The caller orders runs that were captured in graphs.
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
    pub(crate) options: DynamicOptions,
}

/// Expected sparsity of a dynamic operand, and the elements that count as zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct DynamicOptions {
    /// Expected sparsity, by which kernels are chosen. The result does not depend on it.
    pub(crate) expected: SparsityHint,
    /// Elements of at most this magnitude make no micro-tile nonempty.
    pub(crate) threshold: f64,
}

impl DynamicOptions {
    /// Checks the threshold of operand `name`.
    pub(crate) fn check(&self, name: &str) -> Result<()> {
        if self.threshold >= 0.0 {
            return Ok(());
        }
        Err(Error::operand(name, format!("has the threshold {}; it must be >= 0", self.threshold)))
    }
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
        Dynamic { tensor, options: DynamicOptions::default() }
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
        Dynamic { options: DynamicOptions { expected, ..self.options }, ..self }
    }

    /// Sets a threshold: micro-tiles without an element of a larger magnitude are empty. NaN is never empty. Kernels
    /// that find micro-tiles skip the empty ones, and multiply nonempty ones as they are. Dense kernels and the CPU
    /// multiply all elements. [`Options::variant`](crate::Options::variant) selects a kernel that skips. A plan keeps
    /// its threshold for all runs. It refuses a threshold that is negative or NaN.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::dynamic::Dynamic;
    /// use einsparse::formats::f16;
    /// let ctx = Context::cpu();
    /// let a = ctx.zeros::<f16>(&[4096, 4096])?;
    /// let small = Dynamic::new(&a).threshold(1e-3);
    /// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", small).operand("B", &a).build()?;
    /// assert!(plan.choice().candidates().any(|(kernel, _)| kernel.starts_with("pit_")));
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    pub fn threshold(self, threshold: f64) -> Self {
        Dynamic { options: DynamicOptions { threshold, ..self.options }, ..self }
    }
}
