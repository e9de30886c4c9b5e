//! Decoder of Llama's shape (arXiv 2302.13971): RMSNorm, rotary positions, grouped heads over a cache, SwiGLU. Results
//! of a step stay in device memory: a step does not synchronize with the host, and is one CUDA graph.

use einsparse::dynamic::Gate;
use einsparse::formats::{Dense, bf16};
use einsparse::nn::{Embedding, Glu, Greedy, RmsNorm, Rotary, RotaryOptions};
use einsparse::ops::{AttentionOptions, CachedAttention};
use einsparse::{Context, Plan, Result, Scalar, Stream, Tensor};

use super::pruned::{HostWeights, Product, Shape, cast};

struct Layer<T: Scalar> {
    products: Vec<Product<T>>,
    norms: [Tensor<T>; 2],
    cache: [Tensor<T>; 2],
}

/// Operations between products, and the rows they write.
struct Between<T: Scalar> {
    norm: RmsNorm<T>,
    rotary: Rotary<T>,
    attention: CachedAttention<T>,
    glu: Glu<T>,
    /// Transposes tokens in rows to tokens in columns.
    transpose: Option<Plan<T>>,
    /// Residual stream, and the normalized residual stream.
    x: Tensor<T>,
    normed: Tensor<T>,
    qkv: Tensor<T>,
    heads: [Tensor<T>; 3],
    attended: Tensor<T>,
    turned: Tensor<T>,
    up: Tensor<T>,
    gated: Tensor<T>,
}

/// The model, and one token of each sequence.
pub struct Decoder<T: Scalar> {
    shape: Shape,
    batch: usize,
    layers: Vec<Layer<T>>,
    own: Between<T>,
    last_norm: Tensor<T>,
    table: Tensor<T>,
    /// Weights of the last product, unless it uses the table.
    last: Option<Tensor<T>>,
    embedding: Embedding<T>,
    head: Plan<T>,
    logits: Tensor<T>,
    greedy: Greedy<T>,
    pub tokens: Tensor<i32>,
    /// Tokens of each sequence, including the current one.
    pub lengths: Tensor<i32>,
}

impl<T: Scalar> Decoder<T> {
    pub fn new(
        ctx: &Context,
        shape: Shape,
        weights: &HostWeights,
        batch: usize,
        dense: bool,
    ) -> Result<Self> {
        let (width, columns) = (shape.width, !dense);
        let of = |features: usize| match columns {
            true => ctx.zeros::<T>(&[features, batch]),
            false => ctx.zeros::<T>(&[batch, features]),
        };
        let [heads, key_heads] = shape.heads;
        let there = |dense: &Dense<bf16>| {
            ctx.upload_dense(&Dense::new(dense.shape(), cast(dense.values()))?)
        };
        let mut layers = Vec::new();
        for own in weights.layers.iter().cycle().take(shape.layers) {
            // Outputs of attention and of the feed-forward network are added to the residual stream.
            let products = own.products.iter().zip([false, true, false, true]);
            let products = products.map(|(csr, add)| Product::new(ctx, csr, (batch, add), dense));
            let cache = || ctx.zeros(&[batch, key_heads, shape.capacity, shape.dim()]);
            layers.push(Layer {
                products: products.collect::<Result<_>>()?,
                norms: [there(&own.norms[0])?, there(&own.norms[1])?],
                cache: [cache()?, cache()?],
            });
        }
        let attention = AttentionOptions {
            heads,
            key_heads: Some(key_heads),
            dim: shape.dim(),
            ..AttentionOptions::default()
        };
        let rotary = RotaryOptions {
            tokens: batch,
            heads,
            key_heads,
            dim: shape.dim(),
            tokens_in_columns: columns,
            ..RotaryOptions::default()
        };
        let part = |heads: usize| ctx.zeros(&[batch, heads, shape.dim()]);
        let attended = ctx.zeros(&[batch, width])?;
        let transpose = match columns && batch > 1 {
            true => {
                Some(ctx.plan("O[i,t] = A[t,i]").operands(&[("A", (&attended).into())]).build()?)
            }
            false => None,
        };
        let [qkv, _, up, _] = shape.products();
        let own = Between {
            norm: RmsNorm::new(ctx, [batch, width], 1e-5, columns)?,
            rotary: Rotary::new(ctx, &rotary)?,
            attention: CachedAttention::new(ctx, [batch, shape.capacity], &attention)?,
            glu: Glu::new(ctx, Gate::Silu, [batch, shape.hidden], columns)?,
            transpose,
            x: of(width)?,
            normed: of(width)?,
            qkv: of(qkv[0])?,
            heads: [part(heads)?, part(key_heads)?, part(key_heads)?],
            attended,
            turned: of(width)?,
            up: of(up[0])?,
            gated: of(shape.hidden)?,
        };
        let table = there(&weights.table)?;
        let last = weights.head.as_ref().map(there).transpose()?;
        let (turned, x) = (columns && batch > 1, ctx.zeros::<T>(&[batch, width])?);
        let logits = ctx.zeros(&match turned {
            true => [shape.vocabulary, batch],
            false => [batch, shape.vocabulary],
        })?;
        let head = match turned {
            true => ctx.plan("L[v,t] = E[v,i] * X[i,t]"),
            false => ctx.plan("L[t,v] = X[t,i] * E[v,i]"),
        };
        let x = if turned { of(width)? } else { x };
        let operands = [("X", (&x).into()), ("E", (&table).into())];
        let head = head.operands(&operands).build()?;
        let extents = [shape.vocabulary, width];
        Ok(Decoder {
            embedding: Embedding::new(ctx, extents, batch, columns)?,
            head,
            logits,
            greedy: Greedy::new(ctx, [batch, shape.vocabulary], turned)?,
            tokens: ctx.zeros(&[batch])?,
            lengths: ctx.upload_dense(&Dense::new([batch], vec![1; batch])?)?,
            last_norm: there(&weights.last_norm)?,
            table,
            last,
            shape,
            batch,
            layers,
            own,
        })
    }

