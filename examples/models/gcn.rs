//! GCN (Kipf and Welling, arXiv 1609.02907) and GraphSAGE with means (Hamilton et al., arXiv 1706.02216): three layers,
//! trained on a whole graph. A step is a chain of products with hand-written gradients. It allocates nothing, does not
//! synchronize with the host, and is one CUDA graph.

use einsparse::dynamic::Gate;
use einsparse::formats::{Csr, Dense};
use einsparse::nn::{Activation, BiasGradient, CrossEntropy, WeightGradient};
use einsparse::{Context, Precision, Result, Scalar, Stream, Tensor};

use super::graphs::{Kind, Task, weighted, weights};
use super::products::{ALONG, Edges, Products};

/// A parameter and its gradient.
pub struct Parameter<T: Scalar> {
    pub value: Tensor<T>,
    pub gradient: Tensor<T>,
}

/// One layer: `relu((A H) W + b)` if it has at least as many outputs as inputs, otherwise `relu(A (H W) + b)`. The
/// narrower features travel along the edges. GraphSAGE uses means, and adds `H S`.
struct Layer<T: Scalar> {
    /// W, b, and S of GraphSAGE.
    parameters: Vec<Parameter<T>>,
    edges_first: bool,
    /// A H, or H W.
    between: Tensor<T>,
    output: Tensor<T>,
    /// Gradient of the output, then of the sums before its ReLU.
    gradient: Tensor<T>,
    /// Gradient of A H, and transposed weights.
    scratch: Tensor<T>,
    transposed: Tensor<T>,
    of_weights: WeightGradient<T, T>,
    of_bias: BiasGradient<T, T>,
    activation: Activation<T>,
    relu: bool,
}

impl<T: Scalar> Layer<T> {
    fn new(
        ctx: &Context,
        kind: Kind,
        rows: usize,
        [inputs, outputs]: [usize; 2],
        at: usize,
    ) -> Result<Self> {
        let parameter = |value: Dense<T>| -> Result<_> {
            let gradient = ctx.zeros(value.shape())?;
            Ok(Parameter { value: ctx.upload_dense(&value)?, gradient })
        };
        let weight = |seed: usize| weights([inputs, outputs], seed as u64);
        let mut parameters =
            vec![parameter(weight(10 * at)?)?, parameter(Dense::zeros([outputs])?)?];
        if kind == Kind::Sage {
            parameters.push(parameter(weight(10 * at + 1)?)?);
        }
        let edges_first = inputs <= outputs;
        Ok(Layer {
            parameters,
            edges_first,
            between: ctx.zeros(&[rows, if edges_first { inputs } else { outputs }])?,
            output: ctx.zeros(&[rows, outputs])?,
            gradient: ctx.zeros(&[rows, outputs])?,
            scratch: ctx.zeros(&[if edges_first { rows } else { 0 }, inputs])?,
            transposed: ctx.zeros(&[outputs, inputs])?,
            of_weights: WeightGradient::with_precision(
                ctx,
                [rows, inputs, outputs],
                Precision::Tf32,
            )?,
            of_bias: BiasGradient::new(ctx, [rows, outputs])?,
            activation: Activation::new(ctx, Gate::Relu, [rows, outputs])?,
            relu: true,
        })
    }

    fn forward(&mut self, run: &mut Products<T>, h: &Tensor<T>, s: &Stream) -> Result<()> {
        let [w, b, own @ ..] = &self.parameters[..] else { unreachable!() };
        let (w, b, z) = (&w.value, &b.value, &mut self.output);
        let relu = self.relu && own.is_empty();
        if self.edges_first {
            run.run(ALONG, &[("H", h)], &mut self.between, s)?;
            let text = match relu {
                true => "Z[n,o] = relu(P[n,i] * W[i,o] + b[o])",
                false => "Z[n,o] = P[n,i] * W[i,o] + b[o]",
            };
            run.run(text, &[("P", &self.between), ("W", w), ("b", b)], z, s)?;
        } else {
            let text = "Y[n,o] = H[n,i] * W[i,o]";
            run.run(text, &[("H", h), ("W", w)], &mut self.between, s)?;
            let text = match relu {
                true => "Z[m,o] = relu(A[m,n] * Y[n,o] + b[o])",
                false => "Z[m,o] = A[m,n] * Y[n,o] + b[o]",
            };
            run.run(text, &[("Y", &self.between), ("b", b)], z, s)?;
        }
        let [own] = own else { return Ok(()) };
        run.run("Z[n,o] += H[n,i] * S[i,o]", &[("H", h), ("S", &own.value)], z, s)?;
        if self.relu {
            // The gradient's buffer is free until the backward pass.
            self.activation.forward(z, &mut self.gradient, s)?;
            std::mem::swap(&mut self.gradient, z);
        }
        Ok(())
    }

