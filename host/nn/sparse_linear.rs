//! A linear layer whose weights are single entries, and its gradients.

use einsparse_formats::{AsSparse, SparseRef};

use super::linear::upload;
use crate::context::Context;
use crate::device::Stream;
use crate::error::Result;
use crate::plan::Plan;
use crate::registry::Scalar;
use crate::tensor::{SparseTensor, Tensor};

/// `Y[o,t] = W[o,i] * X[i,t]` for a fixed number of tokens t, with W in CSR, COO, ELL or GroupCOO; `relu(.. + bias[o])`
/// with a bias. Tokens are columns, as in Sputnik (arXiv 2006.10901, section 7), so that a row of X is what an entry of
/// W wants. Backward `dX[i,t] = W[o,i] * dY[o,t]`, and `dW[o,i] = dY[o,t] * X[i,t]` where W has entries. Everything is
/// planned once: the pattern of W is transposed when the layer is made, and new values are read through it.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// use einsparse::nn::SparseLinear;
/// let ctx = Context::cpu();
/// let pattern = CsrPattern::new(2, 3, vec![0, 2, 3], vec![0, 2, 1])?;
/// let weight = Csr::new(pattern, vec![1.0f32, 2.0, 3.0])?;
/// let mut layer = SparseLinear::new(&ctx, weight, 1)?;
/// let x = ctx.upload_dense(&Dense::new([3, 1], vec![5.0, 7.0, 11.0])?)?;
/// let dy = ctx.upload_dense(&Dense::new([2, 1], vec![1.0, -1.0])?)?;
/// let (mut y, mut dx) = (ctx.zeros(&[2, 1])?, ctx.zeros(&[3, 1])?);
/// let stream = ctx.stream()?;
/// layer.forward(&x, &mut y, &stream)?;
/// layer.backward(&x, &dy, &mut dx, &stream)?;
/// stream.synchronize()?;
/// assert_eq!(y.to_dense()?.values(), [27.0, 21.0]);
/// assert_eq!(dx.to_dense()?.values(), [1.0, -3.0, 2.0]);
/// assert_eq!(layer.gradient().to_host()?.values(), [5.0, 11.0, -7.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct SparseLinear<T: Scalar> {
    weight: SparseTensor<T>,
    gradient: SparseTensor<T>,
    bias: Option<Tensor<T>>,
    forward: Plan<T>,
    input: Plan<T>,
    sampled: Plan<T>,
}

impl<T: Scalar> SparseLinear<T> {
    /// A layer with these weights, `[outputs, inputs]`, in the context.
    ///
    /// # Errors
    /// [`Error::NoKernel`](crate::Error::NoKernel) where no kernel of the context takes the weights' format or type.
    pub fn new(context: &Context, weight: impl AsSparse<T>, tokens: usize) -> Result<Self> {
        Self::planned(context, weight.as_sparse(), tokens, None)
    }

    /// The same followed by a bias of the outputs and a ReLU, in one kernel. The gradient that
    /// [`SparseLinear::backward`] takes is that of the sums before the ReLU; the bias has the sums of its rows.
    ///
    /// # Errors
    /// As [`SparseLinear::new`], and where the bias is not one number for each output.
    pub fn with_bias_relu(
        context: &Context,
        weight: impl AsSparse<T>,
        tokens: usize,
        bias: Tensor<T>,
    ) -> Result<Self> {
        Self::planned(context, weight.as_sparse(), tokens, Some(bias))
    }

    fn planned(
        context: &Context,
        weight: SparseRef<'_, T>,
        tokens: usize,
        bias: Option<Tensor<T>>,
    ) -> Result<Self> {
        let (weight, gradient, [outputs, inputs]) = upload(context, weight)?;
        // Only the shapes are planned with.
        let x = context.zeros::<T>(&[inputs, tokens])?;
        let y = context.zeros::<T>(&[outputs, tokens])?;
        let mut operands = vec![("W", (&weight).into()), ("X", (&x).into())];
        let text = match &bias {
            Some(bias) => {
                operands.push(("bias", bias.into()));
                "Y[o,t] = relu(W[o,i] * X[i,t] + bias[o])"
            }
            None => "Y[o,t] = W[o,i] * X[i,t]",
        };
        let forward = context.plan(text).operands(&operands).build()?;
        let operands = [("W", (&weight).into()), ("dY", (&y).into())];
        let input = context
            .plan("dX[i,t] = W[o,i] * dY[o,t]")
            .operands(&operands)
            .build()?;
        let operands = [("dY", (&y).into()), ("X", (&x).into())];
        let sampled = context
            .plan("dW[o,i] = dY[o,t] * X[i,t]")
            .operands(&operands)
            .sparse_output(&gradient)
            .build()?;
        Ok(SparseLinear {
            weight,
            gradient,
            bias,
            forward,
            input,
            sampled,
        })
    }

    /// `Y[o,t] = W[o,i] * X[i,t]`, with bias and ReLU where the layer has them.
    ///
    /// # Errors
    /// Tensors of other shapes or another context than planned.
    pub fn forward(&self, x: &Tensor<T>, y: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        let mut operands = vec![("W", (&self.weight).into()), ("X", x.into())];
        if let Some(bias) = &self.bias {
            operands.push(("bias", bias.into()));
        }
        self.forward.run(&operands, y, stream)
    }

    /// The gradient of the inputs into `dx`, of the weights into [`SparseLinear::gradient`].
    ///
    /// # Errors
    /// As [`SparseLinear::forward`].
    pub fn backward(
        &mut self,
        x: &Tensor<T>,
        dy: &Tensor<T>,
        dx: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.backward_input(dy, dx, stream)?;
        self.backward_weight(x, dy, stream)
    }

    /// The gradient of the inputs alone.
    ///
    /// # Errors
    /// As [`SparseLinear::forward`].
    pub fn backward_input(
        &self,
        dy: &Tensor<T>,
        dx: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let operands = [("W", (&self.weight).into()), ("dY", dy.into())];
        self.input.run(&operands, dx, stream)
    }

    /// The gradient of the weights alone.
    ///
    /// # Errors
    /// As [`SparseLinear::forward`].
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

    /// The gradient of the weights: their pattern, the values of the last [`SparseLinear::backward`].
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
