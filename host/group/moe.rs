//! Mixture-of-experts layer with experts distributed over ranks.

mod deal;

use std::fmt;
use std::ops::Range;

use super::exchange::Exchange;
use super::row_sum::RowSum;
use super::spmm::LINK;
use super::{Group, Partition};
use crate::device::Stream;
use crate::error::{Error, Result, check_shape, elements};
use crate::nn::{Moe, MoeGradients, MoeInputs, MoeOptions};
use crate::registry::Scalar;
use crate::tensor::Tensor;
use deal::{Deal, check_shares, share_sum};

/// Options of a [`ShardedMoe`].
///
/// ```
/// use einsparse::group::ShardedMoeOptions;
/// // The same bits on 1, 2 and 4 ranks.
/// let options = ShardedMoeOptions { shares: Some(4), ..ShardedMoeOptions::default() };
/// assert!(!options.training);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardedMoeOptions {
    /// Number of shares into which experts are divided, a multiple of the number of ranks. A token's sum over the
    /// experts of a share is rounded. `None`: one share per rank.
    pub shares: Option<usize>,
    /// Whether buffers for [`ShardedMoe::backward`] are allocated.
    pub training: bool,
}

/// [`nn::Moe`](Moe) with experts and tokens distributed over ranks. Each rank stores the matrices of its own experts,
/// routes its own tokens, and receives the outputs of its own tokens.
///
/// Tokens, choices and weights of all ranks are sent to every rank. Each rank computes the outputs of its own experts,
/// weighted and summed for each token. It sends these sums to the rank that owns the token, which adds them in the
/// order of experts. All extents are fixed: no token is dropped, no count is copied to the host, and no memory is
/// allocated.
///
/// Communication: let `t` be the number of tokens, `r` the number of ranks, and `d b` the bytes of a row of `d`
/// columns. In each of the two exchanges, a rank sends and receives `t / r (r - 1) d b` bytes. One GPU adds the rows of
/// all choices. Sending these rows back instead would take `top_k` times as many bytes: without counts, every choice
/// needs space.
///
/// Results have the same bits in every run. With one expert per token, or on one rank with one share, they are the bits
/// of [`nn::Moe`](Moe). With several experts per token, the sum of a share is rounded to `T` before shares are added.
/// The bits then depend on the number of [`shares`](ShardedMoeOptions::shares), but not on the number of ranks if all
/// of them run the same kernels.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Dense, f16};
/// use einsparse::group::{Group, Partition, ShardedMoe};
/// use einsparse::nn::{MoeInputs, MoeOptions};
/// let options = MoeOptions { tokens: 3, experts: 2, top_k: 1, model: 8, hidden: 8, ..MoeOptions::default() };
/// let rank = |group: Group| -> einsparse::Result<Vec<f16>> {
///     let (ctx, rank) = (group.context(), group.rank());
///     // Rank 0 has two tokens and expert 0, which multiplies by 1; rank 1 one token and expert 1, by 10.
///     let tokens = Partition::even(3, 2);
///     let mut layer = ShardedMoe::new(&group, &options, &tokens, &Default::default())?;
///     let own = tokens.range(rank).len();
///     let x = ctx.upload_dense(&Dense::from_fn(vec![own, 8], |i| f16::from_f32((1 + 2 * rank + i[0]) as f32))?)?;
///     let choices = ctx.upload_dense(&Dense::from_fn(vec![own, 1], |i| (i[0] == 0) as i32)?)?;
///     let weights = ctx.upload_dense(&Dense::new([own, 1], vec![1.0f32; own])?)?;
///     let by = |by: f32| {
///         let diagonal = |i: &[usize]| f16::from_f32(if i[1] == i[2] { by } else { 0.0 });
///         ctx.upload_dense(&Dense::from_fn([1, 8, 8], diagonal)?)
///     };
///     let (up, down) = (by([1.0, 10.0][rank])?, by(1.0)?);
///     let mut out = ctx.zeros(&[own, 8])?;
///     let inputs = MoeInputs {
///         x: &x,
///         choices: &choices,
///         weights: &weights,
///         up: (&up).into(),
///         down: (&down).into(),
///     };
///     layer.forward(&inputs, &mut out, &ctx.stream()?)?;
///     Ok(out.to_dense()?.into_values())
/// };
/// let ranks = Group::local(&[Context::cpu(), Context::cpu()])?;
/// let rows = std::thread::scope(|s| {
///     let ranks: Vec<_> = ranks.into_iter().map(|group| s.spawn(move || rank(group))).collect();
///     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<einsparse::Result<Vec<_>>>()
/// })?;
/// let first = |rows: &[f16]| rows.iter().step_by(8).map(|x| x.to_f32()).collect::<Vec<_>>();
/// assert_eq!((first(&rows[0]), first(&rows[1])), (vec![10.0, 2.0], vec![30.0]));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct ShardedMoe<T: Scalar> {
    deal: Deal,
    /// Layers of own shares, each for the tokens of all ranks.
    layers: Vec<Moe<T>>,
    /// Received tokens of all ranks; `None` on one rank.
    all: Option<Tokens<T>>,
    /// Outputs of own tokens, one row per token and share, in the order of shares; empty if there is one share.
    parts: Tensor<T>,
    add: Option<RowSum<T>>,
    training: Option<Training<T>>,
}

