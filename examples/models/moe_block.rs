//! Block of Qwen3's shape (arXiv 2505.09388, without the norms of single heads): attention with grouped heads, then
//! gated experts, chosen by a router with Zipf's law. Runs prefill of a sequence, or one token of several with caches.

use einsparse::dynamic::Gate;
use einsparse::formats::Dense;
use einsparse::nn::{
    Moe, MoeInputs, MoeOptions, RmsNorm, Rotary, RotaryOptions, Router, RouterOptions,
};
use einsparse::ops::{AttentionMask, AttentionOptions, CachedAttention, SparseAttention};
use einsparse::{Context, Plan, Result, Scalar, Stream, Tensor};

use super::moe::{Shape, inputs, values};

/// Keys that tokens attend to.
enum Attention<T: Scalar> {
    /// Tokens before them.
    Prefill(Box<SparseAttention<T>>),
    /// Caches of keys and values.
    Decode(Box<(CachedAttention<T>, [Tensor<T>; 2])>),
}

/// The block with its weights, and the rows of its tokens.
pub struct Block<T: Scalar> {
    tokens: usize,
    norm: RmsNorm<T>,
    factors: [Tensor<T>; 2],
    weights: [Tensor<T>; 3],
    products: [Plan<T>; 3],
    rotary: Rotary<T>,
    attention: Attention<T>,
    router: Router<T>,
    experts: [Tensor<T>; 2],
    pub moe: Moe<T>,
    /// Residual stream.
    pub x: Tensor<T>,
    lengths: Tensor<i32>,
    pub normed: Tensor<T>,
    qkv: Tensor<T>,
    parts: [Tensor<T>; 3],
    attended: Tensor<T>,
    logits: Tensor<T>,
    pub choices: Tensor<i32>,
    pub shares: Tensor<f32>,
    pub y: Tensor<T>,
}

impl<T: Scalar> Block<T> {
    /// Creates a block for `tokens` tokens of one sequence, or for as many sequences with `past` tokens before each.
    pub fn new(ctx: &Context, shape: &Shape, tokens: usize, past: Option<usize>) -> Result<Self> {
        let Shape { model, heads: [heads, key_heads], dim, experts, hidden, top_k, gain } = *shape;
        let random = |shape: &[usize], (inputs, gain): (usize, f64), seed| {
            ctx.upload_dense(&values::<T>(shape, gain / (inputs as f64).sqrt(), seed)?)
        };
        let zeros = |shape: &[usize]| ctx.zeros::<T>(shape);
        let width = (heads + 2 * key_heads) * dim;
        let mut routing = values::<T>(&[model, experts], 1.0 / (model as f64).sqrt(), 3)?;
        // The first feature is the same for all tokens: expert e is chosen with weight 1 / (e + 1).
        for (expert, value) in routing.values_mut()[..experts].iter_mut().enumerate() {
            *value = T::from_f64(-0.25 * (expert as f64 + 1.0).ln());
        }
        let weights = [
            random(&[model, width], (model, 1.0), 1)?,
            random(&[heads * dim, model], (heads * dim, gain), 2)?,
            ctx.upload_dense(&routing)?,
        ];
        let product = |x: &Tensor<T>, w: &Tensor<T>| {
            let operands = [("X", x.into()), ("W", w.into())];
            ctx.plan("Y[t,o] = X[t,i] * W[i,o]").operands(&operands).build()
        };
        let (x, attended) =
            (ctx.upload_dense(&inputs(tokens, model)?)?, zeros(&[tokens, heads * dim])?);
        let options = AttentionOptions {
            heads,
            key_heads: Some(key_heads),
            dim,
            ..AttentionOptions::default()
        };
        let attention = match past {
            None => {
                let options = AttentionOptions { causal: Some(0), ..options };
                let before = [AttentionMask::Window { before: tokens, after: 0 }];
                let own = SparseAttention::structured(ctx, [tokens; 2], &before, &options)?;
                Attention::Prefill(own.into())
            }
            Some(past) => {
                let cache = || zeros(&[tokens, key_heads, past + 8, dim]);
                let own = CachedAttention::new(ctx, [tokens, past + 8], &options)?;
                Attention::Decode((own, [cache()?, cache()?]).into())
            }
        };
        let lengths = (0..tokens).map(|t| past.unwrap_or(t) as i32 + 1).collect();
        let options = MoeOptions {
            tokens,
            experts,
            top_k,
            model,
            hidden,
            gate: Some(Gate::Silu),
            transposed: true,
            ..MoeOptions::default()
        };
        let [up, down] = shape.experts_seeded::<T>()?;
        let ones = || ctx.upload_dense(&Dense::from_fn(vec![model], |_| T::ONE)?);
        let routed = RouterOptions { tokens, experts, top_k, normalized: true };
        let part = |heads: usize| zeros(&[tokens, heads, dim]);
        Ok(Block {
            tokens,
            norm: RmsNorm::new(ctx, [tokens, model], 1e-6, false)?,
            factors: [ones()?, ones()?],
            products: [
                product(&x, &weights[0])?,
                product(&attended, &weights[1])?,
                product(&x, &weights[2])?,
            ],
            weights,
            rotary: Rotary::new(
                ctx,
                &RotaryOptions {
                    tokens,
                    heads,
                    key_heads,
                    dim,
                    base: 1e6,
                    ..RotaryOptions::default()
                },
            )?,
            attention,
            router: Router::new(ctx, &routed)?,
            experts: [ctx.upload_dense(&up)?, ctx.upload_dense(&down)?],
            moe: Moe::new(ctx, &options)?,
            lengths: ctx.upload_dense(&Dense::new([tokens], lengths)?)?,
            normed: zeros(&[tokens, model])?,
            qkv: zeros(&[tokens, width])?,
            parts: [part(heads)?, part(key_heads)?, part(key_heads)?],
            attended,
            logits: zeros(&[tokens, experts])?,
            choices: ctx.zeros(&[tokens, top_k])?,
            shares: ctx.zeros(&[tokens, top_k])?,
            y: zeros(&[tokens, model])?,
            x,
        })
    }

