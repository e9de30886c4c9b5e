//! Mixture-of-experts layer: each token is processed by the experts that its router selected.

mod gradient;
mod kept;

use std::sync::Arc;

use crate::context::Context;
use crate::device::{Device, Stream};
use crate::dynamic::{
    Gate, GroupedOptions, GroupedProduct, GroupedRun, Matrices, NO_GRADIENTS, Routing,
};
use crate::einsum::Activation;
use crate::error::{Elsewhere, Error, Result, check_shape};
use crate::families::discover::SumLaunch;
use crate::launch::in_turn;
use crate::operator::Operator;
use crate::operator_of;
use crate::registry::Scalar;
use crate::tensor::{AnyTensor, Tensor};
use crate::values::{Sum, with_sums};
use gradient::Backward;
pub use gradient::MoeGradients;
use kept::StoredSums;

/// Extents and options of a [`Moe`] layer.
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
    /// Number of tokens.
    pub tokens: usize,
    /// Number of experts.
    pub experts: usize,
    /// Number of the first expert of this layer. Other experts belong to another layer, such as one on another GPU
    /// (`einsparse::group::ShardedMoe`). Choices of them add nothing to the output.
    pub first: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Columns of a token.
    pub model: usize,
    /// Columns between the two products of an expert.
    pub hidden: usize,
    /// Activation between the two products, `einsparse::einsum::Activation`: `Identity` or `Relu`.
    pub activation: Activation,
    /// Gate of the hidden columns, which are then `gate(x G) * (x U)`. The first matrices have `2 hidden` columns,
    /// those of the gates first. `activation` must be `Identity`.
    pub gate: Option<Gate>,
    /// Matrices are stored transposed, as linear layers store them.
    pub transposed: bool,
    /// Matrices are e4m3 with scales, [`Matrices::Scaled`]. They must be transposed, and are for inference only.
    /// `model` and `hidden` must be multiples of 16; with a gate, `hidden` must be a multiple of 128.
    pub scaled: bool,
    /// Tokens and hidden rows are also rounded to e4m3, as [`GroupedOptions::quantize`] describes: faster than `scaled`
    /// alone, but less exact.
    pub quantize: bool,
}

impl MoeOptions {
    /// Returns the shapes of the first and the second stack of matrices: `[experts, model, hidden]`, or with a gate
    /// `[experts, model, 2 hidden]`, and `[experts, hidden, model]`. With `transposed`, the last two extents are
    /// swapped.
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

/// Operands of a [`Moe`]: tokens, the experts and weights that a router selected, and the matrices of the experts, in
/// the shapes of [`MoeOptions::shapes`].
///
/// ```
/// use einsparse::formats::f16;
/// use einsparse::nn::MoeInputs;
/// let ctx = einsparse::Context::cpu();
/// let (x, matrices) = (ctx.zeros::<f16>(&[2, 8])?, ctx.zeros(&[3, 8, 8])?);
/// let (choices, weights) = (ctx.zeros(&[2, 1])?, ctx.zeros(&[2, 1])?);
/// let inputs = MoeInputs {
///     x: &x,
///     choices: &choices,
///     weights: &weights,
///     up: (&matrices).into(),
///     down: (&matrices).into(),
/// };
/// assert_eq!(inputs.choices.shape(), [2, 1]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct MoeInputs<'a, T> {
    /// Tokens, `[tokens, model]`.
    pub x: &'a Tensor<T>,
    /// Experts of each token, `[tokens, top_k]`.
    pub choices: &'a Tensor<i32>,
    /// Weights of the choices, `[tokens, top_k]`.
    pub weights: &'a Tensor<f32>,
    /// Matrices of the first product, one per expert.
    pub up: Matrices<'a, T>,
    /// Matrices of the second product, one per expert.
    pub down: Matrices<'a, T>,
}

impl<T> Clone for MoeInputs<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for MoeInputs<'_, T> {}

