//! Layers of attention at the entries of a mask and feed-forward with ReLU, each normalized after its residual sum
//! (arXiv 1706.03762), with hand-written gradients. Tokens are rows.

use einsparse::nn::{BiasGradient, CrossEntropy, ResidualNorm, ResidualNormGradient};
use einsparse::ops::{AttentionGradient, AttentionMask, AttentionOptions, SparseAttention};
use einsparse::{Context, Result, Scalar, Stream, Tensor};

use super::transformer_weights::{Kept, Parameters, Product, Role, Shape};

const EPSILON: f64 = 1e-6;

/// State of training.
struct Slopes<T: Scalar, G: Scalar> {
    attention: AttentionGradient<T>,
    norm: ResidualNormGradient<T, G>,
    biases: [BiasGradient<T, G>; 2],
    loss_of: CrossEntropy<T>,
    /// Gradients of tokens: of the output of a norm, and of its input.
    tokens: [Tensor<T>; 2],
    hidden: Tensor<T>,
    seen: Tensor<T>,
    qkv: Tensor<T>,
}

/// Network in T; gradients of biases and norms are in G.
pub struct Transformer<T: Scalar, G: Scalar = f32> {
    shape: Shape,
    pub parameters: Parameters<T, T>,
    pub gradients: Parameters<T, G>,
    products: Vec<Product<T>>,
    attention: SparseAttention<T>,
    norm: ResidualNorm<T>,
    /// The input, and the outputs of layers.
    pub tokens: Vec<Tensor<T>>,
    kept: Vec<Kept<T>>,
    slopes: Option<Slopes<T, G>>,
    /// Logits; after a backward run, their gradients.
    pub logits: Tensor<T>,
    pub labels: Tensor<i32>,
    pub loss: Tensor<f32>,
}

impl<T: Scalar, G: Scalar> Transformer<T, G> {
    pub fn new(ctx: &Context, shape: Shape, mask: &AttentionMask, trains: bool) -> Result<Self> {
        let rows = |columns: usize| ctx.zeros::<T>(&[shape.tokens, columns]);
        let (w, h) = (shape.width, shape.hidden);
        let options = AttentionOptions {
            heads: shape.heads,
            dim: w / shape.heads,
            causal: Some(0),
            ..AttentionOptions::default()
        };
        let square = [shape.tokens; 2];
        let mask = std::slice::from_ref(mask);
        let bias = |columns| BiasGradient::new(ctx, [shape.tokens, columns]);
        let slopes = || -> Result<Slopes<T, G>> {
            Ok(Slopes {
                attention: AttentionGradient::structured(ctx, square, mask, &options)?,
                norm: ResidualNormGradient::new(ctx, [shape.tokens, w], EPSILON)?,
                biases: [bias(h)?, bias(w)?],
                loss_of: CrossEntropy::new(ctx, [shape.tokens, shape.classes])?,
                tokens: [rows(w)?, rows(w)?],
                hidden: rows(h)?,
                seen: rows(w)?,
                qkv: rows(3 * w)?,
            })
        };
        let product = |role| Product::new(ctx, &shape, role, trains);
        // Without gradients, layers alternate between two buffers.
        let (layers, kept_of, tokens_of) = match trains {
            true => (shape.layers, shape.layers, shape.layers + 1),
            false => (0, 1, 3),
        };
        Ok(Transformer {
            parameters: Parameters::seeded(ctx, shape)?,
            gradients: Parameters::zeros(ctx, Shape { layers, ..shape })?,
            products: Role::ALL.map(product).into_iter().collect::<Result<_>>()?,
            attention: SparseAttention::structured(ctx, square, mask, &options)?,
            norm: ResidualNorm::new(ctx, [shape.tokens, w], EPSILON)?,
            tokens: (0..tokens_of).map(|_| rows(w)).collect::<Result<_>>()?,
            kept: (0..kept_of).map(|_| Kept::new(ctx, &shape)).collect::<Result<_>>()?,
            slopes: trains.then(slopes).transpose()?,
            logits: rows(shape.classes)?,
            labels: ctx.zeros(&[shape.tokens])?,
            loss: ctx.zeros(&[1])?,
            shape,
        })
    }

    /// Index of the tokens that layer `layer` reads.
    fn place(&self, layer: usize) -> usize {
        match layer {
            0 => 0,
            _ => 1 + (layer - 1) % (self.tokens.len() - 1),
        }
    }

    /// Runs all layers, from the first tokens to the last.
    pub fn layers(&mut self, stream: &Stream) -> Result<()> {
        (0..self.shape.layers).try_for_each(|layer| self.layer(layer, stream))
    }

