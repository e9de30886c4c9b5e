//! Dense baseline of the experts of [`Block`](super::moe_block::Block): all experts for every token, as two dense
//! products. The host fills in the matrix of routing weights beforehand, so the baseline does not route.

use einsparse::dynamic::Gate;
use einsparse::formats::{Dense, bf16};
use einsparse::nn::Glu;
use einsparse::{Context, Operand, Plan, Result, Stream, Tensor};

use super::block_masks::plan;
use super::moe::Shape;
use super::moe_block::Block;

/// Weights of all experts: `[gates and factors of all, model]`, `[hidden of all, model]`.
pub fn weights(ctx: &Context, shape: &Shape) -> Result<[Tensor<bf16>; 2]> {
    let (experts, hidden, model) = (shape.experts, shape.hidden, shape.model);
    let [up, down] = shape.experts_seeded::<bf16>()?;
    // Experts store one row per output feature; the baseline stores one per hidden feature.
    let mut rows = vec![bf16::ZERO; experts * hidden * model];
    for (expert, own) in down.values().chunks(hidden * model).enumerate() {
        for (at, value) in own.iter().enumerate() {
            rows[(expert * hidden + at % hidden) * model + at / hidden] = *value;
        }
    }
    let up = Dense::new([experts * 2 * hidden, model], up.into_values())?;
    let down = Dense::new([experts * hidden, model], rows)?;
    Ok([ctx.upload_dense(&up)?, ctx.upload_dense(&down)?])
}

pub struct DenseExperts<'a> {
    weights: &'a [Tensor<bf16>; 2],
    products: [Plan<bf16>; 2],
    glu: Glu<bf16>,
    weigh: Plan<bf16>,
    shares: Tensor<bf16>,
    up: Tensor<bf16>,
    gated: Tensor<bf16>,
    weighed: Tensor<bf16>,
    pub y: Tensor<bf16>,
}

impl<'a> DenseExperts<'a> {
    /// Creates the baseline for the choices of the block's last run.
    pub fn new(
        ctx: &Context,
        shape: &Shape,
        block: &Block<bf16>,
        weights: &'a [Tensor<bf16>; 2],
    ) -> Result<Self> {
        let (experts, hidden, model) = (shape.experts, shape.hidden, shape.model);
        let tokens = block.choices.shape()[0];
        let mut shares = vec![bf16::ZERO; tokens * experts];
        let chosen = (block.choices.to_dense()?, block.shares.to_dense()?);
        let both = chosen.0.values().iter().zip(chosen.1.values());
        for (at, (expert, share)) in both.enumerate() {
            shares[at / shape.top_k * experts + *expert as usize] = bf16::from_f32(*share);
        }
        let (x, rows) = ([tokens, model], tokens * experts);
        let all = [tokens, experts * hidden];
        let products = [
            plan(ctx, "H[t,h] = X[t,i] * W[h,i]", &[("X", &x), ("W", weights[0].shape())])?,
            plan(ctx, "Y[t,o] = X[t,h] * W[h,o]", &[("X", &all), ("W", weights[1].shape())])?,
        ];
        let of_weigh = [("S", &[rows][..]), ("G", &[rows, hidden])];
        Ok(DenseExperts {
            weights,
            products,
            glu: Glu::new(ctx, Gate::Silu, [rows, hidden], false)?,
            weigh: plan(ctx, "Z[r,h] = S[r] * G[r,h]", &of_weigh)?,
            shares: ctx.upload_dense(&Dense::new([rows], shares)?)?,
            up: ctx.zeros(&[tokens, experts * 2 * hidden])?,
            gated: ctx.zeros(&[rows, hidden])?,
            weighed: ctx.zeros(&[rows, hidden])?,
            y: ctx.zeros(&[tokens, model])?,
        })
    }

    /// Computes what the experts add for these tokens.
    pub fn forward(&mut self, x: &Tensor<bf16>, stream: &Stream) -> Result<()> {
        let (wide, rows) = (self.up.shape().to_vec(), self.gated.shape().to_vec());
        let operands: [(&str, Operand<'_, bf16>); 2] =
            [("X", x.into()), ("W", (&self.weights[0]).into())];
        self.products[0].run(&operands, &mut self.up, stream)?;
        // One row per token and expert.
        self.up.reshape(&[rows[0], 2 * rows[1]])?;
        self.glu.forward(&self.up, &mut self.gated, stream)?;
        self.up.reshape(&wide)?;
        let operands = [("S", (&self.shares).into()), ("G", (&self.gated).into())];
        self.weigh.run(&operands, &mut self.weighed, stream)?;
        self.weighed.reshape(&[wide[0], wide[1] / 2])?;
        let operands = [("X", (&self.weighed).into()), ("W", (&self.weights[1]).into())];
        self.products[1].run(&operands, &mut self.y, stream)?;
        self.weighed.reshape(&rows)
    }
}