/// Tokens of all ranks, in the order of ranks.
#[derive(Debug)]
struct Tokens<T> {
    x: Tensor<T>,
    choices: Tensor<i32>,
    weights: Tensor<f32>,
    /// Outputs of own experts for all tokens, in the order of own shares.
    sums: Tensor<T>,
}

/// Buffers that only backward uses.
#[derive(Debug)]
struct Training<T> {
    /// Gradient of the output for all tokens, and gradient of the weights in the order of own shares; `None` on one
    /// rank.
    all: Option<(Tensor<T>, Tensor<f32>)>,
    /// Gradient of the weights of own tokens, in the order of shares.
    parts: Tensor<f32>,
    add: Option<RowSum<f32>>,
}

impl<T: Scalar> ShardedMoe<T> {
    /// Creates a layer. `options` describes the whole layer: all tokens and all experts. Tokens are distributed by
    /// `tokens`, experts evenly. All ranks call this.
    ///
    /// # Errors
    /// [`Error::Rank`] if ranks do not agree; [`Error::OutOfRange`] for scaled matrices, or if the number of shares is
    /// not a multiple of the number of ranks or exceeds the number of experts; otherwise as for [`Moe::new`] and
    /// [`Moe::for_training`].
    pub fn new(
        group: &Group,
        options: &MoeOptions,
        tokens: &Partition,
        sharded: &ShardedMoeOptions,
    ) -> Result<Self> {
        tokens.agree(group, "the partition of tokens", options.tokens)?;
        let extents = [
            options.experts,
            options.first,
            options.top_k,
            options.model,
            options.hidden,
            options.activation as usize,
            options.gate.map_or(0, |gate| 1 + gate as usize),
            usize::from(options.transposed),
            usize::from(options.scaled),
            usize::from(options.quantize),
            sharded.shares.unwrap_or(0),
            usize::from(sharded.training),
        ];
        let extents = extents.map(|extent| extent as u64).to_vec();
        group.same("the extents of a layer of experts", Ok(extents))?;
        let shares = sharded.shares.unwrap_or(group.size());
        check_shares(shares, group.size(), options.experts)?;
        let deal = Deal {
            group: group.clone(),
            options: *options,
            tokens: tokens.clone(),
            shares: Partition::even(options.experts, shares),
        };
        group.all_ok(Self::dealt(deal, sharded.training))
    }

    fn dealt(deal: Deal, trained: bool) -> Result<Self> {
        if deal.options.scaled || deal.options.quantize {
            let allowed = "false over several ranks: matrices have the layer's type";
            let option = if deal.options.scaled { "scaled" } else { "quantize" };
            return Err(Error::range(option, true, allowed));
        }
        let MoeOptions { tokens, top_k, model, .. } = deal.options;
        let (context, mine, own) = (deal.group.context(), deal.mine(), deal.own());
        let layer = |share: usize| {
            let part = deal.part(deal.shares.range(share), tokens);
            let layer = match trained {
                false => Moe::new(context, &part)?,
                true => Moe::for_training(context, &part)?,
            };
            Ok(layer.part())
        };
        let layers = mine.clone().map(layer).collect::<Result<_>>()?;
        let alone = deal.group.size() == 1;
        let all = || {
            Ok::<_, Error>(Tokens {
                x: context.zeros(&[tokens, model])?,
                choices: context.zeros(&[tokens, top_k])?,
                weights: context.zeros(&[tokens, top_k])?,
                sums: context
                    .zeros(&[elements("tokens of shares", &[mine.len(), tokens])?, model])?,
            })
        };
        let all = if alone { None } else { Some(all()?) };
        // With a single share, its sums are the output.
        let rows = match deal.shares.ranks() {
            1 => 0,
            shares => shares * own,
        };
        let parts = context.zeros(&[rows, model])?;
        let sums = if rows == 0 { 0 } else { own };
        let training = || {
            let all = || {
                let out = context.zeros(&[tokens, model])?;
                Ok::<_, Error>((out, context.zeros(&[mine.len() * tokens, top_k])?))
            };
            let parts = context.zeros(&[rows, top_k])?;
            Ok::<_, Error>(Training {
                all: if alone { None } else { Some(all()?) },
                add: share_sum(context, &parts, sums)?,
                parts,
            })
        };
        Ok(ShardedMoe {
            layers,
            all,
            add: share_sum(context, &parts, sums)?,
            parts,
            training: if trained { Some(training()?) } else { None },
            deal,
        })
    }

