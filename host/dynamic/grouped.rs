//! A product in which each row has a matrix of its own, chosen while running, and its gradients.

mod gate;
mod matrices;
mod product;
mod quantized;
mod weight;

use super::routing::Routing;
use crate::context::Shadow;
use crate::device::Stream;
use crate::einsum::Activation;
use crate::error::{Elsewhere, Error, Result};
use crate::launch::in_turn;
use crate::registry::Scalar;
use crate::tensor::Tensor;
pub use gate::Gate;
pub use matrices::Matrices;
pub(crate) use product::{GroupedProduct, GroupedRun};
pub(crate) use weight::{GroupedWeight, WeightOptions};

/// A [`GroupedGemm`].
///
/// ```
/// use einsparse::dynamic::GroupedOptions;
/// // The first product of a mixture of experts: tokens are gathered on the way in.
/// let up = GroupedOptions { k: 1024, n: 4096, gather: true, ..GroupedOptions::default() };
/// assert!(!up.scatter && !up.transposed);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupedOptions {
    /// Columns of A, rows of a matrix.
    pub k: usize,
    /// Columns of a matrix and of C.
    pub n: usize,
    /// Rows of A are the tokens', `[tokens, k]`, and gathered on the way in (SRead); else the slots', `[slots, k]`.
    pub gather: bool,
    /// Rows of C are the choices', and scattered on the way out (SWrite); else the slots'. `[slots, n]` either way.
    pub scatter: bool,
    /// What becomes of a sum before it is weighted. On a GPU the identity or ReLU.
    pub activation: Activation,
    /// Matrices are `[n, k]` each, as linear layers store them: rows are multiplied with their transposes.
    pub transposed: bool,
    /// Matrices have `2 n` columns, those of the gates in front: C's are `gate(A W_g) * (A W_u)`. Without an activation.
    pub gate: Option<Gate>,
    /// Matrices are e4m3 with scales, [`Matrices::Scaled`]: `transposed`, without gradients; `k` is a multiple of 16, with
    /// a gate `n` one of 128.
    pub scaled: bool,
    /// Rows of A are rounded to e4m3 too, and codes multiplied with codes, at twice the rate of f16: for `scaled`
    /// matrices. 64 neighbours share the smallest power of two that leaves them within 448 when divided by it; numbers
    /// keep 4 bits, those below 2^-13 of a block's largest fewer, down to none. A block with an infinity or NaN is NaN.
    /// The product holds such rows, and its runs share them: those in graphs are the caller's to order.
    pub quantize: bool,
}

/// `C[s,n] = weight(s) act(A[row(s),k] * W[expert(s),k,n])` for each slot `s` of a [`Routing`]: rows gathered and
/// scattered by index while they pass through shared memory (SRead and SWrite of PIT, arXiv 2301.10936, section 3.4, on
/// the m axis). No padding, no capacity: panels of up to 128 rows of one expert, as many as there are. For f16 and bf16,
/// `k` and `n` multiples of 8; the CPU takes every element type.
///
/// With [`scatter`](GroupedOptions::scatter) the row of a choice that names no expert is zero; without it such rows,
/// the last ones, stay as they are. The same bits at every run.
///
/// Made [`for_training`](Self::for_training) it has the gradients of its sums, what stands in front of activation and
/// weights.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::{GroupedGemm, GroupedOptions, Routing};
/// use einsparse::formats::{Dense, f16};
/// let ctx = Context::cpu();
/// let stream = ctx.stream()?;
/// // Three tokens, the first and the last of expert 1.
/// let choices = ctx.upload_dense(&Dense::new([3, 1], vec![1i32, 0, 1])?)?;
/// let mut routing = Routing::new(&ctx, [3, 1], 2)?;
/// routing.run(&choices, &stream)?;
/// let options = GroupedOptions { k: 8, n: 8, gather: true, scatter: true, ..Default::default() };
/// let product = GroupedGemm::<f16>::for_training(&routing, &options)?;
///
/// // Numbers in the first columns, zeros in the others.
/// let first = |x: f32, column: usize| if column == 0 { f16::from_f32(x) } else { f16::ZERO };
/// let a = ctx.upload_dense(&Dense::from_fn([3, 8], |i| first([1.0, 2.0, 3.0][i[0]], i[1]))?)?;
/// let w = ctx.upload_dense(&Dense::from_fn([2, 8, 8], |i| first([10.0, 100.0][i[0]], i[1] + i[2]))?)?;
/// let mut c = ctx.zeros(&[3, 8])?;
/// product.forward(&routing, &a, &w, None, &mut c, &stream)?;
/// assert_eq!(c.to_dense()?, Dense::from_fn([3, 8], |i| first([100.0, 20.0, 300.0][i[0]], i[1]))?);
///
/// let dc = ctx.upload_dense(&Dense::from_fn([3, 8], |i| first([1.0, 1.0, 2.0][i[0]], i[1]))?)?;
/// let (mut da, mut dw) = (ctx.zeros(&[3, 8])?, ctx.zeros(&[2, 8, 8])?);
/// product.backward_input(&routing, &dc, &w, &mut da, &stream)?;
/// product.backward_weight(&routing, &a, &dc, &mut dw, &stream)?;
/// assert_eq!(da.to_dense()?, Dense::from_fn([3, 8], |i| first([100.0, 10.0, 200.0][i[0]], i[1]))?);
/// assert_eq!(dw.to_dense()?.get(&[1, 0, 0]), Some(f16::from_f32(7.0)));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct GroupedGemm<T> {
    product: GroupedProduct<T>,
    gradients: Option<Gradients<T>>,
    /// On a CPU context that of a GPU that is not there.
    shadow: Shadow<GroupedGemm<T>>,
}

