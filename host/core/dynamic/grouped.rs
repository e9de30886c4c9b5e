//! Product in which each row is multiplied with a matrix that is chosen at run time, and its gradients.

mod gate;
mod matrices;
mod product;
mod quantized;
mod weight;

use super::routing::Routing;
use crate::device::Stream;
use crate::einsum::Activation;
use crate::error::{Error, Result};
use crate::launch::in_turn;
use crate::registry::Scalar;
use crate::tensor::Tensor;
pub use gate::Gate;
pub use matrices::Matrices;
#[doc(hidden)]
pub use product::{GroupedProduct, GroupedRun};
#[doc(hidden)]
pub use weight::{GroupedWeight, WeightOptions};

/// Allowed value of `scaled` in products for training.
#[doc(hidden)]
pub const NO_GRADIENTS: &str = "false for training: scaled matrices have no gradients";

/// Options of a [`GroupedGemm`].
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
    /// Whether rows of A are those of the tokens, `[tokens, k]`, and are gathered while they are loaded (SRead).
    /// Otherwise they are those of the slots, `[slots, k]`.
    pub gather: bool,
    /// Whether rows of C are those of the choices, and are scattered while they are stored (SWrite). Otherwise they are
    /// those of the slots. The shape is `[slots, n]` in both cases.
    pub scatter: bool,
    /// Function applied to a sum before it is weighted. A GPU supports the identity and ReLU.
    pub activation: Activation,
    /// Whether matrices are stored as `[n, k]`, as in linear layers: rows are multiplied with their transposes.
    pub transposed: bool,
    /// Gate of matrices with `2 n` columns, those of the gates W_g first. C is `gate(A W_g) * (A W_u)`, without an
    /// activation.
    pub gate: Option<Gate>,
    /// Whether matrices are e4m3 with scales, [`Matrices::Scaled`]. They must be `transposed`, and have no gradients.
    /// `k` must be a multiple of 16 and, with a gate, `n` a multiple of 128.
    pub scaled: bool,
    /// Whether rows of A are rounded to e4m3 as well, and codes are multiplied with codes, at twice the rate of f16.
    /// Requires `scaled` matrices. A block of 64 adjacent elements shares a scale: the smallest power of two by which
    /// they can be divided to be within 448. Numbers keep 4 bits; those below 2^-13 of the block's largest keep fewer,
    /// down to none. A block with an infinity or NaN becomes NaN. The product stores these rows in workspace that its
    /// runs share; the caller orders runs in graphs.
    pub quantize: bool,
}

/// `C[s,n] = weight(s) act(A[row(s),k] * W[expert(s),k,n])` for each slot `s` of a [`Routing`]. Rows are gathered and
/// scattered by index on their way through shared memory (SRead and SWrite of PIT, arXiv 2301.10936, section 3.4, on
/// the m axis). There is neither padding nor a capacity: each panel has up to 128 rows of one expert. Element types are
/// f16 and bf16, with `k` and `n` multiples of 8. The CPU supports every element type.
///
/// With [`scatter`](GroupedOptions::scatter), the row of a choice that names no expert is zero. Without it, such rows
/// are the last ones and are not written. Every run gives the same bits.
///
/// If created with [`for_training`](Self::for_training), it also computes the gradients of the sums before activation
/// and weights.
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
}

/// Products that the gradients need in addition to `forward`.
#[derive(Debug)]
struct Gradients<T> {
    input: GroupedProduct<T>,
    weight: GroupedWeight<T>,
    /// Whether matrices are stored as `[n, k]`: their gradient then has dC on the left.
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
    /// Creates a product over the slots of routings of this shape.
    ///
    /// # Errors
    /// On a GPU, [`Error::NoKernel`] for element types without a kernel, and [`Error::OutOfRange`] for GELU and for
    /// extents that are not multiples of 8. [`Error::OutOfRange`] for scaled matrices that do not satisfy
    /// [`scaled`](GroupedOptions::scaled); [`Error::Overflow`].
    pub fn new(routing: &Routing, options: &GroupedOptions) -> Result<Self> {
        Self::with_variant(routing, options, None)
    }

