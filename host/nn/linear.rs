//! Linear layer with sparse weights, and its gradients.

use einsparse_formats::{AsSparse, SparseRef};

use crate::context::Context;
use crate::device::Stream;
use crate::einsum::{Access, Activation, Einsum, IndexExpr};
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::registry::Scalar;
use crate::tensor::{Operand, SparseTensor, Tensor};

/// Options of a [`Linear`] layer: token order, and ReLUs before and after it.
///
/// ```
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// use einsparse::nn::{Linear, LinearOptions};
/// let a = Csr::new(CsrPattern::new(2, 3, vec![0, 1, 3], vec![2, 0, 1])?, vec![2.0f32, 3.0, 4.0])?;
/// let ctx = einsparse::Context::cpu();
/// let options = LinearOptions { tokens_in_columns: true, relu: true, ..LinearOptions::default() };
/// let layer = Linear::new(&ctx, a, 1, &options)?;
/// let x = ctx.upload_dense(&Dense::new([3, 1], vec![1.0, -1.0, -2.0])?)?;
/// let mut y = ctx.zeros(&[2, 1])?;
/// layer.forward(&x, &mut y, &ctx.stream()?)?;
/// assert_eq!(y.to_dense()?.values(), [0.0, 0.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinearOptions {
    /// Tokens are columns: X is `[inputs, tokens]`, Y is `[outputs, tokens]`. Use this order for unstructured weights,
    /// as in Sputnik (arXiv 2006.10901, section 7): each nonzero of W then multiplies one row of X. Use tokens in rows
    /// for weights made of blocks.
    pub tokens_in_columns: bool,
    /// Applies a ReLU to the outputs, in the kernel of the product. [`Linear::backward`] then expects the gradient of
    /// the sums before the ReLU. The next layer computes that gradient if its `relu_input` is set.
    pub relu: bool,
    /// The inputs are the outputs of a ReLU: the kernel of the product sets their gradient to zero where they are not
    /// positive.
    pub relu_input: bool,
}

/// Linear layer with sparse weights, and its gradients.
///
/// The layer computes `Y[t,o] = X[t,i] * W[o,i]` for a fixed number of tokens t, with W made of blocks. The backward
/// pass computes `dX[t,i] = dY[t,o] * W[o,i]`, and `dW[o,i] = dY[t,o] * X[t,i]` at the nonzeros of W. With
/// [`tokens_in_columns`](LinearOptions::tokens_in_columns), `Y[o,t] = W[o,i] * X[i,t]`, with W in CSR, COO, ELL or
/// GroupCOO. All products are planned once. An unstructured pattern is transposed when the layer is created, and new
/// values are read through the transposed pattern. Blocks are neither transposed nor copied.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Bsr, BsrPattern, Csr, CsrPattern, Dense};
/// use einsparse::nn::{Linear, LinearOptions};
/// let ctx = Context::cpu();
/// let stream = ctx.stream()?;
/// let pattern = BsrPattern::new(2, 4, (2, 2), vec![0, 1], vec![1])?;
/// let weight = Bsr::new(pattern, vec![1.0f32, 2.0, 3.0, 4.0])?;
/// let mut layer = Linear::new(&ctx, weight, 1, &LinearOptions::default())?;
/// let x = ctx.upload_dense(&Dense::new([1, 4], vec![9.0, 9.0, 1.0, 10.0])?)?;
/// let dy = ctx.upload_dense(&Dense::new([1, 2], vec![1.0, -1.0])?)?;
/// let (mut y, mut dx) = (ctx.zeros(&[1, 2])?, ctx.zeros(&[1, 4])?);
/// layer.forward(&x, &mut y, &stream)?;
/// layer.backward(&x, &dy, &mut dx, &stream)?;
/// stream.synchronize()?;
/// assert_eq!(y.to_dense()?.values(), [21.0, 43.0]);
/// assert_eq!(dx.to_dense()?.values(), [0.0, 0.0, -2.0, -2.0]);
/// assert_eq!(layer.gradient().to_host()?.values(), [1.0, 10.0, -1.0, -10.0]);
///
/// let pattern = CsrPattern::new(2, 3, vec![0, 2, 3], vec![0, 2, 1])?;
/// let weight = Csr::new(pattern, vec![1.0f32, 2.0, 3.0])?;
/// let options = LinearOptions { tokens_in_columns: true, ..Default::default() };
/// let layer = Linear::new(&ctx, weight, 1, &options)?;
/// let x = ctx.upload_dense(&Dense::new([3, 1], vec![5.0, 7.0, 11.0])?)?;
/// let mut y = ctx.zeros(&[2, 1])?;
/// layer.forward(&x, &mut y, &stream)?;
/// assert_eq!(y.to_dense()?.values(), [27.0, 21.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Linear<T: Scalar> {
    weight: SparseTensor<T>,
    gradient: SparseTensor<T>,
    bias: Option<Tensor<T>>,
    forward: Plan<T>,
    input: Plan<T>,
    sampled: Plan<T>,
}

