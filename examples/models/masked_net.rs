//! Two layers `Y = W2 relu(W1 X)` with block masks, which each run selects, and the network without masks. Tokens are
//! columns, so weights are left operands. Steps do not wait for the host.

use einsparse::dynamic::{DynamicMatmulGradient, GradientOfA};
use einsparse::{Context, Determinism, Plan, Result, Scalar, Stream, Tensor, TensorView};

use super::block_masks::{Masks, expected, masked_plan, plan};
use super::common::wide;

/// Layer `Y = W X` with its gradients.
enum Layer<T: Scalar> {
    Masked(Box<Products<T>>),
    /// The product and the ReLU after it; the gradient of X and of the ReLU before it; the gradient of W.
    Dense(Box<[Plan<T>; 3]>),
}

/// Products that find the micro-tiles of a masked W.
struct Products<T: Scalar> {
    forward: Plan<T>,
    /// Gradient of the blocks of W, and gradient of all of W.
    backward: DynamicMatmulGradient<T>,
    whole: DynamicMatmulGradient<T>,
}

impl<T: Scalar> Layer<T> {
    fn masked(ctx: &Context, width: usize, tokens: usize) -> Result<Self> {
        let extents = [width, width, tokens];
        let gradient =
            |of| DynamicMatmulGradient::new(ctx, extents, of, expected(width), Determinism::Strict);
        Ok(Layer::Masked(Box::new(Products {
            forward: masked_plan(ctx, width, tokens)?,
            backward: gradient(GradientOfA::MicroTiles)?,
            whole: gradient(GradientOfA::Whole)?,
        })))
    }

    fn dense(ctx: &Context, width: usize, tokens: usize, first: bool) -> Result<Self> {
        let (w, x) = (&[width, width][..], &[width, tokens][..]);
        let [forward, input] = match first {
            true => ["Y[o,t] = relu(W[o,i] * X[i,t])", "E[i,t] = W[o,i] * D[o,t]"],
            false => ["Y[o,t] = W[o,i] * X[i,t]", "E[i,t] = relu_grad(W[o,i] * D[o,t], X[i,t])"],
        };
        let of_input = [("W", w), ("D", x), ("X", x)];
        let of_weight = [("D", x), ("X", x)];
        Ok(Layer::Dense(Box::new([
            plan(ctx, forward, &[("W", w), ("X", x)])?,
            plan(ctx, input, &of_input[..if first { 2 } else { 3 }])?,
            plan(ctx, "G[o,i] = D[o,t] * X[i,t]", &of_weight)?,
        ])))
    }

    fn forward(
        &mut self,
        [w, x]: [&Tensor<T>; 2],
        y: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let operands = [("W", w.into()), ("X", x.into())];
        match self {
            Layer::Masked(products) => products.forward.run(&operands, y, stream),
            Layer::Dense(plans) => plans[0].run(&operands, y, stream),
        }
    }

    /// Computes gradients `[dW, dX]` from `[W, X, dY]`: of all of W if `grows`, otherwise of its blocks.
    fn backward(
        &mut self,
        [w, x, dy]: [&Tensor<T>; 3],
        [dw, dx]: [&mut Tensor<T>; 2],
        (grows, first): (bool, bool),
        stream: &Stream,
    ) -> Result<()> {
        let plans = match self {
            Layer::Masked(products) => {
                let of = if grows { &products.whole } else { &products.backward };
                return of.backward([w, x, dy], [dw, dx], stream);
            }
            Layer::Dense(plans) => plans,
        };
        plans[2].run(&[("D", dy.into()), ("X", x.into())], dw, stream)?;
        let all = [("W", w.into()), ("D", dy.into()), ("X", x.into())];
        plans[1].run(&all[..if first { 2 } else { 3 }], dx, stream)
    }
}

/// ReLU between products that do not include it.
struct Relu<T: Scalar> {
    forward: Plan<T>,
    backward: Plan<T>,
    sums: Tensor<T>,
    gradient: Tensor<T>,
}

/// The layers, and all tensors that a step reads and writes.
pub struct Net<T: Scalar> {
    /// Rows of weights, inputs and activations, and columns of weights.
    pub width: usize,
    /// Weights of both layers, one below the other, and their gradient.
    pub weights: Tensor<T>,
    pub gradient: Tensor<T>,
    /// Inputs, hidden activations, and their gradients.
    pub x: Tensor<T>,
    pub hidden: Tensor<T>,
    pub dx: Tensor<T>,
    d_hidden: Tensor<T>,
    pub target: Tensor<T>,
    /// Outputs, then outputs minus target: the gradient of half the sum of squares.
    pub residual: Tensor<T>,
    /// Half the square of each output's residual, as a mean over tokens.
    pub losses: Tensor<T>,
    pub masks: Option<Masks<T>>,
    layers: [Layer<T>; 2],
    relu: Option<Relu<T>>,
    /// Plans that subtract the target and compute the loss.
    ends: [Plan<T>; 2],
}

