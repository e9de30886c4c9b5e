//! Options of a plan.

use crate::registry::Dtype;

/// Precision of products of f32 matrices.
///
/// ```
/// use einsparse::{Options, Precision};
/// let options = Options::default().precision(Precision::Tf32);
/// let ctx = einsparse::Context::cpu();
/// let (a, b) = (ctx.zeros::<f32>(&[512, 512])?, ctx.zeros::<f32>(&[512, 512])?);
/// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).operand("B", &b).options(&options).build()?;
/// let (cheapest, _) = plan.choice().candidates().next().unwrap();
/// assert!(cheapest.contains("tf32"), "{cheapest}");
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Multiplies in full f32.
    #[default]
    Full,
    /// Rounds f32 operands to TF32 (10 mantissa bits, `cvt.rna`) before the multiplication on Tensor Cores.
    Tf32,
}

/// Treatment of implicit zeros that a plan accepts.
///
/// ```
/// use einsparse::{Options, ZerosRule};
/// let options = Options::default().zeros(ZerosRule::Strict);
/// let ctx = einsparse::Context::cpu();
/// let a = ctx.zeros::<f32>(&[2, 2])?;
/// // A dense product multiplies zeros: no kernel may run it. The CPU does.
/// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).operand("B", &a).options(&options).build()?;
/// assert_eq!(plan.variant(), "cpu");
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZerosRule {
    /// Kernels may multiply implicit zeros: those of a stored block, those between the nonzeros of a gathered tile, and
    /// all zeros if A is prepacked as a dense matrix. A NaN or Inf in B can then reach rows of C that have a zero at
    /// that column of A.
    #[default]
    Dense,
    /// Kernels never multiply implicit zeros.
    Strict,
}

/// Guarantee that equal inputs give equal bits.
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
    /// Returns the same bits for the same inputs and plan.
    #[default]
    Strict,
    /// Allows lists of micro-tiles in the order in which they are found. Products over them then round differently from
    /// run to run.
    Relaxed,
}

/// Source of the values of a sparse factor.
///
/// ```
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// use einsparse::{Context, Options, Weights};
/// let a = Csr::new(CsrPattern::new(2, 3, vec![0, 1, 3], vec![2, 0, 1])?, vec![2.0f32, 3.0, 4.0])?;
/// let ctx = Context::new();
/// let mut a = ctx.upload(a)?;
/// let b = ctx.upload_dense(&Dense::new([3, 1], vec![1.0, 10.0, 100.0])?)?;
/// let options = Options::default().weights(Weights::Static);
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
    /// Reads the values from the operand at each run. A plan over unstructured nonzeros may first convert them to
    /// another form, dense or sliced ELLPACK, if conversion and product are predicted to be faster than a kernel that
    /// reads the operand.
    #[default]
    EachRun,
    /// Reads the values from the operand during planning, and again at each
    /// [`Plan::update_values`](crate::plan::Plan::update_values). Use it for weights that stay constant over many runs.
    /// A plan over unstructured or 2:4 nonzeros may then store a copy in another form: dense, in a format that a faster
    /// kernel reads, or in the order of the transpose. A kernel that reads the operand itself may read it before
    /// earlier work on the stream has ended. Call `update_values` after a kernel has written new values.
    Static,
}

/// Options of a plan.
///
/// ```
/// use einsparse::{Context, Options};
/// let ctx = Context::cpu();
/// let (a, b) = (ctx.zeros::<f32>(&[64, 64])?, ctx.zeros::<f32>(&[64, 64])?);
/// let options = Options::default().variant("no_such_kernel");
/// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).operand("B", &b).options(&options).build();
/// assert!(plan.unwrap_err().to_string().contains("no kernel has this name"));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// [`Precision`] of products of f32 matrices; by default full f32.
    pub precision: Precision,
    /// [`ZerosRule`] for implicit zeros; by default kernels may multiply them.
    pub zeros: ZerosRule,
    /// [`Determinism`] of the results; by default equal inputs give equal bits.
    pub determinism: Determinism,
    /// [`Weights`]: source of the values of a sparse factor; by default the operand of each run.
    pub weights: Weights,
    /// Name of the only kernel that the plan may use. `None`: any kernel.
    pub variant: Option<String>,
    /// Number of elements that divides addresses and row strides of B and C. Set it if runs get operands with another
    /// alignment than those of planning. `None`: the alignment of the operands given.
    pub alignment: Option<usize>,
    /// Maximum device memory of the plan in bytes. Kernels that require more are refused.
    ///
    /// The limit also covers an A in host memory: pinned ([`Context::pin`](crate::Context::pin)), or a host tensor,
    /// which is slower. If A fits in addition to the rest of the plan, it stays on the GPU and each run copies its
    /// values. Otherwise each run streams A in chunks of rows and overlaps the copies with the products of earlier
    /// chunks. Streaming supports `C[m,n] (= | +=) A[m,k] * B[k,n]` with A in CSR or COO and any epilogue. B and C do
    /// not count towards the limit. A CPU context processes the same chunks.
    ///
    /// The bits equal those of a plan without a limit that uses the same [`variant`](Self::variant).
    pub memory_limit: Option<usize>,
    /// Whether the plan runs once. It then skips preparations that take the host longer than one run saves.
    #[doc(hidden)]
    pub once: bool,
}

setters! {
    Options { precision: Precision, zeros: ZerosRule, determinism: Determinism, weights: Weights }
}

impl Options {
    /// Returns these options with the name of the only kernel that the plan may use, or with `None` for any kernel.
    #[must_use]
    pub fn variant<'a>(self, name: impl Into<Option<&'a str>>) -> Self {
        Self { variant: name.into().map(str::to_owned), ..self }
    }

    /// Returns these options with the number of elements that divides addresses and row strides of B and C.
    #[must_use]
    pub fn alignment(self, elements: impl Into<Option<usize>>) -> Self {
        Self { alignment: elements.into(), ..self }
    }

    /// Returns these options with the maximum device memory of the plan in bytes.
    #[must_use]
    pub fn memory_limit(self, bytes: impl Into<Option<usize>>) -> Self {
        Self { memory_limit: bytes.into(), ..self }
    }
}

/// Element type in which a kernel multiplies elements of `dtype`.
pub fn multiplied_as(dtype: Dtype, precision: Precision) -> Dtype {
    match (dtype, precision) {
        (Dtype::F32, Precision::Tf32) => Dtype::Tf32,
        _ => dtype,
    }
}