    /// Extents of the whole layer.
    pub fn options(&self) -> &MoeOptions {
        &self.deal.options
    }

    /// Range of the experts of this rank. Indices start at 0.
    pub fn experts(&self) -> Range<usize> {
        self.deal.experts()
    }

    /// Shapes of this rank's stacks of matrices, in the layout of [`MoeOptions::shapes`].
    pub fn shapes(&self) -> [[usize; 3]; 2] {
        self.deal.part(self.experts(), 0).shapes()
    }

    /// Names of the kernels of the products, see [`Moe::variants`].
    pub fn variants(&self) -> [&'static str; 2] {
        self.layers[0].variants()
    }

    /// Queues the layer. `x` and `out` are `[tokens of this rank, model]`, choices (indices of all experts) and weights
    /// are `[tokens of this rank, top_k]`. The matrices have the [`shapes`](Self::shapes) of this rank. Allocates
    /// nothing and does not wait. Queue all runs of one layer on one stream. All ranks call this.
    ///
    /// # Errors
    /// As for [`Moe::forward`]; [`Error::RowStride`] for tokens or matrices with gaps between their rows;
    /// [`Error::Rank`] if another rank fails.
    pub fn forward(
        &mut self,
        inputs: &MoeInputs<'_, T>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let matrices = self.check(inputs, out)?;
        check_shape("choices", inputs.weights.shape(), inputs.choices.shape())?;
        if self.deal.shares.ranks() == 1 {
            return self.layers[0].forward(inputs, out, stream);
        }
        self.bring(inputs, stream)?;
        self.multiply(inputs, matrices, stream)?;
        if let Some(all) = &self.all {
            self.deal.back((&all.sums, &mut self.parts), stream)?;
        }
        self.add_up(out, stream)
    }

    /// Sends own tokens with their routes to all ranks.
    fn bring(
        &mut self,
        &MoeInputs { x, choices, weights, .. }: &MoeInputs<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        let MoeOptions { top_k, model, .. } = self.deal.options;
        let Some(all) = &mut self.all else {
            return Ok(());
        };
        let [rows, words] = [model, top_k].map(|width| self.deal.to_all(width));
        let [to_rows, to_words] = [model, top_k].map(|width| self.deal.in_all(width));
        let mut x = Exchange { from: (x, &rows), to: (&mut all.x, &to_rows) };
        let mut choices = Exchange { from: (choices, &words), to: (&mut all.choices, &to_words) };
        let mut weights = Exchange { from: (weights, &words), to: (&mut all.weights, &to_words) };
        let together = &mut [&mut x as _, &mut choices as _, &mut weights as _];
        self.deal.group.exchange_all(together, stream)
    }

    /// Computes the outputs of own experts for all tokens.
    fn multiply(
        &mut self,
        &MoeInputs { x, choices, weights, .. }: &MoeInputs<'_, T>,
        matrices: [&Tensor<T>; 2],
        stream: &Stream,
    ) -> Result<()> {
        let MoeOptions { tokens, model, .. } = self.deal.options;
        for (place, share) in self.deal.mine().enumerate() {
            let [up, down] = self.deal.matrices(share, matrices)?;
            // On one rank, sums are written directly to the buffer in which shares are added.
            let (x, choices, weights, sums) = match &mut self.all {
                Some(all) => (&all.x, &all.choices, &all.weights, &mut all.sums),
                None => (x, choices, weights, &mut self.parts),
            };
            let mut sums = sums.part_mut(place * tokens * model, &[tokens, model])?;
            let (up, down) = ((&up).into(), (&down).into());
            let inputs = MoeInputs { x, choices, weights, up, down };
            self.layers[place].forward(&inputs, &mut sums, stream)?;
        }
        Ok(())
    }

    fn add_up(&self, out: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        match &self.add {
            Some(add) => add.run(&self.parts, out, stream),
            None => Ok(()),
        }
    }