impl<T: Scalar> Net<T> {
    pub fn new(ctx: &Context, [width, tokens]: [usize; 2], masked: bool) -> Result<Self> {
        let (w, x) = ([2 * width, width], [width, tokens]);
        let layer = |first| match masked {
            true => Layer::masked(ctx, width, tokens),
            false => Layer::dense(ctx, width, tokens, first),
        };
        let relu = || -> Result<Relu<T>> {
            let both = [("E", &x[..]), ("H", &x[..])];
            Ok(Relu {
                forward: plan(ctx, "H[o,t] = relu(Z[o,t])", &[("Z", &x)])?,
                backward: plan(ctx, "D[o,t] = relu_grad(E[o,t], H[o,t])", &both)?,
                sums: ctx.zeros(&x)?,
                gradient: ctx.zeros(&x)?,
            })
        };
        let loss = format!("L[o] = {} * D[o,t] * D[o,t]", 0.5 / tokens as f64);
        Ok(Net {
            width,
            weights: ctx.zeros(&w)?,
            gradient: ctx.zeros(&w)?,
            x: ctx.zeros(&x)?,
            hidden: ctx.zeros(&x)?,
            dx: ctx.zeros(&x)?,
            d_hidden: ctx.zeros(&x)?,
            target: ctx.zeros(&x)?,
            residual: ctx.zeros(&x)?,
            losses: ctx.zeros(&[width])?,
            masks: masked.then(|| Masks::new(ctx, w)).transpose()?,
            layers: [layer(true)?, layer(false)?],
            relu: masked.then(relu).transpose()?,
            ends: [
                plan(ctx, "D[o,t] += -1 * T[o,t]", &[("T", &x)])?,
                plan(ctx, &loss, &[("D", &x)])?,
            ],
        })
    }

    /// Computes masks, outputs, residual and losses.
    pub fn forward(&mut self, stream: &Stream) -> Result<()> {
        if let Some(masks) = &mut self.masks {
            masks.run(&self.weights, stream)?;
        }
        let [one, two] = &mut self.layers;
        let [first, second] = used(&self.masks, &self.weights, self.width)?;
        match &mut self.relu {
            None => one.forward([&first, &self.x], &mut self.hidden, stream)?,
            Some(relu) => {
                one.forward([&first, &self.x], &mut relu.sums, stream)?;
                let operands = [("Z", (&relu.sums).into())];
                relu.forward.run(&operands, &mut self.hidden, stream)?;
            }
        }
        two.forward([&second, &self.hidden], &mut self.residual, stream)?;
        let [off, loss] = &self.ends;
        off.run(&[("T", (&self.target).into())], &mut self.residual, stream)?;
        loss.run(&[("D", (&self.residual).into())], &mut self.losses, stream)
    }

    /// Returns 1 for each block that the last forward run kept, otherwise 0; an empty vector without masks.
    pub fn mask(&self) -> Result<Vec<f64>> {
        let masks = self.masks.as_ref();
        masks.map_or(Ok(Vec::new()), |masks| wide(&masks.mask))
    }

    /// Computes the gradients of weights and inputs. With `grows`, those of all weights, as if none were masked after
    /// the forward run (straight-through). Otherwise those of kept blocks, with zeros elsewhere.
    pub fn backward(&mut self, grows: bool, stream: &Stream) -> Result<()> {
        let [one, two] = &mut self.layers;
        let [first, second] = used(&self.masks, &self.weights, self.width)?;
        let (shape, size) = ([self.width; 2], self.width * self.width);
        let mut dw = self.gradient.part_mut(size, &shape)?;
        let operands = [&*second, &self.hidden, &self.residual];
        match &mut self.relu {
            None => {
                let to = [&mut *dw, &mut self.d_hidden];
                two.backward(operands, to, (grows, false), stream)?;
            }
            Some(relu) => {
                let to = [&mut *dw, &mut relu.gradient];
                two.backward(operands, to, (grows, false), stream)?;
                let gated = [("E", (&relu.gradient).into()), ("H", (&self.hidden).into())];
                relu.backward.run(&gated, &mut self.d_hidden, stream)?;
            }
        }
        drop(dw);
        let mut dw = self.gradient.part_mut(0, &shape)?;
        let to = [&mut *dw, &mut self.dx];
        one.backward([&first, &self.x, &self.d_hidden], to, (grows, true), stream)
    }
}

/// Returns the weights of both layers that a step multiplies by.
fn used<'a, T: Scalar>(
    masks: &'a Option<Masks<T>>,
    weights: &'a Tensor<T>,
    width: usize,
) -> Result<[TensorView<'a, T>; 2]> {
    let all = masks.as_ref().map_or(weights, |masks| &masks.masked);
    let shape = [width; 2];
    Ok([all.part(0, &shape)?, all.part(width * width, &shape)?])
}