    fn layer(&mut self, layer: usize, stream: &Stream) -> Result<()> {
        let places = [self.place(layer), self.place(layer + 1)];
        let Ok([x, out]) = self.tokens.get_disjoint_mut(places) else {
            unreachable!("a layer does not write what it reads");
        };
        let at = layer % self.kept.len();
        let (kept, own, width) = (&mut self.kept[at], &self.parameters, self.shape.width);
        let multiply = |role: Role, x: &Tensor<T>, y: &mut Tensor<T>| -> Result<()> {
            let (w, b) = (own.matrix(layer, role)?, own.bias(layer, role)?);
            let all = [("X", x.into()), ("W", (&*w).into()), ("b", (&*b).into())];
            let operands = if matches!(role, Role::Up | Role::Down) { 3 } else { 2 };
            self.products[role as usize].forward.run(&all[..operands], y, stream)
        };
        multiply(Role::Qkv, x, &mut kept.qkv)?;
        let part = |part: usize| kept.qkv.columns(part * width..(part + 1) * width);
        let [q, k, v] = [part(0)?, part(1)?, part(2)?];
        self.attention.forward([&q, &k, &v], &mut kept.seen, None, stream)?;
        let [first, second] = &mut kept.sums;
        multiply(Role::Out, &kept.seen, first)?;
        let [factor, summand] = own.norm(layer, 0)?;
        let affine = [&*factor, &*summand];
        self.norm.forward([x, first], affine, &mut kept.between, stream)?;
        multiply(Role::Up, &kept.between, &mut kept.hidden)?;
        multiply(Role::Down, &kept.hidden, second)?;
        let [factor, summand] = own.norm(layer, 1)?;
        let affine = [&*factor, &*summand];
        self.norm.forward([&kept.between, second], affine, out, stream)
    }

    /// Runs the layers, and computes the logits of each token's class.
    pub fn forward(&mut self, stream: &Stream) -> Result<()> {
        self.layers(stream)?;
        let last = &self.tokens[self.place(self.shape.layers)];
        let w = self.parameters.matrix(self.shape.layers, Role::Head)?;
        let operands = [("X", last.into()), ("W", (&*w).into())];
        self.products[Role::Head as usize].forward.run(&operands, &mut self.logits, stream)
    }

    /// Computes the loss of the forward run and all gradients, down to those of the input, if the network trains.
    pub fn backward(&mut self, stream: &Stream) -> Result<()> {
        let Some(slopes) = &mut self.slopes else {
            return Ok(());
        };
        let (to, own, shape) = (&mut self.gradients, &self.parameters, self.shape);
        slopes.loss_of.forward_backward_in_place(
            &mut self.logits,
            &self.labels,
            &mut self.loss,
            stream,
        )?;
        let plans = |role: Role| self.products[role as usize].back.iter().flatten();
        // Gradient of the weights, from the inputs of a product and the gradient of its outputs.
        let weight = |to: &mut Parameters<T, G>, layer, role, x: &Tensor<T>, d: &Tensor<T>| {
            let mut g = to.matrix_mut(layer, role)?;
            let mut plans = plans(role).skip(1);
            plans.try_for_each(|p| p.run(&[("X", x.into()), ("D", d.into())], &mut *g, stream))
        };
        // Gradient of the inputs; `gate` is the output of a ReLU.
        let input = |layer, role, d: &Tensor<T>, gate: &Tensor<T>, e: &mut Tensor<T>| {
            let w = own.matrix(layer, role)?;
            let all = [("D", d.into()), ("W", (&*w).into()), ("X", gate.into())];
            let operands = if role == Role::Down { 3 } else { 2 };
            let mut plans = plans(role).take(1);
            plans.try_for_each(|plan| plan.run(&all[..operands], e, stream))
        };
        let [above, below] = &mut slopes.tokens;
        let last = &self.tokens[shape.layers];
        weight(to, shape.layers, Role::Head, last, &self.logits)?;
        input(shape.layers, Role::Head, &self.logits, last, above)?;
        for (layer, kept) in self.kept.iter().enumerate().rev() {
            let (x, between, hidden) = (&self.tokens[layer], &kept.between, &kept.hidden);
            let [factor, _] = own.norm(layer, 1)?;
            let mut affine = to.norm_mut(layer, 1)?;
            let sums = [between, &kept.sums[1]];
            let norm = &slopes.norm;
            norm.backward(sums, &factor, above, below, &mut affine, stream)?;
            drop(affine);
            let mut db = to.bias_mut(layer, Role::Down)?;
            slopes.biases[1].backward_bias(below, &mut db, stream)?;
            drop(db);
            weight(to, layer, Role::Down, hidden, below)?;
            input(layer, Role::Down, below, hidden, &mut slopes.hidden)?;
            let mut db = to.bias_mut(layer, Role::Up)?;
            slopes.biases[0].backward_bias(&slopes.hidden, &mut db, stream)?;
            drop(db);
            weight(to, layer, Role::Up, between, &slopes.hidden)?;
            input(layer, Role::Up, &slopes.hidden, between, below)?;

            let [factor, _] = own.norm(layer, 0)?;
            let mut affine = to.norm_mut(layer, 0)?;
            norm.backward([x, &kept.sums[0]], &factor, below, above, &mut affine, stream)?;
            drop(affine);
            weight(to, layer, Role::Out, &kept.seen, above)?;
            input(layer, Role::Out, above, x, &mut slopes.seen)?;
            let attention = &mut slopes.attention;
            attention.backward_in_rows(&kept.qkv, &slopes.seen, &mut slopes.qkv, stream)?;
            weight(to, layer, Role::Qkv, x, &slopes.qkv)?;
            input(layer, Role::Qkv, &slopes.qkv, x, above)?;
        }
        Ok(())
    }

    /// Returns the gradient of the input, after a backward run.
    pub fn input_gradient(&self) -> Option<&Tensor<T>> {
        self.slopes.as_ref().map(|slopes| &slopes.tokens[0])
    }

    /// Returns the kernels of a layer: attention, products, gradients.
    pub fn variants(&self) -> String {
        let products = self.products[..4].iter().map(|own| own.forward.variant());
        let mut all: Vec<_> = [self.attention.variant()].into_iter().chain(products).collect();
        if let Some(slopes) = &self.slopes {
            all.extend(slopes.attention.variants());
        }
        all.join(" ")
    }
}
