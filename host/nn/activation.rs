//! Elementwise activation, and its gradient.

use std::marker::PhantomData;

use crate::context::Context;
use crate::device::Stream;
use crate::dynamic::Gate;
use crate::error::{Result, elements};
use crate::families::elementwise::ActivationLaunch;
use crate::operator::Operator;
use crate::operator_of;
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
    function: Gate,
    shape: [usize; 2],
    operator: Operator<ActivationLaunch>,
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
            function,
            shape,
            operator: operator_of(context, |device| {
                ActivationLaunch::new(device, T::DTYPE, shape, function.flags())
            })?,
            element: PhantomData,
        })
    }

    /// Returns the name of the forward kernel, or `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.operator.variant(ActivationLaunch::variant)
    }

    /// Queues `y = f(x)`. Allocates nothing and does not synchronize.
    ///
    /// # Errors
    /// [`Error::Shape`](einsparse_core::Error::Shape) if an operand does not have the planned shape;
    /// [`Error::OtherContext`](einsparse_core::Error::OtherContext) if one belongs to another context.
    pub fn forward(&self, x: &Tensor<T>, y: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        self.run(x, None, "y", y, stream)
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
        self.run(x, Some(dy), "dx", dx, stream)
    }

    fn run(
        &self,
        x: &Tensor<T>,
        dy: Option<&Tensor<T>>,
        name: &str,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        let of_x = run.matrix("x", x.any(), &self.shape)?;
        let to = run.matrix(name, out.any(), &self.shape)?;
        let of_dy = run.optional("dy", dy.map(|dy| dy.any()), &self.shape)?;
        run.queue(
            |launch, queue| launch.run(of_x, of_dy, to, queue),
            || {
                let dy = dy.map(|dy| dy.host_rows("dy")).transpose()?;
                self.run_on_host(x.host_rows("x")?, dy, out.host_rows_mut(name)?);
                Ok(())
            },
        )
    }

    fn run_on_host(
        &self,
        (x, ldx): (&[T], usize),
        dy: Option<(&[T], usize)>,
        (to, leading): (&mut [T], usize),
    ) {
        let [rows, columns] = self.shape;
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)))
        {
            let x = x[row * ldx + column].to_f64();
            to[row * leading + column] = T::from_f64(match dy {
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
    }
}
