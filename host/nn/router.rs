//! Router of a mixture of experts: selects the experts of each token.

use std::marker::PhantomData;

use crate::context::{Context, Prepared};
use crate::device::Stream;
use crate::dynamic::{operand, without_gaps};
use crate::error::{Elsewhere, Error, Result, check_shape, elements};
use crate::families::discover::RouterLaunch;
use crate::kernel::Queue;
use crate::registry::Scalar;
use crate::tensor::{AnyTensor, Tensor};

/// Extents of a [`Router`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterOptions {
    /// Number of tokens.
    pub tokens: usize,
    /// Number of experts.
    pub experts: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Whether the weights of a token add up to 1 (`norm_topk_prob`): the softmax is over the selected logits,
    /// otherwise over all logits.
    pub normalized: bool,
}

/// Selects the `top_k` experts with the largest logits, and computes their softmax weights.
///
/// The weights are `weights[t,j] = softmax(logits[t])[choices[t,j]]`. Experts are in descending order of their logits.
/// Of equal logits, the first expert comes first (0 and -0 are equal). The forward and the backward pass are one kernel
/// each, and results are bitwise reproducible. [`Moe`](super::Moe) reads the choices and weights. The logits come from
/// any dense product, in f32, f16 or bf16. Exponentials and sums are f32.
///
/// A NaN among the logits of a token makes its weights NaN. The limits are 1024 experts, and 32 experts per token.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::Dense;
/// use einsparse::nn::{Router, RouterOptions};
/// let ctx = Context::cpu();
/// let options = RouterOptions { tokens: 1, experts: 4, top_k: 2, normalized: true };
/// let router = Router::<f32>::new(&ctx, &options)?;
/// let ln = f32::ln;
/// let logits = ctx.upload_dense(&Dense::new([1, 4], vec![ln(3.0), ln(1.0), ln(9.0), ln(2.0)])?)?;
/// let (mut choices, mut weights) = (ctx.zeros::<i32>(&[1, 2])?, ctx.zeros::<f32>(&[1, 2])?);
/// router.forward(&logits, (&mut choices, &mut weights), &ctx.stream()?)?;
/// assert_eq!(choices.to_dense()?.values(), [2, 0]);
/// let weights = weights.to_dense()?;
/// assert!((weights.values()[0] - 0.75).abs() < 1e-6 && (weights.values()[1] - 0.25).abs() < 1e-6);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Router<T> {
    context: Context,
    options: RouterOptions,
    launch: Prepared<RouterLaunch>,
    element: PhantomData<T>,
}

impl<T: Scalar> Router<T> {
    /// Creates a router of these extents.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] without experts or choices, or with more choices than experts; [`Error::Overflow`] above
    /// the limits; [`Error::NoKernel`] for other element types.
    pub fn new(context: &Context, options: &RouterOptions) -> Result<Self> {
        let RouterOptions { tokens, experts, top_k, normalized } = *options;
        if top_k == 0 || top_k > experts {
            let allowed = format!(">= 1 and at most the number of experts, {experts}");
            return Err(Error::range("top_k", top_k, allowed));
        }
        elements("logits", &[tokens, experts])?;
        let launch = context.prepared(|device| {
            let extents = [tokens, experts, top_k];
            RouterLaunch::new(device, T::DTYPE, extents, normalized)
        })?;
        Ok(Router { context: context.clone(), options: *options, launch, element: PhantomData })
    }

    /// Returns the extents of the router.
    pub fn options(&self) -> &RouterOptions {
        &self.options
    }

    /// Queues the selection. Logits are `[tokens, experts]`, choices and weights are `[tokens, top_k]`. Allocates
    /// nothing and does not synchronize.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand has other extents than planned; [`Error::OtherContext`] if one belongs to another
    /// context; [`Error::RowStride`] if choices or weights have gaps between their rows.
    pub fn forward(
        &self,
        logits: &Tensor<T>,
        (choices, weights): (&mut Tensor<i32>, &mut Tensor<f32>),
        stream: &Stream,
    ) -> Result<()> {
        self.check(logits, (choices, weights))?;
        let runs = self.launch.queue(|launch| {
            let words = self.words([("choices", choices), ("weights", weights)], stream)?;
            let logits = operand(&self.context, logits, stream)?;
            // SAFETY: operands have the planned shapes and types; the caller keeps them until the stream is done.
            let queue = unsafe { Queue::new(stream.raw()) };
            launch.choose(logits, words, queue)
        })?;
        if runs {
            return Ok(());
        }
        self.choose_on_host(logits, choices, weights)
    }

    /// Queues the gradient of the logits, `[tokens, experts]`, from that of the weights, which
    /// [`Moe::backward`](super::Moe::backward) computes. The other operands are those of a [`forward`](Self::forward).
    ///
    /// # Errors
    /// Returns the errors of [`forward`](Self::forward).
    pub fn backward(
        &self,
        logits: &Tensor<T>,
        (choices, weights): (&Tensor<i32>, &Tensor<f32>),
        weight_gradient: &Tensor<f32>,
        gradient: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.check(logits, (choices, weights))?;
        let (name, [all, chosen]) = ("gradient of weights", self.shapes());
        check_shape(name, &chosen, weight_gradient.shape())?;
        check_shape("gradient of logits", &all, gradient.shape())?;
        let runs = self.launch.queue(|launch| {
            let words = self.words([("choices", choices), ("weights", weights)], stream)?;
            let from = without_gaps(&self.context, name, weight_gradient, stream)?.address;
            let rows = [
                operand(&self.context, logits, stream)?,
                operand(&self.context, gradient, stream)?,
            ];
            // SAFETY: as in `forward`.
            let queue = unsafe { Queue::new(stream.raw()) };
            launch.gradient(rows, words, from, queue)
        })?;
        if runs {
            return Ok(());
        }
        let words = (choices, weights, weight_gradient);
        self.take_back_on_host(logits, words, gradient)
    }