    /// Returns the kernels of a layer's products.
    pub fn variants(&self) -> Vec<&'static str> {
        self.layers[0].products.iter().map(Product::variant).collect()
    }

    /// Returns the bytes of the weights of all linear layers.
    pub fn bytes(&self) -> usize {
        let products = self.layers.iter().flat_map(|layer| &layer.products);
        products.map(|product| product.bytes).sum()
    }

    pub fn logits(&self) -> &Tensor<T> {
        &self.logits
    }

    /// Runs all layers, from the residual stream to the normalized one.
    pub fn layers(&mut self, stream: &Stream) -> Result<()> {
        let (rows, own) = ([self.batch, self.shape.width], &mut self.own);
        let parts = [self.batch, self.shape.heads[0], self.shape.dim()];
        for layer in &mut self.layers {
            let [qkv, out, up, down] = &layer.products[..] else { unreachable!() };
            let [first, second] = &layer.norms;
            own.norm.forward(&own.x, first, &mut own.normed, stream)?;
            qkv.run(&own.normed, &mut own.qkv, stream)?;
            own.rotary.forward(&own.qkv, &self.lengths, own.heads.each_mut(), stream)?;
            own.attended.reshape(&parts)?;
            let ([q, k, v], [keys, values]) = (&own.heads, &mut layer.cache);
            let to = (&self.lengths, &mut own.attended);
            own.attention.append(q, [k, v], [keys, values], to.0, to.1, stream)?;
            own.attended.reshape(&rows)?;
            if let Some(transpose) = &own.transpose {
                transpose.run(&[("A", (&own.attended).into())], &mut own.turned, stream)?;
                out.run(&own.turned, &mut own.x, stream)?;
            } else {
                own.attended.reshape(own.x.shape())?;
                out.run(&own.attended, &mut own.x, stream)?;
            }
            own.norm.forward(&own.x, second, &mut own.normed, stream)?;
            up.run(&own.normed, &mut own.up, stream)?;
            own.glu.forward(&own.up, &mut own.gated, stream)?;
            down.run(&own.gated, &mut own.x, stream)?;
        }
        own.norm.forward(&own.x, &self.last_norm, &mut own.normed, stream)
    }

    /// Generates a token for each sequence: looks up the current token, and finds the next one.
    pub fn step(&mut self, stream: &Stream) -> Result<()> {
        self.embedding.forward(&self.table, &self.tokens, &mut self.own.x, stream)?;
        self.layers(stream)?;
        let own = &mut self.own;
        let shape = own.normed.shape().to_vec();
        if self.batch == 1 {
            // One column has the layout of one row.
            own.normed.reshape(&[1, self.shape.width])?;
        }
        let table = self.last.as_ref().unwrap_or(&self.table);
        let operands = [("X", (&own.normed).into()), ("E", table.into())];
        self.head.run(&operands, &mut self.logits, stream)?;
        own.normed.reshape(&shape)?;
        let lengths = Some(&mut self.lengths);
        self.greedy.forward(&self.logits, &mut self.tokens, lengths, stream)
    }
}
