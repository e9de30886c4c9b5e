//! A layer of experts: each token passes through the few that its router chose.

mod gradient;
mod kept;

use crate::context::{Context, Shadow};
use crate::device::Stream;
use crate::dynamic::{Gate, GroupedOptions, GroupedProduct, GroupedRun, Matrices, Routing};
use crate::dynamic::{operand, without_gaps};
use crate::einsum::Activation;
use crate::error::{Error, Result, check_shape};
use crate::families::discover::SumLaunch;
use crate::kernel::Queue;
use crate::launch::in_turn;
use crate::registry::Scalar;
use crate::tensor::{AnyTensor, Tensor};
use crate::values::{Sum, with_sums};
use gradient::Backward;
pub use gradient::MoeGradients;
use kept::Kept;

/// Extents of a [`Moe`].
///
/// ```
/// use einsparse::dynamic::Gate;
/// use einsparse::nn::MoeOptions;
/// // A layer of Qwen3-30B-A3B, with its matrices as they are stored.
/// let qwen = MoeOptions {
///     tokens: 64,
///     experts: 128,
///     top_k: 8,
///     model: 2048,
///     hidden: 768,
///     gate: Some(Gate::Silu),
///     transposed: true,
///     ..MoeOptions::default()
/// };
/// assert_eq!(qwen.shapes(), [[128, 1536, 2048], [128, 2048, 768]]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoeOptions {
    /// Tokens.
    pub tokens: usize,
    /// Experts.
    pub experts: usize,
    /// Number of the first of them. Those of other numbers are another layer's, as on another GPU
    /// ([`group::ShardedMoe`](crate::group::ShardedMoe)), and add nothing here.
    pub first: usize,
    /// Experts of each token.
    pub top_k: usize,
    /// Columns of a token.
    pub model: usize,
    /// Columns between an expert's two products.
    pub hidden: usize,
    /// The activation between them, `einsparse::einsum::Activation`: `Identity` or `Relu`.
    pub activation: Activation,
    /// Hidden columns are `gate(x G) * (x U)`: the first matrices have `2 hidden` columns, those of the gates in front.
    /// Without an activation.
    pub gate: Option<Gate>,
    /// Matrices lie transposed, as linear layers store them.
    pub transposed: bool,
    /// Matrices are e4m3 with scales, [`Matrices::Scaled`]: transposed, for inference; `model` and `hidden` are
    /// multiples of 16, with a gate `hidden` one of 128.
    pub scaled: bool,
    /// Tokens and hidden rows are rounded to e4m3 too, as [`GroupedOptions::quantize`] has it: faster than with
    /// `scaled` alone, less exact.
    pub quantize: bool,
}

impl MoeOptions {
    /// Shapes of the first and the second stack of matrices: `[experts, model, hidden]`, with a gate `2 hidden`, and
    /// `[experts, hidden, model]`; transposed with the last two turned.
    pub fn shapes(&self) -> [[usize; 3]; 2] {
        let wide = self.wide();
        match self.transposed {
            false => [[self.experts, self.model, wide], [self.experts, self.hidden, self.model]],
            true => [[self.experts, wide, self.model], [self.experts, self.model, self.hidden]],
        }
    }

    /// Columns of the first product.
    fn wide(&self) -> usize {
        let parts = 1 + usize::from(self.gate.is_some());
        self.hidden.saturating_mul(parts)
    }
}