/// What backward needs beside forward.
#[derive(Debug)]
struct Gradients<T> {
    input: GroupedProduct<T>,
    weight: GroupedWeight<T>,
    /// The gradient of a matrix that lies as `[n, k]` has dC on the left.
    transposed: bool,
}

impl<T: Scalar> Gradients<T> {
    fn new(routing: &Routing, options: GroupedOptions) -> Result<Self> {
        let GroupedOptions { k, n, gather, scatter, transposed, .. } = options;
        let input = GroupedOptions {
            k: n,
            n: k,
            gather: scatter,
            scatter: gather,
            transposed: !transposed,
            ..GroupedOptions::default()
        };
        let ([m, n], gather, names) = match transposed {
            false => ([k, n], [gather, scatter], ["A", "dC", "dW"]),
            true => ([n, k], [scatter, gather], ["dC", "A", "dW"]),
        };
        let weight = WeightOptions { m, n, gather };
        Ok(Gradients {
            input: GroupedProduct::new(routing, input)?.named(["dC", "W", "dA"]),
            weight: GroupedWeight::new(routing, weight)?.named(names),
            transposed,
        })
    }
}

impl<T: Scalar> GroupedGemm<T> {
    /// A product over the slots of routings like this one.
    ///
    /// # Errors
    /// On a GPU [`Error::NoKernel`] for element types without kernel, [`Error::Operand`] for GELU and for extents that
    /// are no multiples of 8; [`Error::Operand`] for scaled matrices that do not fit
    /// [`scaled`](GroupedOptions::scaled); [`Error::Overflow`].
    pub fn new(routing: &Routing, options: &GroupedOptions) -> Result<Self> {
        Self::with_variant(routing, options, None)
    }

    /// The same with the kernel of this name, on a GPU.
    #[doc(hidden)]
    pub fn with_variant(
        routing: &Routing,
        options: &GroupedOptions,
        variant: Option<&str>,
    ) -> Result<Self> {
        let shadow =
            Shadow::of(routing.shadow(), |routing| Self::with_variant(routing, options, variant))?;
        Ok(GroupedGemm {
            product: GroupedProduct::with_variant(routing, *options, variant)?,
            gradients: None,
            shadow,
        })
    }

    /// The same with its gradients.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::Operand`] for a gate, whose gradient wants sums that are not kept
    /// ([`Moe`](crate::nn::Moe) keeps them).
    pub fn for_training(routing: &Routing, options: &GroupedOptions) -> Result<Self> {
        if options.scaled {
            return Err(Error::operand("scaled", "matrices have no gradients"));
        }
        if options.gate.is_some() {
            return Err(Error::operand(
                "gate",
                "is not there in a product for training: its gradient wants the sums in front of it; `nn::Moe` keeps them",
            ));
        }
        let shadow = Shadow::of(routing.shadow(), |routing| Self::for_training(routing, options))?;
        let product = Self::new(routing, options)?;
        let gradients = Some(Gradients::new(routing, *options)?);
        Ok(GroupedGemm { gradients, shadow, ..product })
    }