impl<T: Scalar> Linear<T> {
    /// Creates a layer with these weights, `[outputs, inputs]`, in the context.
    ///
    /// # Errors
    /// [`Error::Shape`] if the weights are not a matrix; [`Error::NoKernel`] if no kernel of the context supports their
    /// format or type.
    pub fn new(
        context: &Context,
        weight: impl AsSparse<T>,
        tokens: usize,
        options: &LinearOptions,
    ) -> Result<Self> {
        Self::planned(context, weight.as_sparse(), tokens, None, options)
    }

    /// Creates a layer with a bias, `[outputs]`, which the kernel of the product adds. The layer does not compute the
    /// gradient of the bias, which is the sum of `dY` over the tokens.
    ///
    /// # Errors
    /// Returns the errors of [`Linear::new`], and an error if the bias does not have one element per output.
    pub fn with_bias(
        context: &Context,
        weight: impl AsSparse<T>,
        tokens: usize,
        bias: Tensor<T>,
        options: &LinearOptions,
    ) -> Result<Self> {
        Self::planned(context, weight.as_sparse(), tokens, Some(bias), options)
    }

    fn planned(
        context: &Context,
        weight: SparseRef<'_, T>,
        tokens: usize,
        bias: Option<Tensor<T>>,
        options: &LinearOptions,
    ) -> Result<Self> {
        let &[outputs, inputs] = weight.pattern().shape() else {
            let shape = weight.pattern().shape();
            let found = format!("shape {shape:?}");
            return Err(Error::shape("W", found, "weights of a layer are a matrix"));
        };
        let weight = context.upload(weight)?;
        let gradient = SparseTensor::zeros(context.device(), weight.pattern().shared())?;
        let (sums, shapes) = match options.tokens_in_columns {
            true => ("Y[o,t] = W[o,i] * X[i,t]", [[inputs, tokens], [outputs, tokens]]),
            false => ("Y[t,o] = X[t,i] * W[o,i]", [[tokens, inputs], [tokens, outputs]]),
        };
        let [of_x, of_y] = shapes.each_ref().map(|shape| Operand::Shape(shape));
        let plan = |e: &Einsum, operands: &[(&str, Operand<'_, T>)]| {
            context.plan(&e.to_string()).operands(operands).build()
        };

        let sums = Einsum::parse(sums)?;
        let mut e = sums.clone();
        let mut operands = vec![("X", of_x.clone()), ("W", (&weight).into())];
        if let Some(bias) = &bias {
            let indices = vec![IndexExpr::Name("o".into())];
            e.epilogue.bias = Some(Access { tensor: "bias".into(), indices });
            operands.push(("bias", bias.into()));
        }
        if options.relu {
            e.epilogue.activation = Activation::Relu;
        }
        let forward = plan(&e, &operands)?;

        // `backward` receives the gradient of the sums.
        let [by_input, by_weight] = [sums.gradient("X")?, sums.gradient("W")?];
        let mut e = by_input.terms[0].clone();
        let mut operands = vec![("dY", of_y.clone()), ("W", (&weight).into())];
        if options.relu_input {
            let indices = e.out.indices.clone();
            e.epilogue.gate = Some(Access { tensor: "X".into(), indices });
            operands.push(("X", of_x.clone()));
        }
        let input = plan(&e, &operands)?;

        let sampled = context
            .plan(&by_weight.terms[0].text)
            .operands(&[("dY", of_y), ("X", of_x)])
            .sparse_output(&gradient)
            .build()?;
        Ok(Linear { weight, gradient, bias, forward, input, sampled })
    }

    /// Queues the product, with the bias and the ReLU of the layer.
    ///
    /// # Errors
    /// Returns an error if a tensor has another shape or context than planned.
    pub fn forward(&self, x: &Tensor<T>, y: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        let mut operands = vec![("X", x.into()), ("W", (&self.weight).into())];
        if let Some(bias) = &self.bias {
            operands.push(("bias", bias.into()));
        }
        self.forward.run(&operands, y, stream)
    }

    /// Queues the gradient of the inputs, stored to `dx`, and of the weights, stored to [`Linear::gradient`].
    ///
    /// # Errors
    /// Returns the errors of [`Linear::forward`].
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

    /// Queues only the gradient of the inputs. `x` is read only with [`LinearOptions::relu_input`].
    ///
    /// # Errors
    /// Returns the errors of [`Linear::forward`].
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

    /// Queues only the gradient of the weights.
    ///
    /// # Errors
    /// Returns the errors of [`Linear::forward`].
    pub fn backward_weight(
        &mut self,
        x: &Tensor<T>,
        dy: &Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let operands = [("dY", dy.into()), ("X", x.into())];
        self.sampled.run(&operands, &mut self.gradient, stream)
    }

    /// Returns the weights.
    pub fn weight(&self) -> &SparseTensor<T> {
        &self.weight
    }

    /// Returns the weights, so that their values can be changed.
    pub fn weight_mut(&mut self) -> &mut SparseTensor<T> {
        &mut self.weight
    }

    /// Returns the weights, to change their values, and their gradient, for a step of an optimizer.
    ///
    /// ```
    /// use einsparse::formats::{Csr, CsrPattern, Dense};
    /// use einsparse::nn::{Linear, LinearOptions, Sgd, SgdOptions};
    /// let weight = Csr::new(CsrPattern::new(1, 2, vec![0, 2], vec![0, 1])?, vec![1.0f32, 2.0])?;
    /// let ctx = einsparse::Context::cpu();
    /// let options = LinearOptions { tokens_in_columns: true, ..Default::default() };
    /// let mut layer = Linear::new(&ctx, weight, 1, &options)?;
    /// let mut sgd = Sgd::new(&ctx, &[2], &SgdOptions { rate: 0.5, ..Default::default() })?;
    /// let (x, dy) = (Dense::new([2, 1], vec![3.0f32, 4.0])?, Dense::new([1, 1], vec![1.0])?);
    /// let (x, dy, stream) = (ctx.upload_dense(&x)?, ctx.upload_dense(&dy)?, ctx.stream()?);
    /// layer.backward_weight(&x, &dy, &stream)?;
    /// let (weight, gradient) = layer.weight_and_gradient();
    /// sgd.step(&mut *weight.values_mut()?, &*gradient.values()?, &stream)?;
    /// assert_eq!(layer.weight().to_host()?.values(), [-0.5, 0.0]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    pub fn weight_and_gradient(&mut self) -> (&mut SparseTensor<T>, &SparseTensor<T>) {
        (&mut self.weight, &self.gradient)
    }

    /// Returns the gradient of the weights: their pattern, with the values of the last [`Linear::backward`].
    pub fn gradient(&self) -> &SparseTensor<T> {
        &self.gradient
    }

    /// Returns the names of the kernels of the forward product, and of the gradients of inputs and weights.
    pub fn variants(&self) -> [&'static str; 3] {
        [self.forward.variant(), self.input.variant(), self.sampled.variant()]
    }
}
