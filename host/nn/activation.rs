//! Elementwise activation, and its gradient.

use std::marker::PhantomData;

use crate::context::{Context, Prepared};
use crate::device::Stream;
use crate::dynamic::{Gate, operand};
use crate::error::{Elsewhere, Result, elements};
use crate::families::elementwise::ActivationLaunch;
use crate::kernel::Queue;
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// Elementwise activation `y = f(x)` and its gradient `dx = f'(x) dy`, with f one of [`Gate`].
///
/// GPU kernels exist for f32, f16 and bf16. A ReLU or GELU that follows a product is part of the product: write
/// `relu(...)` or `gelu(...)` in the expression.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::Gate;
/// use einsparse::formats::Dense;
/// use einsparse::nn::Activation;
/// let ctx = Context::cpu();
/// let silu = Activation::<f32>::new(&ctx, Gate::Silu, [1, 2])?;
/// let x = ctx.upload_dense(&Dense::new([1, 2], vec![0.0, 100.0])?)?;
/// let (mut y, mut dx) = (ctx.zeros(&[1, 2])?, ctx.zeros(&[1, 2])?);
/// let stream = ctx.stream()?;
/// silu.forward(&x, &mut y, &stream)?;
/// silu.backward(&x, &y, &mut dx, &stream)?;
/// assert_eq!((y.to_dense()?.values(), dx.to_dense()?.values()), (&[0.0, 100.0][..], &[0.0, 100.0][..]));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Activation<T> {
    context: Context,
    function: Gate,
    shape: [usize; 2],
    launch: Prepared<ActivationLaunch>,
    element: PhantomData<T>,
}

impl<T: Scalar> Activation<T> {
    /// Creates the operation for matrices of this shape.
    ///
    /// # Errors
    /// [`Error::NoKernel`](einsparse_core::Error::NoKernel) for other element types.
    pub fn new(context: &Context, function: Gate, shape: [usize; 2]) -> Result<Self> {
        elements("x", &shape)?;
        Ok(Activation {
            context: context.clone(),
            function,
            shape,
            launch: context.prepared(|device| {
                ActivationLaunch::new(device, T::DTYPE, shape, function.flags())
            })?,
            element: PhantomData,
        })
    }

    /// Returns the name of the forward kernel, or `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.launch.as_ref().map_or("cpu", ActivationLaunch::variant)
    }

    /// Queues `y = f(x)`. Allocates nothing and does not synchronize.
    ///
    /// # Errors
    /// [`Error::Shape`](einsparse_core::Error::Shape) if an operand does not have the planned shape;
    /// [`Error::OtherContext`](einsparse_core::Error::OtherContext) if one belongs to another context.
    pub fn forward(&self, x: &Tensor<T>, y: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        self.run(x, None, ("y", y), stream)
    }

    /// Queues `dx = f'(x) dy`.
    ///
    /// # Errors
    /// Returns the errors of [`Activation::forward`].
    pub fn backward(
        &self,
        x: &Tensor<T>,
        dy: &Tensor<T>,
        dx: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.run(x, Some(dy), ("dx", dx), stream)
    }

    fn run(
        &self,
        x: &Tensor<T>,
        dy: Option<&Tensor<T>>,
        (name, out): (&str, &mut Tensor<T>),
        stream: &Stream,
    ) -> Result<()> {
        x.check("x", &self.context, &self.shape)?;
        out.check(name, &self.context, &self.shape)?;
        if let Some(dy) = dy {
            dy.check("dy", &self.context, &self.shape)?;
        }
        let runs = self.launch.queue(|launch| {
            let place = |tensor| operand(&self.context, tensor, stream);
            let dy = dy.map(|dy| place(dy)).transpose()?;
            let (x, out) = (place(x)?, place(out)?);
            // SAFETY: operands have the planned shape and type; the caller keeps them until the stream completes.
            let queue = unsafe { Queue::new(stream.raw()) };
            launch.run(x, dy, out, queue)
        })?;
        if runs {
            return Ok(());
        }
        self.run_on_host(x, dy, (name, out))
    }

    fn run_on_host(
        &self,
        x: &Tensor<T>,
        dy: Option<&Tensor<T>>,
        (name, out): (&str, &mut Tensor<T>),
    ) -> Result<()> {
        let ([rows, columns], leading) = (self.shape, out.leading());
        let of_x = x.host().or_elsewhere("x")?;
        let of_dy = match dy {
            Some(dy) => Some((dy.host().or_elsewhere("dy")?, dy.leading())),
            None => None,
        };
        let to = out.host_mut().or_elsewhere(name)?;
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)))
        {
            let x = of_x[row * x.leading() + column].to_f64();
            to[row * leading + column] = T::from_f64(match of_dy {
                Some((dy, leading)) => {
                    let dy = dy[row * leading + column].to_f64();
                    match self.function.masks(x) {
                        true => 0.0,
                        false => self.function.slope(x) * dy,
                    }
                }
                None => self.function.of(x),
            });
        }
        Ok(())
    }
}