    /// Validates all operands before anything is queued. Returns the matrices.
    fn check<'a>(
        &self,
        &MoeInputs { x, weights, up, down, .. }: &MoeInputs<'a, T>,
        out: &Tensor<T>,
    ) -> Result<[&'a Tensor<T>; 2]> {
        let (own, context) = (self.deal.own(), self.deal.group.context());
        let MoeOptions { top_k, model, .. } = self.deal.options;
        let shapes = self.shapes();
        x.check("x", context, &[own, model])?;
        weights.check("weights", context, &[own, top_k])?;
        let (up, down) = (up.plain("up")?, down.plain("down")?);
        up.check("up", context, &shapes[0])?;
        down.check("down", context, &shapes[1])?;
        out.check("out", context, &[own, model])?;
        Ok([up, down])
    }

    /// Queues the gradients, for the operands of [`Moe::backward`]. Gradients of tokens and weights are those of this
    /// rank's tokens. Gradients of the matrices are those of its own experts, summed over the tokens of all ranks. The
    /// layer must have been created with [`training`](ShardedMoeOptions::training). All ranks call this.
    ///
    /// # Errors
    /// As for [`forward`](Self::forward) and [`Moe::backward`].
    pub fn backward(
        &mut self,
        inputs: &MoeInputs<'_, T>,
        out: &Tensor<T>,
        gradients: MoeGradients<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        let matrices = self.check(inputs, out)?;
        let MoeGradients { x, weights, up, down } = &gradients;
        let (up, down) = ((&**up).into(), (&**down).into());
        self.check(&MoeInputs { x, weights, up, down, ..*inputs }, out)?;
        if self.deal.shares.ranks() == 1 {
            return self.layers[0].backward(inputs, out, gradients, stream);
        }
        let missing =
            || Error::not_planned("layer", "create it with `ShardedMoeOptions::training`");
        let training = self.training.as_mut().ok_or_else(missing)?;
        let MoeOptions { tokens, top_k, model, .. } = self.deal.options;
        if let Some((all, _)) = &mut training.all {
            let (rows, to) = (self.deal.to_all(model), self.deal.in_all(model));
            self.deal.group.exchange((out, &rows), (all, &to), stream)?;
        }
        for (place, share) in self.deal.mine().enumerate() {
            let [up, down] = self.deal.matrices(share, matrices)?;
            let [(first_up, up_shape), (first_down, down_shape)] = self.deal.places(share);
            let layer = &mut self.layers[place];
            // On one rank, sums are written directly to the buffer in which shares are added.
            let (x, weights, out, sums, words) = match (&mut self.all, &mut training.all) {
                (Some(all), Some((out, words))) => {
                    (&all.x, &all.weights, &*out, &mut all.sums, words)
                }
                _ => (inputs.x, inputs.weights, out, &mut self.parts, &mut training.parts),
            };
            let first = place * tokens;
            let to = MoeGradients {
                x: &mut *sums.part_mut(first * model, &[tokens, model])?,
                weights: &mut *words.part_mut(first * top_k, &[tokens, top_k])?,
                up: &mut *gradients.up.part_mut(first_up, &up_shape)?,
                down: &mut *gradients.down.part_mut(first_down, &down_shape)?,
            };
            let (up, down) = ((&up).into(), (&down).into());
            layer.backward(&MoeInputs { x, weights, up, down, ..*inputs }, out, to, stream)?;
        }
        if let (Some(all), Some((_, words))) = (&self.all, &training.all) {
            self.deal.back((&all.sums, &mut self.parts), stream)?;
            self.deal.back((words, &mut training.parts), stream)?;
        }
        if let Some(add) = &training.add {
            add.run(&training.parts, gradients.weights, stream)?;
        }
        self.add_up(gradients.x, stream)
    }
}

impl<T: Scalar> fmt::Display for ShardedMoe<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (deal, each) = (&self.deal, self.layers.len());
        let (rank, size) = (deal.group.rank(), deal.group.size());
        let MoeOptions { tokens, experts, model, .. } = deal.options;
        let (own, row) = (deal.own(), model * size_of::<T>());
        let sent = [own * (size - 1) * row, (tokens - own) * each * row];
        let shares = deal.shares.ranks();
        writeln!(
            f,
            "rank {rank} of {size}: experts {:?} of {experts}, in {each} of {shares} shares, for {tokens} tokens",
            self.experts()
        )?;
        write!(
            f,
            "  sends {own} tokens ({:.1} MB) and sums of {} ({:.1} MB): predicted {:.0} us",
            sent[0] as f64 / 1e6,
            tokens - own,
            sent[1] as f64 / 1e6,
            sent.iter().sum::<usize>() as f64 / LINK * 1e6
        )
    }
}