/// Mixture of experts (Shazeer et al., arXiv 1701.06538; Switch Transformer, arXiv 2101.03961), routed at each run
/// (PIT, arXiv 2301.10936, section 5).
///
/// The layer computes `out[t] = sum_j weights[t,j] act(x[t] * up[e]) * down[e]` with `e = choices[t,j]`. With a gate,
/// `gate(x[t] * G[e]) * (x[t] * U[e])` replaces `act(..)`, and `up = [G, U]`. Nothing is padded and no token is
/// dropped, however unevenly the experts are selected.
///
/// Choices are sorted on the device. The first product gathers the tokens as it loads them, and applies the gate in its
/// epilogue. The second product weights its rows and scatters them. With several experts per token, one more kernel
/// adds their rows. Nothing is copied to the host, so a run can be captured in a CUDA graph. Results are bitwise
/// reproducible.
///
/// Hidden rows are rounded to `T`. With several experts per token, the weighted rows are rounded to `T` before they are
/// added. Sums are f32. A choice that names no expert adds nothing. Element types are those of
/// [`GroupedGemm`](einsparse_core::dynamic::GroupedGemm).
///
/// ```
/// use einsparse::Context;
/// use einsparse::einsum::Activation;
/// use einsparse::formats::{Dense, f16};
/// use einsparse::nn::{Moe, MoeInputs, MoeOptions};
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
/// let inputs = MoeInputs {
///     x: &x,
///     choices: &choices,
///     weights: &weights,
///     up: (&up).into(),
///     down: (&down).into(),
/// };
/// layer.forward(&inputs, &mut out, &ctx.stream()?)?;
/// let out = out.to_dense()?;
/// assert_eq!(out.values()[..4], [0.0, 0.0, 1.0, 2.0].map(f16::from_f32));
/// assert_eq!(out.values()[8..12], [3.0, 0.0, 0.0, 0.0].map(f16::from_f32));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Moe<T> {
    options: MoeOptions,
    routing: Routing,
    up: GroupedProduct<T>,
    down: GroupedProduct<T>,
    /// Hidden rows by slots; empty if the second product stores them as e4m3.
    hidden: Tensor<T>,
    /// Sums of the first product, of a gated layer for training.
    kept: Option<StoredSums<T>>,
    /// Output rows by choices, if a token has several.
    parts: Option<Tensor<T>>,
    /// Adds the rows of a token, if it has several.
    sum: Option<Operator<SumLaunch>>,
    /// Whether many choices belong to other layers: their rows are neither written nor read.
    part: bool,
    backward: Option<Backward<T>>,
}

