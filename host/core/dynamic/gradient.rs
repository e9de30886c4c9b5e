//! Gradients of a product with an operand that is sparse for one step.

use std::fmt;

use super::detect::{DetectOptions, Detector};
use super::skipping::Skipping;
use einsparse_formats::allocate;

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Elsewhere, Result, check_shape};
use crate::families::gather_gemm::found::WIDTH;
use crate::families::gather_gemm::offers::pit;
use crate::operator::Operator;
use crate::plan::{Determinism, Options, Plan};
use crate::registry::Scalar;
use crate::tensor::{AnyTensor, Dynamic, Operand, SparsityHint, Tensor};
use crate::values::{Sum, with_sums};

/// Elements of A's gradient that are computed.
///
/// ```
/// use einsparse::dynamic::{DynamicMatmulGradient, GradientOfA, SparsityHint};
/// use einsparse::{Context, Determinism};
/// use einsparse::formats::{Dense, f16};
/// let ctx = Context::cpu();
/// let f = f16::from_f32;
/// // Of 128 columns the first 64 hold something.
/// let a = Dense::from_fn(vec![1, 128], |i| if i[1] < 64 { f(1.0) } else { f(0.0) })?;
/// let a = ctx.upload_dense(&a)?;
/// let b = ctx.upload_dense(&Dense::from_fn(vec![128, 8], |_| f(3.0))?)?;
/// let dc = ctx.upload_dense(&Dense::from_fn(vec![1, 8], |i| f(if i[1] == 0 { 2.0 } else { 0.0 }))?)?;
/// let (mut da, mut db) = (ctx.zeros(&[1, 128])?, ctx.zeros(&[128, 8])?);
/// let (expected, order) = (SparsityHint::MicroTiles(0.5), Determinism::Strict);
/// let gradient = DynamicMatmulGradient::new(&ctx, [1, 128, 8], GradientOfA::MicroTiles, expected, order)?;
/// gradient.backward([&a, &b, &dc], [&mut da, &mut db], &ctx.stream()?)?;
/// assert_eq!(da.to_dense()?.values()[62..66], [6.0, 6.0, 0.0, 0.0].map(f));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GradientOfA {
    /// All elements.
    #[default]
    Whole,
    /// A is the output of a ReLU: the gradient is zero where A is not positive.
    Relu,
    /// A was masked in whole pieces of 64 elements of a row, which begin at multiples of 64. Elements of pieces that
    /// are nonempty in A are computed; the others are zero. Always runs the kernel that computes only these (module
    /// `pit_sampled`).
    MicroTiles,
}

/// Gradients of `C[m,n] = A[m,k] * B[k,n]` with a [`Dynamic`](super::Dynamic) A, from the gradient of C.
/// `dB[k,n] = A[m,k] * dC[m,n]` has zero rows where A has zero columns. `dA[m,k] = dC[m,n] * B[k,n]` is computed whole
/// or where A is nonempty ([`GradientOfA`]).
///
/// The expected share of nonempty micro-tiles of 1 x 64 in A (pieces of 64 elements of a row) determines the kernels.
/// If it is small, plans select the kernel that gathers micro-tiles (kernels `pit_turned`) for B's gradient, and this
/// operation does as well. A's gradient after a ReLU is then computed only at these micro-tiles, and one search serves
/// both. In this case, an element of dC or B that is not finite does not reach gradients through empty micro-tiles
/// (`zeros = Dense`).
///
/// If all micro-tiles are expected to be nonempty, dense kernels read A. Patterns may differ in each run, also in runs
/// of a captured CUDA graph.
///
/// ```
/// use einsparse::dynamic::{DynamicMatmulGradient, GradientOfA, SparsityHint};
/// use einsparse::{Context, Determinism};
/// use einsparse::formats::Dense;
/// let ctx = Context::cpu();
/// let a = ctx.upload_dense(&Dense::new([1, 2], vec![3.0f32, 0.0])?)?;
/// let b = ctx.upload_dense(&Dense::new([2, 1], vec![5.0, 7.0])?)?;
/// let dc = ctx.upload_dense(&Dense::new([1, 1], vec![2.0])?)?;
/// let (mut da, mut db) = (ctx.zeros(&[1, 2])?, ctx.zeros(&[2, 1])?);
/// let (expected, order) = (SparsityHint::default(), Determinism::Strict);
/// let gradient = DynamicMatmulGradient::new(&ctx, [1, 2, 1], GradientOfA::Relu, expected, order)?;
/// gradient.backward([&a, &b, &dc], [&mut da, &mut db], &ctx.stream()?)?;
/// assert_eq!(da.to_dense()?.values(), [10.0, 0.0]);
/// assert_eq!(db.to_dense()?.values(), [6.0, 0.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct DynamicMatmulGradient<T: Scalar> {
    extents: [usize; 3],
    of_a: GradientOfA,
    /// Plans without skipping for A's gradient (`first`), and as plans select it for B's (`second`).
    first: Option<Plan<T>>,
    second: Option<Plan<T>>,
    /// Kernels that search A once for both gradients, if a GPU runs them.
    skipping: Option<Operator<Skipping>>,
}