/// `out[t] = sum_j weights[t,j] act(x[t] * up[e]) * down[e]` with `e = choices[t,j]`, or with a gate
/// `gate(x[t] * G[e]) * (x[t] * U[e])` for `act`, `up = [G, U]`: a mixture of experts (Shazeer et
/// al., arXiv 1701.06538; Switch Transformer, arXiv 2101.03961), routed while running (PIT, arXiv 2301.10936, section
/// 5). Nothing is padded and no token dropped, however unevenly experts are chosen. Choices are sorted on the device,
/// tokens are gathered as the first product loads them, gates are multiplied with in its epilogue, and the second one weights its rows and scatters them; with
/// several experts a token, one more kernel adds their rows. The host learns nothing of it: a run can be captured in a
/// CUDA graph, and repeats bit for bit.
///
/// Hidden rows are rounded to `T`, and so are the weighted rows that are added with several experts a token; sums are
/// f32. A choice that names no expert adds nothing. Elements as in [`GroupedGemm`](crate::dynamic::GroupedGemm).
///
/// ```
/// use einsparse::Context;
/// use einsparse::einsum::Activation;
/// use einsparse::formats::{Dense, f16};
/// use einsparse::nn::{Moe, MoeOptions};
/// let ctx = Context::cpu();
/// let options = MoeOptions {
///     tokens: 2,
///     experts: 3,
///     top_k: 1,
///     model: 8,
///     hidden: 8,
///     activation: Activation::Relu,
///     ..MoeOptions::default()
/// };
/// // Expert e multiplies by e, its second product by 1.
/// let scaled = |by: fn(usize) -> f32| {
///     Dense::from_fn(vec![3, 8, 8], |i| f16::from_f32(if i[1] == i[2] { by(i[0]) } else { 0.0 }))
/// };
/// let up = ctx.upload_dense(&scaled(|e| e as f32)?)?;
/// let down = ctx.upload_dense(&scaled(|_| 1.0)?)?;
/// let x = ctx.upload_dense(&Dense::from_fn([2, 8], |i| f16::from_f32([1.0, -3.0][i[0]] * (i[1] as f32 - 1.0)))?)?;
/// let choices = ctx.upload_dense(&Dense::new([2, 1], vec![2i32, 1])?)?;
/// let weights = ctx.upload_dense(&Dense::new([2, 1], vec![0.5f32, 1.0])?)?;
/// let mut out = ctx.zeros(&[2, 8])?;
/// let mut layer = Moe::new(&ctx, &options)?;
/// layer.forward(&x, (&choices, &weights), (&up, &down), &mut out, &ctx.stream()?)?;
/// let out = out.to_dense()?;
/// assert_eq!(out.values()[..4], [0.0, 0.0, 1.0, 2.0].map(f16::from_f32));
/// assert_eq!(out.values()[8..12], [3.0, 0.0, 0.0, 0.0].map(f16::from_f32));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Moe<T> {
    context: Context,
    options: MoeOptions,
    routing: Routing,
    up: GroupedProduct<T>,
    down: GroupedProduct<T>,
    /// By slots; none where the second product keeps them as e4m3.
    hidden: Tensor<T>,
    /// Of a gated layer for training.
    kept: Option<Kept<T>>,
    /// By choices, where a token has several.
    parts: Option<Tensor<T>>,
    sum: Option<SumLaunch>,
    /// Many choices are other layers': their rows are neither written nor read.
    part: bool,
    backward: Option<Backward<T>>,
    shadow: Shadow<Moe<T>>,
}

