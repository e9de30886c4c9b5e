//! Router of a mixture of experts: selects the experts of each token.

use std::marker::PhantomData;

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result, elements};
use crate::families::discover::RouterLaunch;
use crate::operator::{Operator, Run};
use crate::operator_of;
use crate::registry::Scalar;
use crate::tensor::{DenseMatrix, Tensor};

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
/// router.forward(&logits, &mut choices, &mut weights, &ctx.stream()?)?;
/// assert_eq!(choices.to_dense()?.values(), [2, 0]);
/// let weights = weights.to_dense()?;
/// assert!((weights.values()[0] - 0.75).abs() < 1e-6 && (weights.values()[1] - 0.25).abs() < 1e-6);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Router<T> {
    options: RouterOptions,
    operator: Operator<RouterLaunch>,
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
        let operator = operator_of(context, |device| {
            let extents = [tokens, experts, top_k];
            RouterLaunch::new(device, T::DTYPE, extents, normalized)
        })?;
        Ok(Router { options: *options, operator, element: PhantomData })
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
        choices: &mut Tensor<i32>,
        weights: &mut Tensor<f32>,
        stream: &Stream,
    ) -> Result<()> {
        let (run, from, words) = self.start(logits, choices, weights, stream)?;
        run.queue(
            |launch, queue| launch.choose(from, words, queue),
            || self.choose_on_host(logits, choices, weights),
        )
    }

    /// Queues the gradient of the logits, `[tokens, experts]`, from that of the weights, which
    /// [`Moe::backward`](super::Moe::backward) computes. The other operands are those of a [`forward`](Self::forward).
    ///
    /// # Errors
    /// Returns the errors of [`forward`](Self::forward).
    pub fn backward(
        &self,
        logits: &Tensor<T>,
        choices: &Tensor<i32>,
        weights: &Tensor<f32>,
        weight_gradient: &Tensor<f32>,
        gradient: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let [all, chosen] = self.shapes();
        let (run, of_logits, words) = self.start(logits, choices, weights, stream)?;
        let from = run.contiguous("gradient of weights", weight_gradient.any(), &chosen)?;
        let rows = [of_logits, run.matrix("gradient of logits", gradient.any(), &all)?];
        run.queue(
            |launch, queue| launch.gradient(rows, words, from, queue),
            || self.gradient_on_host(logits, choices, weights, weight_gradient, gradient),
        )
    }

    /// Begins a run with these logits, choices and weights.
    fn start<'o>(
        &'o self,
        logits: &Tensor<T>,
        choices: &Tensor<i32>,
        weights: &Tensor<f32>,
        stream: &'o Stream,
    ) -> Result<(Run<'o, RouterLaunch>, DenseMatrix, [u64; 2])> {
        let [all, chosen] = self.shapes();
        let run = self.operator.start(stream)?;
        let logits = run.matrix("logits", logits.any(), &all)?;
        let choices = run.contiguous("choices", choices.any(), &chosen)?;
        let weights = run.contiguous("weights", weights.any(), &chosen)?;
        Ok((run, logits, [choices, weights]))
    }

    /// Shapes of the logits, and of the choices and weights.
    fn shapes(&self) -> [[usize; 2]; 2] {
        let own = self.options;
        [[own.tokens, own.experts], [own.tokens, own.top_k]]
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
        let (from, ldl) = logits.host_rows("logits")?;
        let (to, ldc) = choices.host_rows_mut("choices")?;
        let (weighed, ldw) = weights.host_rows_mut("weights")?;
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

    fn gradient_on_host(
        &self,
        logits: &Tensor<T>,
        choices: &Tensor<i32>,
        weights: &Tensor<f32>,
        gradient: &Tensor<f32>,
        to: &mut Tensor<T>,
    ) -> Result<()> {
        let RouterOptions { tokens, experts, top_k, normalized } = self.options;
        let (logits, ldl) = logits.host_rows("logits")?;
        let (choices, ldc) = choices.host_rows("choices")?;
        let (weights, ldw) = weights.host_rows("weights")?;
        let (gradient, ldg) = gradient.host_rows("gradient of weights")?;
        let (to, ldt) = to.host_rows_mut("gradient of logits")?;
        for token in 0..tokens {
            let row = &logits[token * ldl..][..experts];
            let of = |j: usize| {
                let (w, g) = (weights[token * ldw + j], gradient[token * ldg + j]);
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
                let expert = usize::try_from(choices[token * ldc + j]).unwrap_or(experts);
                if let Some(sum) = sums.get_mut(expert) {
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
