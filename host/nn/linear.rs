//! A linear layer with block-sparse weights, and its gradients.

use einsparse_formats::AsSparse;

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::registry::Scalar;
use crate::tensor::{Operand, SparseTensor, Tensor};

/// What stands before and after a [`BlockLinear`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinearOptions {
    /// The outputs pass a ReLU, in the same kernel. The gradient that [`BlockLinear::backward`] takes is then that of
    /// the sums before it: the layer that follows gives it with `relu_input`.
    pub relu: bool,
    /// The inputs come out of a ReLU: their gradient is zero where they are not positive, in the same kernel.
    pub relu_input: bool,
}

/// `Y[t,o] = X[t,i] * W[o,i]` for a fixed number of tokens t, with W made of blocks. Backward
/// `dX[t,i] = dY[t,o] * W[o,i]`, and `dW[o,i] = dY[t,o] * X[t,i]` where W has blocks. Everything is planned once;
/// nothing is transposed or copied.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Bsr, BsrPattern, Dense};
/// use einsparse::nn::{BlockLinear, LinearOptions};
/// let ctx = Context::cpu();
/// let pattern = BsrPattern::new(2, 4, (2, 2), vec![0, 1], vec![1])?;
/// let weight = Bsr::new(pattern, vec![1.0f32, 2.0, 3.0, 4.0])?;
/// let mut layer = BlockLinear::new(&ctx, weight, 1, &LinearOptions::default())?;
/// let x = ctx.upload_dense(&Dense::new([1, 4], vec![9.0, 9.0, 1.0, 10.0])?)?;
/// let dy = ctx.upload_dense(&Dense::new([1, 2], vec![1.0, -1.0])?)?;
/// let (mut y, mut dx) = (ctx.zeros(&[1, 2])?, ctx.zeros(&[1, 4])?);
/// let stream = ctx.stream()?;
/// layer.forward(&x, &mut y, &stream)?;
/// layer.backward(&x, &dy, &mut dx, &stream)?;
/// stream.synchronize()?;
/// assert_eq!(y.to_dense()?.values(), [21.0, 43.0]);
/// assert_eq!(dx.to_dense()?.values(), [0.0, 0.0, -2.0, -2.0]);
/// assert_eq!(layer.gradient().to_host()?.values(), [1.0, 10.0, -1.0, -10.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct BlockLinear<T: Scalar> {
    weight: SparseTensor<T>,
    gradient: SparseTensor<T>,
    forward: Plan<T>,
    input: Plan<T>,
    sampled: Plan<T>,
}

/// The weights of a layer in the context, room for their gradient, and their outputs and inputs.
pub(super) fn upload<T: Scalar>(
    context: &Context,
    weight: impl AsSparse<T>,
) -> Result<(SparseTensor<T>, SparseTensor<T>, [usize; 2])> {
    let weight = context.upload(weight)?;
    let gradient = SparseTensor::zeros(context.device(), weight.pattern().shared())?;
    let &[outputs, inputs] = weight.shape() else {
        let shape = weight.shape();
        let reason = format!("has shape {shape:?}; a layer's weights are a matrix");
        return Err(Error::operand("W", reason));
    };
    Ok((weight, gradient, [outputs, inputs]))
}

impl<T: Scalar> BlockLinear<T> {
    /// A layer with these weights, `[outputs, inputs]`, in the context.
    ///
    /// # Errors
    /// [`Error::NoKernel`] where no kernel of the context takes the weights' blocks or type.
    pub fn new(
        context: &Context,
        weight: impl AsSparse<T>,
        tokens: usize,
        options: &LinearOptions,
    ) -> Result<Self> {
        let (weight, gradient, [outputs, inputs]) = upload(context, weight)?;
        // Only the shapes are planned with.
        let x = context.zeros::<T>(&[tokens, inputs])?;
        let y = context.zeros::<T>(&[tokens, outputs])?;
        let plan = |text: &str, operands: &[(&str, Operand<'_, T>)]| {
            context.plan(text).operands(operands).build()
        };
        let forward = if options.relu {
            "Y[t,o] = relu(X[t,i] * W[o,i])"
        } else {
            "Y[t,o] = X[t,i] * W[o,i]"
        };
        let forward = plan(forward, &[("X", (&x).into()), ("W", (&weight).into())])?;
        let mut operands = vec![("dY", (&y).into()), ("W", (&weight).into())];
        let input = if options.relu_input {
            operands.push(("X", (&x).into()));
            plan("dX[t,i] = relu_grad(dY[t,o] * W[o,i], X[t,i])", &operands)?
        } else {
            plan("dX[t,i] = dY[t,o] * W[o,i]", &operands)?
        };
        let operands = [("dY", (&y).into()), ("X", (&x).into())];
        let sampled = context
            .plan("dW[o,i] = dY[t,o] * X[t,i]")
            .operands(&operands)
            .sparse_output(&gradient)
            .build()?;
        Ok(BlockLinear {
            weight,
            gradient,
            forward,
            input,
            sampled,
        })
    }

    /// `Y[t,o] = X[t,i] * W[o,i]`.
    ///
    /// # Errors
    /// Tensors of other shapes or another context than planned.
    pub fn forward(&self, x: &Tensor<T>, y: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        let operands = [("X", x.into()), ("W", (&self.weight).into())];
        self.forward.run(&operands, y, stream)
    }

    /// The gradient of the inputs into `dx`, of the weights into [`BlockLinear::gradient`].
    ///
    /// # Errors
    /// As [`BlockLinear::forward`].
    pub fn backward(
        &mut self,
        x: &Tensor<T>,
        dy: &Tensor<T>,
        dx: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.backward_input(x, dy, dx, stream)?;
        self.backward_weight(x, dy, stream)
    }

    /// The gradient of the inputs alone. `x` is read only with [`LinearOptions::relu_input`].
    ///
    /// # Errors
    /// As [`BlockLinear::forward`].
    pub fn backward_input(
        &self,
        x: &Tensor<T>,
        dy: &Tensor<T>,
        dx: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let mut operands = vec![("dY", dy.into()), ("W", (&self.weight).into())];
        if self.input.einsum().epilogue.gate.is_some() {
            operands.push(("X", x.into()));
        }
        self.input.run(&operands, dx, stream)
    }

    /// The gradient of the weights alone.
    ///
    /// # Errors
    /// As [`BlockLinear::forward`].
    pub fn backward_weight(
        &mut self,
        x: &Tensor<T>,
        dy: &Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let operands = [("dY", dy.into()), ("X", x.into())];
        self.sampled.run(&operands, &mut self.gradient, stream)
    }

    /// The weights.
    pub fn weight(&self) -> &SparseTensor<T> {
        &self.weight
    }

    /// The weights, to give them new values.
    pub fn weight_mut(&mut self) -> &mut SparseTensor<T> {
        &mut self.weight
    }

    /// The gradient of the weights: their pattern, the values of the last [`BlockLinear::backward`].
    pub fn gradient(&self) -> &SparseTensor<T> {
        &self.gradient
    }

    /// Kernels of the forward product, the inputs' gradient and the weights' gradient.
    pub fn variants(&self) -> [&'static str; 3] {
        [
            self.forward.variant(),
            self.input.variant(),
            self.sampled.variant(),
        ]
    }
}