    /// Normalizes the tokens, as the previous block would.
    pub fn start(&mut self, stream: &Stream) -> Result<()> {
        self.norm.forward(&self.x, &self.factors[0], &mut self.normed, stream)
    }

    pub fn forward(&mut self, stream: &Stream) -> Result<()> {
        self.around(stream, |own| own.choose(stream))
    }

    /// Runs attention, then `experts`, which computes `y` from the tokens after attention.
    pub fn around(
        &mut self,
        stream: &Stream,
        experts: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.attend(stream)?;
        let to = [&mut self.x, &mut self.normed];
        self.norm.forward_residual(to, &self.y, &self.factors[1], stream)?;
        experts(self)?;
        // The next block begins with the norm of the sum.
        let to = [&mut self.x, &mut self.normed];
        self.norm.forward_residual(to, &self.y, &self.factors[0], stream)
    }

    /// Computes what attention adds from normalized rows.
    pub fn attend(&mut self, stream: &Stream) -> Result<()> {
        let operands = [("X", (&self.normed).into()), ("W", (&self.weights[0]).into())];
        self.products[0].run(&operands, &mut self.qkv, stream)?;
        let parts = self.parts.each_mut();
        self.rotary.forward(&self.qkv, &self.lengths, parts, stream)?;
        let dim = self.parts[0].shape()[2];
        match &mut self.attention {
            Attention::Prefill(own) => {
                // The heads of a token are adjacent in its row.
                for part in &mut self.parts {
                    let heads = part.shape()[1];
                    part.reshape(&[self.tokens, heads * dim])?;
                }
                let [q, k, v] = &self.parts;
                own.forward([q, k, v], &mut self.attended, None, stream)?;
                for part in &mut self.parts {
                    let heads = part.shape()[1] / dim;
                    part.reshape(&[self.tokens, heads, dim])?;
                }
            }
            Attention::Decode(both) => {
                let (own, [keys, values]) = &mut **both;
                let [q, k, v] = &self.parts;
                let rows = self.attended.shape().to_vec();
                self.attended.reshape(q.shape())?;
                let (lengths, out) = (&self.lengths, &mut self.attended);
                own.append(q, [k, v], [keys, values], lengths, out, stream)?;
                self.attended.reshape(&rows)?;
            }
        }
        let operands = [("X", (&self.attended).into()), ("W", (&self.weights[1]).into())];
        self.products[1].run(&operands, &mut self.y, stream)
    }

    /// Computes what the chosen experts add from normalized rows.
    pub fn choose(&mut self, stream: &Stream) -> Result<()> {
        let operands = [("X", (&self.normed).into()), ("W", (&self.weights[2]).into())];
        self.products[2].run(&operands, &mut self.logits, stream)?;
        let (choices, shares) = (&mut self.choices, &mut self.shares);
        self.router.forward(&self.logits, choices, shares, stream)?;
        let [up, down] = self.experts.each_ref().map(|stack| stack.into());
        let inputs = MoeInputs { x: &self.normed, choices, weights: shares, up, down };
        self.moe.forward(&inputs, &mut self.y, stream)
    }
}