    /// The kernels of forward and, if it was made for training, of the gradients of A and of the matrices; each `cpu`
    /// on a CPU context.
    pub fn variants(&self) -> Vec<&'static str> {
        let mut all = vec![self.product.variant()];
        if let Some(gradients) = &self.gradients {
            all.extend([gradients.input.variant(), gradients.weight.variant()]);
        }
        all
    }

    /// Queues the product. `w`: `&Tensor<T>`, or with scales a pair ([`Matrices`]), `[experts, k, n]`, or
    /// `[experts, n, k]`, with a gate 2 n for n; `weights`: one of each choice, `[tokens, top_k]`, or none. On a GPU
    /// nothing is allocated or waited for.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand is not of the planned extents; [`Error::Operand`] if one lies in another context,
    /// or is not aligned to 16 bytes.
    pub fn forward<'a>(
        &self,
        routing: &Routing,
        a: &'a Tensor<T>,
        w: impl Into<Matrices<'a, T>>,
        weights: Option<&'a Tensor<f32>>,
        c: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let w = w.into();
        self.shadow.look(stream, |own, stream| {
            let routing = routing.shadow().or_elsewhere("routing")?;
            let weights = weights.map(|weights| weights.shadow());
            let (w, weights, to) = (w.shadow(), weights.as_ref(), &mut c.shadow());
            own.forward(routing, &a.shadow(), w.matrices(), weights, to, stream)
        })?;
        let operands = GroupedRun { weights, ..GroupedRun::plain(a, w) };
        in_turn(routing.turns(), stream, || {
            self.product.in_turn(stream, || self.product.queue(routing, &operands, c, stream))
        })
    }

    /// Queues the gradient of A, `dA[s,k] = dC[row'(s),n] * W[expert(s),k,n]`, from that of the sums. With
    /// [`scatter`](GroupedOptions::scatter) rows of `dc` are the tokens', `[tokens, n]`, as of a sum over the choices
    /// of each; else the slots'. With [`gather`](GroupedOptions::gather) rows of `da` are the choices', and a token's
    /// gradient is the sum of its own; else the slots'. `[slots, k]` either way.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::Operand`] if it was not made [`for_training`](Self::for_training).
    pub fn backward_input(
        &self,
        routing: &Routing,
        dc: &Tensor<T>,
        w: &Tensor<T>,
        da: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.shadow.look(stream, |own, stream| {
            let routing = routing.shadow().or_elsewhere("routing")?;
            let (dc, w) = (dc.shadow(), w.shadow());
            own.backward_input(routing, &dc, &w, &mut da.shadow(), stream)
        })?;
        let gradients = self.gradients()?;
        let operands = GroupedRun::plain(dc, w);
        in_turn(routing.turns(), stream, || gradients.input.queue(routing, &operands, da, stream))
    }

    /// Queues the gradient of the matrices, `dW[e,k,n] = A[row(s),k] * dC[row'(s),n]` summed over the slots `s` that
    /// the [`Routing`] gave expert `e`, from that of the sums, whose rows are as for
    /// [`backward_input`](Self::backward_input). An expert without slots gets zeros. Slots are summed in order, f32
    /// sums rounded once.
    ///
    /// # Errors
    /// As [`backward_input`](Self::backward_input).
    pub fn backward_weight(
        &self,
        routing: &Routing,
        a: &Tensor<T>,
        dc: &Tensor<T>,
        dw: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.shadow.look(stream, |own, stream| {
            let routing = routing.shadow().or_elsewhere("routing")?;
            let (a, dc) = (a.shadow(), dc.shadow());
            own.backward_weight(routing, &a, &dc, &mut dw.shadow(), stream)
        })?;
        let gradients = self.gradients()?;
        let [left, right] = match gradients.transposed {
            false => [a, dc],
            true => [dc, a],
        };
        in_turn(routing.turns(), stream, || {
            gradients.weight.queue(routing, left, right, dw, stream)
        })
    }

    fn gradients(&self) -> Result<&Gradients<T>> {
        self.gradients.as_ref().ok_or_else(|| {
            Error::operand("product", "was made without its gradients: `GroupedGemm::for_training`")
        })
    }
}
