//! Root-mean-square normalisation, optionally of a residual sum.

use std::marker::PhantomData;

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Result};
use crate::families::elementwise::{Layout, RmsNormLaunch, cpu};
use crate::operator::{Operator, Run};
use crate::operator_of;
use crate::registry::Scalar;
use crate::tensor::{DenseMatrix, Tensor};

/// Root-mean-square normalisation (arXiv 1910.07467) of each token.
///
/// The result is `out[t,f] = x[t,f] * factor[f] / sqrt(mean of x[t,f]^2 over f + epsilon)`. Sums are f32 (f64 on the
/// CPU), and results are bitwise reproducible. GPU kernels exist for f32, f16 and bf16.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::Dense;
/// use einsparse::nn::RmsNorm;
/// let ctx = Context::cpu();
/// let norm = RmsNorm::<f32>::new(&ctx, [1, 2], 0.0, false)?;
/// let mut x = ctx.upload_dense(&Dense::new([1, 2], vec![1.0, 4.0])?)?;
/// let y = ctx.upload_dense(&Dense::new([1, 2], vec![0.0, 3.0])?)?;
/// let factor = ctx.upload_dense(&Dense::new([2], vec![5.0, 10.0])?)?;
/// let mut out = ctx.zeros(&[1, 2])?;
/// norm.forward_residual([&mut x, &mut out], &y, &factor, &ctx.stream()?)?;
/// assert_eq!(x.to_dense()?.values(), [1.0, 7.0]);
/// assert_eq!(out.to_dense()?.values(), [1.0, 14.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct RmsNorm<T> {
    layout: Layout,
    epsilon: f64,
    operator: Operator<RmsNormLaunch>,
    element: PhantomData<T>,
}

impl<T: Scalar> RmsNorm<T> {
    /// Creates the operation for matrices `[tokens, width]`, or `[width, tokens]` with `tokens_in_columns`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for an epsilon below 0; [`Error::Overflow`] for more than 2^31 - 1 tokens or features;
    /// [`Error::NoKernel`] for other element types.
    pub fn new(
        context: &Context,
        [tokens, width]: [usize; 2],
        epsilon: f64,
        tokens_in_columns: bool,
    ) -> Result<Self> {
        if epsilon.is_nan() || epsilon < 0.0 {
            return Err(Error::range("epsilon", epsilon, ">= 0"));
        }
        let layout = Layout::new("x", [tokens, width], tokens_in_columns)?;
        Ok(RmsNorm {
            layout,
            epsilon,
            operator: operator_of(context, |device| {
                RmsNormLaunch::new(device, T::DTYPE, layout, epsilon)
            })?,
            element: PhantomData,
        })
    }

    /// Returns the kernel name, or `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.operator.variant(RmsNormLaunch::variant)
    }

    /// Queues the normalisation of `x`; `factor` is `[width]`. Allocates nothing and does not synchronize.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand has other extents than planned; [`Error::OtherContext`] if one belongs to another
    /// context.
    pub fn forward(
        &self,
        x: &Tensor<T>,
        factor: &Tensor<T>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let (run, matrices, by) = self.start([x, out], factor, stream)?;
        run.queue(
            |launch, queue| launch.run(matrices, None, by, queue),
            || self.on_host(x, factor, out),
        )
    }

    /// Queues `x += y` and the normalisation of the sum. `x` is the residual stream of a model.
    ///
    /// # Errors
    /// Returns the errors of [`forward`](Self::forward).
    pub fn forward_residual(
        &self,
        [x, out]: [&mut Tensor<T>; 2],
        y: &Tensor<T>,
        factor: &Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let (run, matrices, by) = self.start([x, out], factor, stream)?;
        let added = run.matrix("y", y.any(), &self.layout.shape())?;
        run.queue(
            |launch, queue| launch.run(matrices, Some(added), by, queue),
            || {
                cpu::add(self.layout, x.host_rows_mut("x")?, &cpu::Host::of("y", y)?);
                self.on_host(x, factor, out)
            },
        )
    }

    fn start<'o>(
        &'o self,
        [x, out]: [&Tensor<T>; 2],
        factor: &Tensor<T>,
        stream: &'o Stream,
    ) -> Result<(Run<'o, RmsNormLaunch>, [DenseMatrix; 2], u64)> {
        let run = self.operator.start(stream)?;
        let shape = self.layout.shape();
        let matrices = [run.matrix("x", x.any(), &shape)?, run.matrix("out", out.any(), &shape)?];
        let factor = run.contiguous("factor", factor.any(), &[self.layout.width])?;
        Ok((run, matrices, factor))
    }

    fn on_host(&self, x: &Tensor<T>, factor: &Tensor<T>, out: &mut Tensor<T>) -> Result<()> {
        let factor = factor.host().or_elsewhere("factor")?;
        let own = (&factor[..self.layout.width], self.epsilon);
        let to = out.host_rows_mut("out")?;
        cpu::rms_norm(self.layout, &cpu::Host::of("x", x)?, own, to);
        Ok(())
    }
}