    /// Computes the gradients of the parameters and, with a previous layer, of that layer's output (this layer's H).
    fn backward(
        &mut self,
        run: &mut Products<T>,
        (h, ahead): (&Tensor<T>, Option<&mut Tensor<T>>),
        s: &Stream,
    ) -> Result<()> {
        let [w, b, own @ ..] = &mut self.parameters[..] else { unreachable!() };
        let (dw, db, dz) = (&mut w.gradient, &mut b.gradient, &mut self.gradient);
        let (between, weights) = (&mut self.between, &self.of_weights);
        let (transpose, t) = ("T[o,i] = W[i,o]", &mut self.transposed);
        let through = "X[n,i] = G[n,o] * T[o,i]";
        if !self.edges_first {
            match self.relu {
                true => (self.of_bias).backward_bias_relu(&self.output, None, dz, db, s)?,
                false => self.of_bias.backward_bias(dz, db, s)?,
            }
            run.back(dz, between, s)?;
            weights.backward_weight(h, between, dw, None, s)?;
        } else if self.relu {
            // This pass also replaces the gradient of the output by that of the sums.
            weights.backward_weight_relu(between, &self.output, dz, dw, Some(db), s)?;
        } else {
            weights.backward_weight(between, dz, dw, Some(db), s)?;
        }
        if let [own] = &mut own[..] {
            weights.backward_weight(h, dz, &mut own.gradient, None, s)?;
        }
        let Some(ahead) = ahead else { return Ok(()) };
        run.run(transpose, &[("W", &w.value)], t, s)?;
        if self.edges_first {
            run.run(through, &[("G", dz), ("T", t)], &mut self.scratch, s)?;
            run.back(&self.scratch, ahead, s)?;
        } else {
            run.run(through, &[("G", between), ("T", t)], ahead, s)?;
        }
        let [own] = &own[..] else { return Ok(()) };
        run.run(transpose, &[("W", &own.value)], t, s)?;
        run.run("X[n,i] += G[n,o] * T[o,i]", &[("G", dz), ("T", t)], ahead, s)
    }
}

/// The model with its task.
pub struct Gcn<T: Scalar> {
    products: Products<T>,
    layers: Vec<Layer<T>>,
    features: Tensor<T>,
    labels: Tensor<i32>,
    loss_of: CrossEntropy<T>,
    pub loss: Tensor<f32>,
}

impl<T: Scalar> Gcn<T> {
    /// Creates layers of these widths, features first and classes last. `dense` selects the dense baseline.
    pub fn new(
        ctx: &Context,
        kind: Kind,
        task: &Task<T>,
        widths: [usize; 4],
        dense: bool,
    ) -> Result<Self> {
        let (rows, edges): (_, Csr<T>) = (task.edges.rows(), weighted(&task.edges, kind)?);
        let edges = match dense {
            true => Edges::Dense(ctx.upload_dense(&edges.to_dense()?)?),
            false => Edges::Sparse(ctx.upload(edges)?),
        };
        let layer = |at: usize| Layer::new(ctx, kind, rows, [widths[at], widths[at + 1]], at);
        let mut layers = vec![layer(0)?, layer(1)?, layer(2)?];
        layers[2].relu = false;
        Ok(Gcn {
            products: Products::new(ctx, edges, kind == Kind::Gcn),
            layers,
            features: ctx.upload_dense(&task.features)?,
            labels: ctx.upload_dense(&Dense::new([rows], task.labels.clone())?)?,
            loss_of: CrossEntropy::new(ctx, [rows, widths[3]])?,
            loss: ctx.zeros(&[1])?,
        })
    }

    pub fn parameters(&mut self) -> impl Iterator<Item = &mut Parameter<T>> {
        self.layers.iter_mut().flat_map(|layer| &mut layer.parameters)
    }

    pub fn logits(&self) -> &Tensor<T> {
        &self.layers[2].output
    }

    pub fn forward(&mut self, stream: &Stream) -> Result<()> {
        for at in 0..self.layers.len() {
            let (ahead, rest) = self.layers.split_at_mut(at);
            let h = ahead.last().map_or(&self.features, |layer| &layer.output);
            rest[0].forward(&mut self.products, h, stream)?;
        }
        Ok(())
    }

    /// Computes the loss and the gradients of all parameters, after a forward run.
    pub fn backward(&mut self, stream: &Stream) -> Result<()> {
        let last = &mut self.layers[2];
        let (output, gradient) = (&last.output, &mut last.gradient);
        self.loss_of.forward_backward(output, &self.labels, &mut self.loss, gradient, stream)?;
        for at in (0..self.layers.len()).rev() {
            let (ahead, rest) = self.layers.split_at_mut(at);
            let (h, gradient) = match ahead.last_mut() {
                None => (&self.features, None),
                Some(layer) => (&layer.output, Some(&mut layer.gradient)),
            };
            rest[0].backward(&mut self.products, (h, gradient), stream)?;
        }
        Ok(())
    }
}