    /// Creates a product with the kernel of this name, on a GPU.
    #[doc(hidden)]
    pub fn with_variant(
        routing: &Routing,
        options: &GroupedOptions,
        variant: Option<&str>,
    ) -> Result<Self> {
        Ok(GroupedGemm {
            product: GroupedProduct::with_variant(routing, *options, variant)?,
            gradients: None,
        })
    }

    /// Creates a product with its gradients.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::OutOfRange`] for a gate, whose gradient requires sums that are not stored
    /// (`nn::Moe` stores them).
    pub fn for_training(routing: &Routing, options: &GroupedOptions) -> Result<Self> {
        if options.scaled {
            return Err(Error::range("scaled", true, NO_GRADIENTS));
        }
        if options.gate.is_some() {
            let allowed = "None in a product for training: its gradient requires the pre-activation, which `nn::Moe` saves";
            return Err(Error::range("gate", "Some", allowed));
        }
        let product = Self::new(routing, options)?;
        let gradients = Some(Gradients::new(routing, *options)?);
        Ok(GroupedGemm { gradients, ..product })
    }

    /// Names of the kernels of `forward` and, if created for training, of the gradients of A and of the matrices. Each
    /// is `cpu` on a CPU context.
    pub fn variants(&self) -> Vec<&'static str> {
        let mut all = vec![self.product.variant()];
        if let Some(gradients) = &self.gradients {
            all.extend([gradients.input.variant(), gradients.weight.variant()]);
        }
        all
    }

    /// Queues the product. `w` is a `&Tensor<T>` or, with scales, a pair ([`Matrices`]). Its shape is
    /// `[experts, k, n]`, or `[experts, n, k]` if transposed, with 2 n for n if gated. `weights` has one element per
    /// choice, `[tokens, top_k]`. On a GPU, it does not allocate and does not wait.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand does not have the planned extents; [`Error::OtherContext`] if an operand is in
    /// another context; [`Error::Alignment`] if one is not aligned to 16 bytes.
    pub fn forward<'a>(
        &self,
        routing: &Routing,
        a: &'a Tensor<T>,
        w: impl Into<Matrices<'a, T>>,
        weights: Option<&'a Tensor<f32>>,
        c: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let operands = GroupedRun { weights, ..GroupedRun::plain(a, w) };
        in_turn(routing.turns(), stream, || {
            self.product.in_turn(stream, || self.product.queue(routing, &operands, c, stream))
        })
    }

    /// Queues the gradient of A, `dA[s,k] = dC[row'(s),n] * W[expert(s),k,n]`, from that of the sums. With
    /// [`scatter`](GroupedOptions::scatter), rows of `dc` are those of the tokens, `[tokens, n]`, as for a sum over the
    /// choices of each token; otherwise those of the slots. With [`gather`](GroupedOptions::gather), rows of `da` are
    /// those of the choices, and a token's gradient is the sum over its choices; otherwise those of the slots. The
    /// shape is `[slots, k]` in both cases.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`Error::NotPlanned`] if the product was not created with
    /// [`for_training`](Self::for_training).
    pub fn backward_input(
        &self,
        routing: &Routing,
        dc: &Tensor<T>,
        w: &Tensor<T>,
        da: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let gradients = self.gradients()?;
        let operands = GroupedRun::plain(dc, w);
        in_turn(routing.turns(), stream, || gradients.input.queue(routing, &operands, da, stream))
    }

    /// Queues the gradient of the matrices, `dW[e,k,n] = A[row(s),k] * dC[row'(s),n]`, summed over the slots `s` that
    /// the [`Routing`] gave expert `e`. `dc` is the gradient of the sums, with rows as for
    /// [`backward_input`](Self::backward_input). The gradient of an expert without slots is zero. Slots are summed in
    /// order in f32, and the sum is rounded once.
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
            Error::not_planned("product", "create it with `GroupedGemm::for_training`")
        })
    }
}
