//! Masks of dense weights: a step uses the 64 x 64 blocks with the largest norms of each row of blocks. They are
//! selected at each step, on the device.

use einsparse::dynamic::{Dynamic, SparsityHint};
use einsparse::formats::Dense;
use einsparse::nn::{Router, RouterOptions};
use einsparse::{Context, Operand, Options, Plan, Result, Scalar, Stream, Tensor};

use super::common::wide;

/// Rows and columns of a block.
pub const BLOCK: usize = 64;

/// One in `EVERY` blocks is kept.
const EVERY: usize = 10;

/// Number of blocks that a row of blocks keeps: at least one, and not all.
pub fn kept(width: usize) -> usize {
    (width / BLOCK / EVERY).max(1)
}

/// Creates a plan for tensors of these shapes.
pub fn plan<T: Scalar>(ctx: &Context, text: &str, of: &[(&str, &[usize])]) -> Result<Plan<T>> {
    let tensors = of.iter().map(|(_, shape)| ctx.zeros::<T>(shape)).collect::<Result<Vec<_>>>()?;
    let operands: Vec<(&str, Operand<'_, T>)> =
        of.iter().zip(&tensors).map(|((name, _), tensor)| (*name, tensor.into())).collect();
    ctx.plan(text).operands(&operands).build()
}

/// Expected sparsity of masked weights.
pub fn expected(width: usize) -> SparsityHint {
    SparsityHint::MicroTiles(kept(width) as f64 / (width / BLOCK) as f64)
}

/// Creates a plan of `Y = W X` for masked weights. Among the kernels that skip micro-tiles, it selects the one with the
/// rows of a block.
pub fn masked_plan<T: Scalar>(ctx: &Context, width: usize, tokens: usize) -> Result<Plan<T>> {
    let (w, x) = (ctx.zeros::<T>(&[width, width])?, ctx.zeros::<T>(&[width, tokens])?);
    let operands = [("W", Dynamic::new(&w).expecting(expected(width)).into()), ("X", (&x).into())];
    let built = |variant: Option<&str>| {
        let options = Options::default().variant(variant);
        ctx.plan("Y[o,t] = W[o,i] * X[i,t]").operands(&operands).options(&options).build()
    };
    let plan = built(None)?;
    let fits = |name: &&str| name.starts_with("pit_") && name.ends_with(&format!("_{BLOCK}x1"));
    let name = plan.choice().candidates().map(|(name, _)| name).find(fits);
    match name {
        Some(name) => built(Some(name)),
        None => Ok(plan),
    }
}

/// Masks of all layers, whose weights are concatenated along rows.
pub struct Masks<T: Scalar> {
    norms: Plan<T>,
    select: Plan<T>,
    apply: Plan<T>,
    router: Router<T>,
    /// Mean squares of the blocks.
    mean: Tensor<T>,
    choices: Tensor<i32>,
    weights: Tensor<f32>,
    /// Marks of the choices: 1 for kept blocks, 0 for the first block that is not kept.
    votes: Tensor<f32>,
    chosen: Tensor<T>,
    ones: Tensor<T>,
    /// 1 for each kept block, otherwise 0.
    pub mask: Tensor<T>,
    /// Weights of the kept blocks, zeros elsewhere.
    pub masked: Tensor<T>,
}

impl<T: Scalar> Masks<T> {
    pub fn new(ctx: &Context, [rows, columns]: [usize; 2]) -> Result<Self> {
        let grid = [rows / BLOCK, columns / BLOCK];
        let blocks = [grid[0], BLOCK, grid[1], BLOCK];
        let top_k = kept(columns) + 1;
        let options = RouterOptions { tokens: grid[0], experts: grid[1], top_k, normalized: true };
        let vote = |i: &[usize]| if i[1] + 1 < top_k { 1.0 } else { 0.0 };
        let share = 1.0 / (BLOCK * BLOCK) as f64;
        let norms = format!("N[a,b] = {share} * V[a,i,b,j] * V[a,i,b,j]");
        let (of, select) =
            ([("V", &blocks[..]), ("M", &grid[..])], [("O", &grid[..]), ("G", &grid[..])]);
        Ok(Masks {
            norms: plan(ctx, &norms, &of[..1])?,
            select: plan(ctx, "M[a,b] = relu_grad(O[a,b], G[a,b])", &select)?,
            apply: plan(ctx, "W[a,i,b,j] = V[a,i,b,j] * M[a,b]", &of)?,
            router: Router::new(ctx, &options)?,
            mean: ctx.zeros(&grid)?,
            choices: ctx.zeros(&[grid[0], top_k])?,
            weights: ctx.zeros(&[grid[0], top_k])?,
            votes: ctx.upload_dense(&Dense::from_fn([grid[0], top_k], vote)?)?,
            chosen: ctx.zeros(&grid)?,
            ones: ctx.upload_dense(&Dense::from_fn(grid, |_| T::ONE)?)?,
            mask: ctx.zeros(&grid)?,
            masked: ctx.zeros(&[rows, columns])?,
        })
    }

    /// Selects the blocks, and writes the weights with the other blocks masked.
    pub fn run(&mut self, weights: &Tensor<T>, stream: &Stream) -> Result<()> {
        let grid = self.mean.shape();
        let blocks = [grid[0], BLOCK, grid[1], BLOCK];
        let weights = weights.part(0, &blocks)?;
        let v = || ("V", (&*weights).into());
        self.norms.run(&[v()], &mut self.mean, stream)?;
        let Self { router, mean, choices, weights: shares, .. } = self;
        router.forward(mean, choices, shares, stream)?;
        // The router's gradient of the votes is zero except at the choices. A kept block gets a positive value: its
        // weight times that of the first block that is not kept. The latter block gets a negative value.
        router.backward(mean, choices, shares, &self.votes, &mut self.chosen, stream)?;
        let operands = [("O", (&self.ones).into()), ("G", (&self.chosen).into())];
        self.select.run(&operands, &mut self.mask, stream)?;
        let mut to = self.masked.part_mut(0, &blocks)?;
        let operands = [v(), ("M", (&self.mask).into())];
        self.apply.run(&operands, &mut *to, stream)
    }

    /// Whether each row of blocks keeps the required number, and no kept block has a smaller norm than one that is not
    /// kept, up to rounding of T.
    pub fn keep_the_greatest(&self, weights: &Tensor<T>) -> Result<bool> {
        let mask = wide(&self.mask)?;
        let (width, across) = (weights.shape()[1], self.mask.shape()[1]);
        let mut norms = vec![0.0; mask.len()];
        for (at, x) in wide(weights)?.iter().enumerate() {
            norms[at / width / BLOCK * across + at % width / BLOCK] += x * x;
        }
        let right = |(mask, norms): (&[f64], &[f64])| {
            let of = |kept: f64| (mask.iter().zip(norms)).filter(move |(m, _)| **m == kept);
            let least = of(1.0).fold(f64::INFINITY, |all, (_, norm)| all.min(*norm));
            let most = of(0.0).fold(0.0f64, |all, (_, norm)| all.max(*norm));
            let counts = (of(1.0).count(), of(0.0).count());
            counts == (kept(width), across - kept(width)) && least * 1.01 > most
        };
        Ok(mask.chunks(across).zip(norms.chunks(across)).all(right))
    }
}