impl<T: Scalar> Moe<T> {
    /// A layer of these extents, with room for its hidden rows.
    ///
    /// # Errors
    /// [`Error::Operand`](crate::Error::Operand) without experts or choices, for scaled matrices that do not fit
    /// [`scaled`](MoeOptions::scaled), and for GELU and for columns other than multiples of 8;
    /// [`Error::NoKernel`](crate::Error::NoKernel) for element types without kernel;
    /// [`Error::Overflow`](crate::Error::Overflow), [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn new(context: &Context, options: &MoeOptions) -> Result<Self> {
        let MoeOptions {
            tokens,
            experts,
            first,
            top_k,
            model,
            hidden,
            activation,
            gate,
            transposed,
            scaled,
            quantize,
        } = *options;
        let shadow = Shadow::new(context, |context| Self::new(context, options))?;
        let own = first..first.saturating_add(experts);
        let routing = Routing::among(context, [tokens, top_k], own.clone())?;
        let up = GroupedOptions {
            k: model,
            n: hidden,
            gather: true,
            activation,
            gate,
            transposed,
            scaled,
            quantize,
            ..GroupedOptions::default()
        };
        let down = GroupedOptions {
            k: hidden,
            n: model,
            scatter: true,
            transposed,
            scaled,
            quantize,
            ..GroupedOptions::default()
        };
        let slots = routing.slots();
        let (parts, sum) = match (top_k > 1, context.device()) {
            (false, _) => (None, None),
            (true, None) => (Some(context.zeros(&[slots, model])?), None),
            (true, Some(device)) => {
                let extents = [tokens, top_k, model];
                let sum = SumLaunch::new(device, T::DTYPE, extents, own.clone())?;
                (Some(context.zeros(&[slots, model])?), Some(sum))
            }
        };
        let down = GroupedProduct::new(&routing, down)?;
        let rows = if down.takes_quantized() { 0 } else { slots };
        Ok(Moe {
            context: context.clone(),
            options: *options,
            up: GroupedProduct::new(&routing, up)?,
            down,
            hidden: context.zeros(&[rows, hidden])?,
            routing,
            parts,
            sum,
            kept: None,
            part: false,
            backward: None,
            shadow,
        })
    }

    /// A layer that has some of the experts, whose choices name others for the most part.
    pub(crate) fn part(self) -> Self {
        Moe { part: true, ..self }
    }

    /// The same with room for [`backward`](Self::backward): one more array of hidden rows, with a gate three.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::Operand`](crate::Error::Operand) for GELU everywhere.
    pub fn for_training(context: &Context, options: &MoeOptions) -> Result<Self> {
        if options.scaled {
            return Err(Error::operand("scaled", "matrices have no gradients"));
        }
        let shadow = Shadow::new(context, |context| Self::for_training(context, options))?;
        let mut layer = Self::new(context, options)?;
        layer.shadow = shadow;
        layer.backward = Some(Backward::new(&layer.routing, options)?);
        if let Some(gate) = options.gate {
            layer.kept = Some(Kept::new(&layer.routing, options, gate)?);
        }
        Ok(layer)
    }

    /// Extents.
    pub fn options(&self) -> &MoeOptions {
        &self.options
    }

    /// Kernels of the first and the second product, `cpu` on a CPU context.
    pub fn variants(&self) -> [&'static str; 2] {
        let up = self.kept.as_ref().map_or(&self.up, |kept| &kept.product);
        [up.variant(), self.down.variant()]
    }

    /// The slots of the last run.
    pub fn routing(&self) -> &Routing {
        &self.routing
    }

    /// Queues the layer: `x` and `out` are `[tokens, model]`, choices and weights `[tokens, top_k]`, the matrices of
    /// the [`shapes`](MoeOptions::shapes) of its options, each `&Tensor<T>`, or with scales a pair ([`Matrices`]). On a
    /// GPU nothing is allocated or waited for. Runs of one layer share its hidden rows and wait for each other, on
    /// whatever stream.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if an operand is not of the planned extents;
    /// [`Error::Operand`](crate::Error::Operand) if one lies in another context, is not aligned to 16 bytes, or, of
    /// choices and weights, has gaps between its rows.
    pub fn forward<'a>(
        &mut self,
        x: &Tensor<T>,
        (choices, weights): (&Tensor<i32>, &Tensor<f32>),
        (up, down): (impl Into<Matrices<'a, T>>, impl Into<Matrices<'a, T>>),
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let (up, down) = (up.into(), down.into());
        self.shadow.run(stream, |own, stream| {
            let ((up, down), x, to) = ((up.shadow(), down.shadow()), x.shadow(), &mut out.shadow());
            let given = (&choices.shadow(), &weights.shadow());
            own.forward(&x, given, (up.matrices(), down.matrices()), to, stream)
        })?;
        self.check(x, weights, (up, down), out)?;
        in_turn(self.routing.turns(), stream, || {
            self.routing.queue(choices, stream)?;
            self.queue_up(x, up, stream)?;
            // Routing and first product stand in front: what is older than they are may be read early.
            self.multiply_behind((Some(choices), weights), down, out, stream)
        })
    }

    /// What no operand may be, before anything is queued.
    fn check(
        &self,
        x: &Tensor<T>,
        weights: &Tensor<f32>,
        (up, down): (Matrices<'_, T>, Matrices<'_, T>),
        out: &Tensor<T>,
    ) -> Result<()> {
        let MoeOptions { tokens, top_k, model, scaled, .. } = self.options;
        let shapes = self.options.shapes();
        check_shape("x", &[tokens, model], x.shape())?;
        check_shape("weights", &[tokens, top_k], weights.shape())?;
        up.check("up", shapes[0], scaled)?;
        down.check("down", shapes[1], scaled)?;
        check_shape("out", &[tokens, model], out.shape())
    }

    /// The first part of [`forward`](Self::forward): the slots.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn route(&mut self, choices: &Tensor<i32>, stream: &Stream) -> Result<()> {
        self.shadow.run(stream, |own, stream| own.route(&choices.shadow(), stream))?;
        self.routing.run(choices, stream)
    }

    /// The second part: tokens gathered, the first product, the activation.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn multiply_up<'a>(
        &mut self,
        x: &Tensor<T>,
        up: impl Into<Matrices<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let up = up.into();
        self.shadow.run(stream, |own, stream| {
            own.multiply_up(&x.shadow(), up.shadow().matrices(), stream)
        })?;
        in_turn(self.routing.turns(), stream, || self.queue_up(x, up, stream))
    }

    fn queue_up(&mut self, x: &Tensor<T>, up: Matrices<'_, T>, stream: &Stream) -> Result<()> {
        let operands = GroupedRun::plain(x, up);
        let hidden = &mut self.hidden;
        match &mut self.kept {
            None if self.down.takes_quantized() => {
                (self.up).queue_for(&self.down, &self.routing, &operands, stream)
            }
            None => self.up.queue(&self.routing, &operands, hidden, stream),
            Some(kept) => kept.queue(&self.routing, &operands, hidden, stream),
        }
    }

    /// The third part: the second product, weighted, scattered, and added up.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn multiply_down<'a>(
        &mut self,
        weights: &Tensor<f32>,
        down: impl Into<Matrices<'a, T>>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let down = down.into();
        self.shadow.run(stream, |own, stream| {
            let (down, to) = (down.shadow(), &mut out.shadow());
            own.multiply_down(&weights.shadow(), down.matrices(), to, stream)
        })?;
        in_turn(self.routing.turns(), stream, || {
            self.multiply_behind((None, weights), down, out, stream)
        })
    }

    fn multiply_behind(
        &mut self,
        // Choices, right behind the routing and the first product.
        (choices, weights): (Option<&Tensor<i32>>, &Tensor<f32>),
        down: Matrices<'_, T>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let MoeOptions { tokens, model, .. } = self.options;
        check_shape("out", &[tokens, model], out.shape())?;
        let early = choices.is_some();
        let choices = choices.filter(|_| self.part && self.sum.is_some());
        let to = match &mut self.parts {
            None => &mut *out,
            Some(parts) => parts,
        };
        let operands = GroupedRun {
            a: (!self.down.takes_quantized()).then_some(&self.hidden),
            w: down,
            weights: Some(weights),
            gate: None,
            keep: choices.is_some(),
            early,
        };
        self.down.queue(&self.routing, &operands, to, stream)?;
        match &self.parts {
            None => Ok(()),
            Some(parts) => self.add_up(choices, parts, out, stream),
        }
    }

    /// Rows of the choices to those of the tokens. With choices given, those of no expert have no row.
    fn add_up(
        &self,
        choices: Option<&Tensor<i32>>,
        parts: &Tensor<T>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let MoeOptions { top_k, model, .. } = self.options;
        if let Some(sum) = &self.sum {
            let choices = match choices {
                None => 0,
                Some(t) => without_gaps(&self.context, "choices", t, stream)?.address,
            };
            let rows = operand(&self.context, parts, stream)?;
            let sums = operand(&self.context, out, stream)?;
            // SAFETY: both have the planned extents and type; `out` is the caller's to keep until the stream is done.
            let queue = unsafe { Queue::new(stream.raw()) };
            return sum.run(choices, rows, sums, queue);
        }
        let of = (self.options.tokens, top_k, model);
        with_sums!(T::DTYPE, A => add_on_host::<A>(of, parts, &mut out.any))
    }
}

fn add_on_host<A: Sum>(
    (tokens, top, model): (usize, usize, usize),
    parts: &AnyTensor,
    out: &mut AnyTensor,
) -> Result<()> {
    let width = parts.leading();
    let rows = parts.host().ok_or_else(|| Error::elsewhere("rows"))?.widen::<A>();
    out.store_rows(tokens, model, &|token, sums: &mut [A]| {
        for (column, sum) in sums.iter_mut().enumerate() {
            for j in 0..top {
                *sum += rows[(token * top + j) * width + column];
            }
        }
    })
    .ok_or_else(|| Error::elsewhere("out"))
}
