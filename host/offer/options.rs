//! What a plan may do.

use crate::registry::Dtype;

/// How f32 matrices are multiplied on Tensor Cores.
///
/// ```
/// use einsparse::{Options, Precision};
/// let options = Options { precision: Precision::Tf32, ..Options::default() };
/// let ctx = einsparse::Context::cpu();
/// let (a, b) = (ctx.zeros::<f32>(&[512, 512])?, ctx.zeros::<f32>(&[512, 512])?);
/// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).operand("B", &b).options(&options).build()?;
/// let (cheapest, _) = plan.choice().candidates().next().unwrap();
/// assert!(cheapest.contains("tf32"), "{cheapest}");
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Full f32 everywhere.
    #[default]
    Full,
    /// f32 rounded to TF32 (10 bits of mantissa, `cvt.rna`) in front of the multiplication.
    Tf32,
}

/// Which treatment of implicit zeros is acceptable.
///
/// ```
/// use einsparse::{Options, ZerosRule};
/// let options = Options { zeros: ZerosRule::Strict, ..Options::default() };
/// let ctx = einsparse::Context::cpu();
/// let a = ctx.zeros::<f32>(&[2, 2])?;
/// // A dense product multiplies zeros: no kernel may run it. The CPU does.
/// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).operand("B", &a).options(&options).build()?;
/// assert_eq!(plan.variant(), "cpu");
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZerosRule {
    /// Zeros of a stored block, those between entries that a kernel gathers into a tile, and all where A is kept dense
    /// may be multiplied: a NaN or Inf in B can reach rows that own no entry there.
    #[default]
    Dense,
    /// Implicit zeros are never multiplied.
    Strict,
}

/// Whether the same inputs must give the same bits.
///
/// ```
/// use einsparse::dynamic::{DetectOptions, Detector};
/// use einsparse::{Context, Determinism};
/// // Lists in the order in which they are found: quicker, and another one at each run.
/// let options = DetectOptions { determinism: Determinism::Relaxed, ..DetectOptions::default() };
/// let detector = Detector::<f32>::new(&Context::cpu(), [64, 8], (32, 1), &options)?;
/// assert_eq!(detector.index()?.panels(), 2);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Determinism {
    /// Bit for bit the same result for the same inputs and plan.
    #[default]
    Strict,
    /// Kernels that add in any order are allowed: module `relaxed`, `+=` in f32 over single entries. What the default
    /// costs is measured against it; a plan takes it by its variant only.
    Relaxed,
}

/// From where a plan takes the values of a sparse factor.
///
/// ```
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// use einsparse::{Context, Options, Weights};
/// let a = Csr::new(CsrPattern::new(2, 3, vec![0, 1, 3], vec![2, 0, 1])?, vec![2.0f32, 3.0, 4.0])?;
/// let ctx = Context::new();
/// let mut a = ctx.upload(a)?;
/// let b = ctx.upload_dense(&Dense::new([3, 1], vec![1.0, 10.0, 100.0])?)?;
/// let options = Options { weights: Weights::Static, ..Options::default() };
/// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).operand("B", &b).options(&options).build()?;
/// // After a step of training:
/// a.set_values(&[1.0, 1.0, 1.0])?;
/// let stream = ctx.stream()?;
/// plan.update_values(&[("A", (&a).into())], &stream)?;
/// let mut c = ctx.zeros(&[2, 1])?;
/// plan.run(&[("A", (&a).into()), ("B", (&b).into())], &mut c, &stream)?;
/// stream.synchronize()?;
/// assert_eq!(c.to_dense()?.values(), [100.0, 11.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// From the operand, at each run. A plan over single entries may bring them into another form first, dense or in
    /// slices, where both together are predicted to be faster than a kernel that reads the operand.
    #[default]
    EachRun,
    /// From the operand when planned, and again at each [`Plan::update_values`](crate::plan::Plan::update_values):
    /// weights that stay as they are for many runs. A plan over single entries or 2:4 may then keep a copy in another
    /// form: dense, of a format that a faster kernel reads, in the order of the transpose. Where it reads the operand itself,
    /// it may do so ahead of the end of what is queued before: values that a kernel wrote are there behind
    /// `update_values`.
    Static,
}

/// What a plan may do.
///
/// ```
/// use einsparse::{Context, Options};
/// let ctx = Context::cpu();
/// let (a, b) = (ctx.zeros::<f32>(&[64, 64])?, ctx.zeros::<f32>(&[64, 64])?);
/// let options = Options { variant: Some("no_such_kernel".into()), ..Options::default() };
/// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).operand("B", &b).options(&options).build();
/// assert!(plan.unwrap_err().to_string().contains("the table has no kernel of this name"));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// See [`Precision`].
    pub precision: Precision,
    /// See [`ZerosRule`].
    pub zeros: ZerosRule,
    /// See [`Determinism`].
    pub determinism: Determinism,
    /// See [`Weights`].
    pub weights: Weights,
    /// Take this row of the table and no other.
    pub variant: Option<String>,
    /// Elements that addresses and leading dimensions of B and C are multiples of, when a run gets others than
    /// those planned with. `None`: those of the operands given.
    pub alignment: Option<usize>,
    /// Device bytes that the plan may hold. A kernel that wants more is not taken.
    ///
    /// An A in the memory of the host counts as well ([`Context::pin`](crate::Context::pin), or a host tensor, which is
    /// slower): where it fits with all that the plan holds beside it, it stays on the GPU and each run brings its
    /// values; else runs stream it in chunks of rows, under the products of those before. That is for
    /// `C[m,n] (= | +=) A[m,k] * B[k,n]`, A in CSR or COO, with any epilogue. B and C are not counted. A CPU context
    /// goes through the same chunks.
    ///
    /// The bits are those of a plan without a limit that takes the same [`variant`](Self::variant).
    pub memory_limit: Option<usize>,
    /// The plan runs once: it prepares nothing that takes the host longer than a run saves.
    #[doc(hidden)]
    pub once: bool,
}

/// What the elements are multiplied as.
pub(crate) fn multiplied_as(dtype: Dtype, precision: Precision) -> Dtype {
    match (dtype, precision) {
        (Dtype::F32, Precision::Tf32) => Dtype::Tf32,
        _ => dtype,
    }
}