impl<T: Scalar> DynamicMatmulGradient<T> {
    /// Creates the gradients for these extents, `[m, k, n]`, with the best kernels for the expected sparsity of A.
    /// With [`Determinism::Relaxed`], micro-tiles are added to B's gradient in the order in which they are found.
    ///
    /// # Errors
    /// - [`Error::NoKernel`](crate::Error::NoKernel) if no kernel of the context supports the type. For
    ///   [`GradientOfA::MicroTiles`] this includes all types except f16 and bf16.
    /// - [`Error::OutOfRange`](crate::Error::OutOfRange) for [`GradientOfA::MicroTiles`] if k or n is not a multiple of
    ///   8.
    /// - [`Error::Overflow`](crate::Error::Overflow), [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn new(
        context: &Context,
        extents: [usize; 3],
        of_a: GradientOfA,
        expected: SparsityHint,
        determinism: Determinism,
    ) -> Result<Self> {
        let options = Options { determinism, ..Options::default() };
        Self::with_options(context, extents, of_a, expected, &options)
    }

    /// Creates the gradients with these options of the plan of B's gradient.
    ///
    /// # Errors
    /// Those of [`new`](Self::new), and [`Error::NoKernel`](crate::Error::NoKernel) if the kernel that
    /// [`Options::variant`] names cannot compute B's gradient.
    #[doc(hidden)]
    pub fn with_options(
        context: &Context,
        extents: [usize; 3],
        of_a: GradientOfA,
        expected: SparsityHint,
        options: &Options,
    ) -> Result<Self> {
        let [m, k, n] = extents;
        // Plans read only the shapes of these tensors.
        let of = |shape: [usize; 2]| Tensor::of_shape(context, &shape);
        let [a, b, dc] = [of([m, k])?, of([k, n])?, of([m, n])?];
        let second = Self::of_b(context, [&a, &dc], expected, options)?;
        // The kernels that a GPU selects for B's gradient decide how it computes A's.
        let sampled = |skips: bool| match of_a {
            GradientOfA::Whole => false,
            GradientOfA::Relu => skips,
            GradientOfA::MicroTiles => true,
        };
        let own_skips = pit::skips(second.variant());
        let skipping = Operator::new(context, |device| {
            let skips = match context.is_cuda() {
                true => own_skips,
                false => {
                    let gpu = Context::of(device);
                    let (a, dc) = (gpu.zeros::<T>(&[m, k])?, gpu.zeros::<T>(&[m, n])?);
                    pit::skips(Self::of_b(&gpu, [&a, &dc], expected, options)?.variant())
                }
            };
            let make = || Skipping::new(device, T::DTYPE, extents, skips, options.determinism);
            sampled(skips).then(make).transpose()
        })?;
        let skipping = skipping.transpose().map(Operator::serialized).transpose()?;
        Ok(DynamicMatmulGradient {
            extents,
            of_a,
            first: match sampled(own_skips) {
                true => None,
                false => Some(Self::dense(context, [&a, &b, &dc], of_a)?),
            },
            second: (skipping.is_none() || !own_skips).then_some(second),
            skipping,
        })
    }

    /// Plan of A's whole gradient.
    fn dense(context: &Context, [a, b, dc]: [&Tensor<T>; 3], of_a: GradientOfA) -> Result<Plan<T>> {
        let mut operands = vec![("dC", dc.into()), ("B", b.into())];
        let text = if of_a == GradientOfA::Relu {
            operands.push(("A", a.into()));
            "dA[m,k] = relu_grad(dC[m,n] * B[k,n], A[m,k])"
        } else {
            "dA[m,k] = dC[m,n] * B[k,n]"
        };
        context.plan(text).operands(&operands).build()
    }

    /// Plan of B's gradient.
    fn of_b(
        context: &Context,
        [a, dc]: [&Tensor<T>; 2],
        expected: SparsityHint,
        options: &Options,
    ) -> Result<Plan<T>> {
        let a: Operand<'_, T> = Dynamic::new(a).expecting(expected).into();
        let operands = [("A", a), ("dC", dc.into())];
        context.plan("dB[k,n] = A[m,k] * dC[m,n]").operands(&operands).options(options).build()
    }

    /// Queues the gradients `[dA, dB]` of `[A, B, dC]`. Does not allocate and does not wait.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if an operand does not have the planned extents.
    /// [`Error::OtherContext`](crate::Error::OtherContext) if an operand is in another context;
    /// [`Error::Alignment`](crate::Error::Alignment) if one is not aligned to 16 bytes and micro-tiles are skipped.
    pub fn backward(
        &self,
        [a, b, dc]: [&Tensor<T>; 3],
        [da, db]: [&mut Tensor<T>; 2],
        stream: &Stream,
    ) -> Result<()> {
        let [m, k, n] = self.extents;
        check_shape("A", &[m, k], a.shape())?;
        check_shape("B", &[k, n], b.shape())?;
        check_shape("dC", &[m, n], dc.shape())?;
        check_shape("dA", &[m, k], da.shape())?;
        check_shape("dB", &[k, n], db.shape())?;
        let relu = self.of_a == GradientOfA::Relu;
        let first = |da: &mut Tensor<T>| {
            let Some(plan) = &self.first else {
                let (extents, of) = (self.extents, [&a.any, &b.any, &dc.any]);
                return with_sums!(T::DTYPE, A => on_host::<A>(extents, of, &mut da.any));
            };
            let mut operands = vec![("dC", dc.into()), ("B", b.into())];
            if relu {
                operands.push(("A", a.into()));
            }
            plan.run(&operands, da, stream)
        };
        match &self.skipping {
            Some(skipping) => {
                let run = skipping.start(stream)?;
                let inputs = [
                    run.matrix("A", a.any(), a.shape())?,
                    run.matrix("B", b.any(), b.shape())?,
                    run.matrix("dC", dc.any(), dc.shape())?,
                ];
                let outputs = [
                    run.matrix("dA", da.any(), da.shape())?,
                    run.matrix("dB", db.any(), db.shape())?,
                ];
                run.queue(|own, queue| own.run(relu, inputs, outputs, queue), || first(da))?;
            }
            None => first(da)?,
        }
        let Some(second) = &self.second else {
            return Ok(());
        };
        let operands = [("A", a.into()), ("dC", dc.into())];
        second.run(&operands, db, stream)
    }

    /// Names of the kernels of A's gradient and of B's.
    pub fn variants(&self) -> [&'static str; 2] {
        let [of_a, of_b] =
            self.skipping.as_ref().map_or(["cpu"; 2], |own| own.variants(Skipping::variants));
        [
            self.first.as_ref().map_or(of_a, Plan::variant),
            self.second.as_ref().map_or(of_b, Plan::variant),
        ]
    }

    /// Plan of B's gradient, with its candidates and refusals. `None` if B's gradient shares a search for micro-tiles
    /// with A's.
    pub fn plan_of_b(&self) -> Option<&Plan<T>> {
        self.second.as_ref()
    }
}