impl<T: Scalar> Moe<T> {
    /// Creates a layer of these extents, and allocates its hidden rows.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](einsparse_core::Error::OutOfRange) without experts or choices, for GELU, for columns that are not
    /// multiples of 8, and for scaled matrices that violate the conditions of [`scaled`](MoeOptions::scaled);
    /// [`Error::NoKernel`](einsparse_core::Error::NoKernel) if no kernel supports the element type; [`Error::Overflow`](einsparse_core::Error::Overflow), [`Error::OutOfMemory`](einsparse_core::Error::OutOfMemory).
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
        let sum = |device: &Arc<Device>| {
            SumLaunch::new(device, T::DTYPE, [tokens, top_k, model], own.clone())
        };
        let (parts, sum) = match top_k > 1 {
            true => (Some(context.zeros(&[slots, model])?), Some(operator_of(context, sum)?)),
            false => (None, None),
        };
        let down = GroupedProduct::new(&routing, down)?;
        let rows = if down.takes_quantized() { 0 } else { slots };
        Ok(Moe {
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
        })
    }

    /// Marks a layer that has only some of the experts, and whose choices mostly name others.
    #[doc(hidden)]
    pub fn part(self) -> Self {
        Moe { part: true, ..self }
    }

    /// Creates a layer that also supports [`backward`](Self::backward).
    ///
    /// It allocates one more array of hidden rows, or three more with a gate.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new); [`Error::OutOfRange`](einsparse_core::Error::OutOfRange) for GELU on every
    /// context, and for scaled matrices.
    pub fn for_training(context: &Context, options: &MoeOptions) -> Result<Self> {
        if options.scaled {
            return Err(Error::range("scaled", true, NO_GRADIENTS));
        }
        let mut layer = Self::new(context, options)?;
        layer.backward = Some(Backward::new(&layer.routing, options)?);
        if let Some(gate) = options.gate {
            layer.kept = Some(StoredSums::new(&layer.routing, options, gate)?);
        }
        Ok(layer)
    }

    /// Returns the options of the layer.
    pub fn options(&self) -> &MoeOptions {
        &self.options
    }

    /// Returns the names of the kernels of the first and the second product, or `cpu` on a CPU context.
    pub fn variants(&self) -> [&'static str; 2] {
        let up = self.kept.as_ref().map_or(&self.up, |kept| &kept.product);
        [up.variant(), self.down.variant()]
    }

    /// Returns the slots of the last run.
    pub fn routing(&self) -> &Routing {
        &self.routing
    }

    /// Queues the layer.
    ///
    /// `x` and `out` are `[tokens, model]`, choices and weights are `[tokens, top_k]`. The matrices have the
    /// [`shapes`](MoeOptions::shapes) of the options. Each is a `&Tensor<T>`, or a pair with scales ([`Matrices`]). A
    /// run on a GPU allocates nothing and does not synchronize. Runs of one layer share its hidden rows, so each run
    /// waits for the previous one, also on another stream.
    ///
    /// # Errors
    /// [`Error::Shape`](einsparse_core::Error::Shape) if an operand has other extents than planned;
    /// [`Error::OtherContext`](einsparse_core::Error::OtherContext) if one belongs to another context;
    /// [`Error::Alignment`](einsparse_core::Error::Alignment) if one is not aligned to 16 bytes;
    /// [`Error::RowStride`](einsparse_core::Error::RowStride) if choices or weights have gaps between their rows.
    pub fn forward(
        &mut self,
        inputs: &MoeInputs<'_, T>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let MoeInputs { x, choices, weights, up, down } = *inputs;
        self.check(inputs, out)?;
        in_turn(self.routing.turns(), stream, || {
            self.routing.queue(choices, stream)?;
            self.queue_up(x, up, stream)?;
            // Routing and the first product precede this launch, so it may read data from before them without a wait.
            self.multiply_behind(Some(choices), weights, down, out, stream)
        })
    }

    /// Validates the shapes of the operands.
    fn check(&self, inputs: &MoeInputs<'_, T>, out: &Tensor<T>) -> Result<()> {
        let MoeOptions { tokens, top_k, model, scaled, .. } = self.options;
        let [up, down] = self.options.shapes();
        check_shape("x", &[tokens, model], inputs.x.shape())?;
        check_shape("weights", &[tokens, top_k], inputs.weights.shape())?;
        inputs.up.check("up", up, scaled)?;
        inputs.down.check("down", down, scaled)?;
        check_shape("out", &[tokens, model], out.shape())
    }

    /// Queues the first step of [`forward`](Self::forward): computes the slots of the choices.
    ///
    /// # Errors
    /// Returns the errors of [`forward`](Self::forward).
    pub fn route(&mut self, choices: &Tensor<i32>, stream: &Stream) -> Result<()> {
        self.routing.run(choices, stream)
    }

    /// Queues the second step: gathers the tokens, computes the first product and applies the activation.
    ///
    /// # Errors
    /// Returns the errors of [`forward`](Self::forward).
    pub fn multiply_up<'a>(
        &mut self,
        x: &Tensor<T>,
        up: impl Into<Matrices<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let up = up.into();
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

    /// Queues the third step: computes the second product, weights and scatters its rows, and adds them.
    ///
    /// # Errors
    /// Returns the errors of [`forward`](Self::forward).
    pub fn multiply_down<'a>(
        &mut self,
        weights: &Tensor<f32>,
        down: impl Into<Matrices<'a, T>>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let down = down.into();
        in_turn(self.routing.turns(), stream, || {
            self.multiply_behind(None, weights, down, out, stream)
        })
    }

    fn multiply_behind(
        &mut self,
        // `Some` only directly after the routing and the first product.
        choices: Option<&Tensor<i32>>,
        weights: &Tensor<f32>,
        down: Matrices<'_, T>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let MoeOptions { tokens, model, .. } = self.options;
        check_shape("out", &[tokens, model], out.shape())?;
        let early = choices.is_some();
        let choices = choices
            .filter(|_| self.part && self.sum.as_ref().is_some_and(|sum| sum.on_gpu().is_some()));
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

    /// Adds the rows of the choices to the rows of the tokens. If `choices` is given, choices that name no expert of
    /// this layer are skipped.
    fn add_up(
        &self,
        choices: Option<&Tensor<i32>>,
        parts: &Tensor<T>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let MoeOptions { tokens, top_k, model, .. } = self.options;
        let Some(sum) = &self.sum else {
            return Ok(());
        };
        let run = sum.start(stream)?;
        let choices = match choices {
            Some(choices) => run.contiguous("choices", choices.any(), &[tokens, top_k])?,
            None => 0,
        };
        let rows = run.matrix("rows", parts.any(), parts.shape())?;
        let sums = run.matrix("out", out.any(), &[tokens, model])?;
        run.queue(
            |launch, queue| launch.run(choices, rows, sums, queue),
            || {
                // SAFETY: only values are stored.
                let out = unsafe { out.any_mut() };
                with_sums!(T::DTYPE, A => add_on_host::<A>(top_k, parts.any(), out))
            },
        )
    }
}

fn add_on_host<A: Sum>(top_k: usize, parts: &AnyTensor, out: &mut AnyTensor) -> Result<()> {
    let (tokens, model) = (out.shape()[0], out.shape()[1]);
    let width = parts.leading();
    let rows = parts.host().or_elsewhere("rows")?.widen::<A>();
    out.store_rows(tokens, model, &|token, sums: &mut [A]| {
        for (column, sum) in sums.iter_mut().enumerate() {
            for j in 0..top_k {
                *sum += rows[(token * top_k + j) * width + column];
            }
        }
    })
    .or_elsewhere("out")
}
