//! Root-mean-square normalisation, optionally of a residual sum.

use std::marker::PhantomData;

use crate::context::{Context, Prepared};
use crate::device::Stream;
use crate::dynamic::{operand, without_gaps};
use crate::error::{Elsewhere, Error, Result};
use crate::families::elementwise::{Layout, RmsNormLaunch, cpu};
use crate::kernel::Queue;
use crate::registry::Scalar;
use crate::tensor::Tensor;

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
    context: Context,
    layout: Layout,
    epsilon: f64,
    launch: Prepared<RmsNormLaunch>,
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
            context: context.clone(),
            layout,
            epsilon,
            launch: context
                .prepared(|device| RmsNormLaunch::new(device, T::DTYPE, layout, epsilon))?,
            element: PhantomData,
        })
    }

    /// Returns the kernel name, or `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.launch.as_ref().map_or("cpu", RmsNormLaunch::variant)
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
        self.check([x, out], factor)?;
        if self.launch.queue(|launch| self.queue(launch, [x, out], None, factor, stream))? {
            return Ok(());
        }
        self.on_host(x, factor, out)
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
        self.check([x, out], factor)?;
        y.check("y", &self.context, &self.layout.shape())?;
        if self.launch.queue(|launch| self.queue(launch, [x, out], Some(y), factor, stream))? {
            return Ok(());
        }
        let leading = x.leading();
        let to = x.host_mut().or_elsewhere("x")?;
        cpu::add(self.layout, (to, leading), &cpu::Host::of("y", y)?);
        self.on_host(x, factor, out)
    }

    fn check(&self, [x, out]: [&Tensor<T>; 2], factor: &Tensor<T>) -> Result<()> {
        let shape = self.layout.shape();
        x.check("x", &self.context, &shape)?;
        out.check("out", &self.context, &shape)?;
        factor.check("factor", &self.context, &[self.layout.width])
    }

    fn on_host(&self, x: &Tensor<T>, factor: &Tensor<T>, out: &mut Tensor<T>) -> Result<()> {
        let leading = out.leading();
        let factor = factor.host().or_elsewhere("factor")?;
        let to = out.host_mut().or_elsewhere("out")?;
        let own = (&factor[..self.layout.width], self.epsilon);
        cpu::rms_norm(self.layout, &cpu::Host::of("x", x)?, own, (to, leading));
        Ok(())
    }

    fn queue(
        &self,
        launch: &RmsNormLaunch,
        [x, out]: [&Tensor<T>; 2],
        y: Option<&Tensor<T>>,
        factor: &Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let of = |tensor: &Tensor<T>| operand(&self.context, tensor, stream);
        let factor = without_gaps(&self.context, "factor", factor, stream)?;
        // SAFETY: operands have the planned shapes and types; the caller keeps them until the stream is done.
        let queue = unsafe { Queue::new(stream.raw()) };
        let y = y.map(of).transpose()?;
        launch.run([of(x)?, of(out)?], y, factor.address, queue)
    }
}