/// A's gradient at its micro-tiles, on the CPU.
fn on_host<A: Sum>(
    [m, k, n]: [usize; 3],
    [a, b, dc]: [&AnyTensor; 3],
    da: &mut AnyTensor,
) -> Result<()> {
    let (cpu, options) = (Context::unchecked_cpu(), DetectOptions::default());
    let detector = Detector::<()>::of(&cpu, a.dtype(), [m, k], (1, WIDTH), options)?;
    let mut lists = allocate::filled("lists of micro-tiles", k.div_ceil(WIDTH), Vec::new())?;
    let own = a.host().or_elsewhere("A")?;
    detector.on_host(own, a.leading(), &mut lists);
    let (ldb, ldc) = (b.leading(), dc.leading());
    let b = b.host().or_elsewhere("B")?.widen::<A>();
    let dc = dc.host().or_elsewhere("dC")?.widen::<A>();
    da.store_rows(m, k, &|row, sums: &mut [A]| {
        for (column, sum) in sums.iter_mut().enumerate() {
            if lists[column / WIDTH].binary_search(&(row as u32)).is_ok() {
                let pair = dc[row * ldc..][..n].iter().zip(&b[column * ldb..][..n]);
                pair.for_each(|(&x, &y)| *sum += x * y);
            }
        }
    })
    .or_elsewhere("dA")
}

impl<T: Scalar> fmt::Display for DynamicMatmulGradient<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [of_a, of_b] = self.variants();
        match &self.first {
            Some(first) => writeln!(f, "dA: {first}")?,
            None => writeln!(f, "dA: {of_a} at the micro-tiles of A, zeros elsewhere")?,
        }
        match &self.second {
            Some(second) => write!(f, "dB: {second}"),
            None => write!(f, "dB: {of_b} of the same micro-tiles"),
        }
    }
}