    fn check(
        &self,
        logits: &Tensor<T>,
        (choices, weights): (&Tensor<i32>, &Tensor<f32>),
    ) -> Result<()> {
        let [all, chosen] = self.shapes();
        check_shape("logits", &all, logits.shape())?;
        check_shape("choices", &chosen, choices.shape())?;
        check_shape("weights", &chosen, weights.shape())
    }

    /// Shapes of the logits, and of the choices and weights.
    fn shapes(&self) -> [[usize; 2]; 2] {
        let own = self.options;
        [[own.tokens, own.experts], [own.tokens, own.top_k]]
    }

    /// Addresses of tensors that are stored without gaps.
    fn words(&self, all: [(&str, &AnyTensor); 2], stream: &Stream) -> Result<[u64; 2]> {
        let [a, b] = all.map(|(name, tensor)| without_gaps(&self.context, name, tensor, stream));
        Ok([a?.address, b?.address])
    }

    /// Maximum of a token's logits, and the sum of their exponentials relative to it, in f64.
    fn softmax(logits: &[T], of: impl Iterator<Item = usize> + Clone) -> (f64, f64) {
        let x = |e: usize| logits[e].to_f64();
        let greatest = of.clone().map(x).fold(f64::NEG_INFINITY, f64::max);
        let all = of.map(|e| (x(e) - greatest).exp()).sum();
        (greatest, all)
    }

    fn choose_on_host(
        &self,
        logits: &Tensor<T>,
        choices: &mut Tensor<i32>,
        weights: &mut Tensor<f32>,
    ) -> Result<()> {
        let RouterOptions { tokens, experts, top_k, normalized } = self.options;
        let (ldl, ldc, ldw) = (logits.leading(), choices.leading(), weights.leading());
        let from = logits.host().or_elsewhere("logits")?;
        let to = choices.host_mut().or_elsewhere("choices")?;
        let weighed = weights.host_mut().or_elsewhere("weights")?;
        for token in 0..tokens {
            let row = &from[token * ldl..][..experts];
            let mut order: Vec<usize> = (0..experts).collect();
            // NaN of either sign comes first; zeros of either sign are equal.
            let key = |e: usize| match row[e].to_f64() {
                x if x.is_nan() => f64::NAN.abs(),
                x => x + 0.0,
            };
            order.sort_by(|&a, &b| key(b).total_cmp(&key(a)));
            order.truncate(top_k);
            let (greatest, all) = match normalized {
                true => Self::softmax(row, order.iter().copied()),
                false => Self::softmax(row, 0..experts),
            };
            for (j, &expert) in order.iter().enumerate() {
                to[token * ldc + j] = expert as i32;
                weighed[token * ldw + j] = ((row[expert].to_f64() - greatest).exp() / all) as f32;
            }
        }
        Ok(())
    }

    fn take_back_on_host(
        &self,
        logits: &Tensor<T>,
        (choices, weights, gradient): (&Tensor<i32>, &Tensor<f32>, &Tensor<f32>),
        to: &mut Tensor<T>,
    ) -> Result<()> {
        let RouterOptions { tokens, experts, top_k, normalized } = self.options;
        let (ldl, ldt) = (logits.leading(), to.leading());
        let leading = [choices.leading(), weights.leading(), gradient.leading()];
        let logits = logits.host().or_elsewhere("logits")?;
        let choices = choices.host().or_elsewhere("choices")?;
        let weights = weights.host().or_elsewhere("weights")?;
        let gradient = gradient.host().or_elsewhere("gradient of weights")?;
        let to = to.host_mut().or_elsewhere("gradient of logits")?;
        for token in 0..tokens {
            let row = &logits[token * ldl..][..experts];
            let word = |list: usize, j: usize| token * leading[list] + j;
            let of = |j: usize| {
                let (w, g) = (weights[word(1, j)], gradient[word(2, j)]);
                (f64::from(w), f64::from(g))
            };
            let mean: f64 = (0..top_k).map(|j| of(j).0 * of(j).1).sum();
            let (greatest, all) = Self::softmax(row, 0..experts);
            let spread = |e: usize| match normalized {
                true => 0.0,
                false => -mean * (row[e].to_f64() - greatest).exp() / all,
            };
            let mut sums: Vec<f64> = (0..experts).map(spread).collect();
            for j in 0..top_k {
                let (w, g) = of(j);
                let place = usize::try_from(choices[word(0, j)]).unwrap_or(experts);
                if let Some(sum) = sums.get_mut(place) {
                    *sum += w * if normalized { g - mean } else { g };
                }
            }
            for (e, sum) in sums.into_iter().enumerate() {
                to[token * ldt + e] = T::from_f64(sum);
            }
        }
        Ok(())
    }
}
