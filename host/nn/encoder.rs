//! Transformer encoder layers over sequences of different lengths.

mod host;
mod launches;
mod norm;
mod norm_gradient;

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result, elements};
use crate::families::discover::{LiveProduct, Rows};
use crate::operator::{Operator, Run};
use crate::operator_of;
use crate::registry::Scalar;
use crate::tensor::Tensor;
use host::Batch;
use launches::{EncoderRun, Launches};
pub use norm::ResidualNorm;
pub use norm_gradient::ResidualNormGradient;

/// Extents of an [`Encoder`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderOptions {
    /// Sequences in a batch.
    pub items: usize,
    /// Rows from one sequence to the next: the maximum length.
    pub distance: usize,
    /// Elements of a token: a multiple of 8, at most 1024.
    pub width: usize,
    /// Number of attention heads. Each has `width / heads` elements, which must be 64 or 128.
    pub heads: usize,
    /// Elements between the two products of the feed-forward network; a multiple of 8.
    pub hidden: usize,
    /// Value added to the variance of a row.
    pub epsilon: f64,
    /// Maximum number of tokens in a batch, over all sequences. `None`: all sequences may have the maximum length. The
    /// workspace has this size, and tokens past it are ignored.
    pub most: Option<usize>,
    /// Expected number of tokens in a batch; `None`: the maximum. Tiles are selected for it; results are correct for
    /// any number.
    pub expected: Option<usize>,
}

impl EncoderOptions {
    /// Maximum number of packed rows.
    fn rows(&self) -> usize {
        let all = self.items.saturating_mul(self.distance);
        self.most.map_or(all, |most| most.min(all))
    }
}

/// Weights of one layer of an [`Encoder`]: matrices `[inputs, outputs]`, each with a bias `[outputs]`, and two
/// normalisations.
#[derive(Clone, Copy, Debug)]
pub struct EncoderWeights<'a, T> {
    /// Projection to queries, keys and values, concatenated along columns: `[width, 3 width]`.
    pub qkv: [&'a Tensor<T>; 2],
    /// Output projection, `[width, width]`.
    pub out: [&'a Tensor<T>; 2],
    /// First product of the feed-forward network, before the GELU: `[width, hidden]`.
    pub up: [&'a Tensor<T>; 2],
    /// Second product of the feed-forward network: `[hidden, width]`.
    pub down: [&'a Tensor<T>; 2],
    /// Factor and summand of the normalisation after attention, `[width]` each.
    pub first_norm: [&'a Tensor<T>; 2],
    /// Factor and summand of the normalisation after the feed-forward network, `[width]` each.
    pub second_norm: [&'a Tensor<T>; 2],
}

/// Consecutive BERT layers (arXiv 1810.04805; post-norm, arXiv 1706.03762) over a batch of sequences of different
/// lengths.
///
/// The lengths are read at each run. A layer computes `h = norm(x + attention(x) W_o)` and
/// `out = norm(h + gelu(h W_up) W_down)`.
///
/// Tokens are micro-tiles along m (PIT, arXiv 2301.10936, section 2). The rows of all sequences are packed before the
/// first layer and scattered after the last one, so padding is never computed. The number of rows stays in device
/// memory: tiles past the last row exit at once. Attention processes the packed batch as one sequence, in which each
/// query sees the keys of its own sequence. Runs allocate nothing and do not synchronize. A captured CUDA graph accepts
/// other lengths at every launch. All layers share one workspace, whose size does not depend on their number.
///
/// Sums and normalisation are f32, and the result of each step is rounded to the element type. Results are bitwise
/// reproducible, and bitwise equal to those of the layers run one at a time. The result of a sequence may depend on its
/// position in the batch, because keys are gathered in groups of 64 packed rows. A NaN or Inf in the values of one
/// sequence can reach adjacent sequences in the batch, as in [`DynamicAttention`](einsparse_core::ops::DynamicAttention).
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Dense, f16};
/// use einsparse::nn::{Encoder, EncoderOptions, EncoderWeights};
/// let ctx = Context::cpu();
/// let options = EncoderOptions {
///     items: 2, distance: 3, width: 64, heads: 1, hidden: 64, epsilon: 1e-5, most: None, expected: None,
/// };
/// let encoder = Encoder::new(&ctx, &options)?;
/// let ones = |shape: &[usize]| ctx.upload_dense(&Dense::from_fn(shape.to_vec(), |_| f16::ONE)?);
/// let (square, wide, row, long) = (ones(&[64, 64])?, ones(&[64, 192])?, ones(&[64])?, ones(&[192])?);
/// let layer = EncoderWeights {
///     qkv: [&wide, &long],
///     out: [&square, &row],
///     up: [&square, &row],
///     down: [&square, &row],
///     first_norm: [&row, &row],
///     second_norm: [&row, &row],
/// };
/// let lengths = ctx.upload_dense(&Dense::new([2], vec![1i32, 2])?)?;
/// let (x, mut out) = (ones(&[2, 3, 64])?, ctx.zeros(&[2, 3, 64])?);
/// // Two layers of the same weights.
/// encoder.forward(&x, &lengths, &[layer, layer], &mut out, &ctx.stream()?)?;
/// let out = out.to_dense()?;
/// // Equal elements are normalised to the summand; padding is left alone.
/// assert_eq!(out.values()[..64], [f16::ONE; 64]);
/// assert_eq!(out.values()[64..192], [f16::ZERO; 128]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Encoder<T> {
    options: EncoderOptions,
    operator: Operator<Launches>,
    element: std::marker::PhantomData<T>,
}

impl<T: Scalar> Encoder<T> {
    /// Creates an encoder for these extents.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `heads` does not divide `width`, if `epsilon` is negative or NaN, or if no kernel
    /// supports the extents; [`Error::NoKernel`] for types other than f16 and bf16, and for heads of other widths than
    /// 64 and 128; [`Error::Overflow`] for more than 131,072 packed rows; [`Error::OutOfMemory`].
    pub fn new(context: &Context, options: &EncoderOptions) -> Result<Self> {
        let EncoderOptions { width, heads, .. } = *options;
        if heads == 0 || !width.is_multiple_of(heads) {
            return Err(Error::range("heads", heads, format!("a divisor of {width} elements")));
        }
        if options.epsilon.is_nan() || options.epsilon < 0.0 {
            return Err(Error::range("epsilon", options.epsilon, ">= 0"));
        }
        for (name, columns) in [("x", 3), ("hidden rows", 1)] {
            let each = if columns == 3 { width } else { options.hidden };
            elements(name, &[options.items, options.distance, each, columns])?;
        }
        Ok(Encoder {
            options: *options,
            operator: operator_of(context, |device| Launches::new::<T>(device, options))?
                .serialized()?,
            element: std::marker::PhantomData,
        })
    }

    /// Returns the names of the kernels of attention and of the four products, or `cpu` on a CPU context.
    pub fn variants(&self) -> [&'static str; 5] {
        self.operator.variants(|own| {
            let [a, b, c, d] = own.products.each_ref().map(LiveProduct::name);
            [own.attention.row().name, a, b, c, d]
        })
    }

    /// Returns the workspace size, in bytes of device memory; 0 on a CPU context.
    pub fn workspace_bytes(&self) -> usize {
        self.operator.bytes(|own| {
            let rows: usize = own.rows.iter().map(|(memory, _)| memory.bytes()).sum();
            rows + own.pack.bytes() + own.masks.bytes() + own.attention.bytes()
        })
    }

    /// Names of the launches that [`Encoder::forward_first`] counts in the first layer. The other layers omit packing
    /// and the work list.
    #[doc(hidden)]
    pub const STEPS: [&'static str; 9] = [
        "packing",
        "queries, keys and values",
        "work list",
        "attention",
        "projection",
        "first norm",
        "up",
        "down",
        "second norm",
    ];

    /// Queues the layers with these weights, in order.
    ///
    /// `x` and `out` are `[items, distance, width]`, `lengths` is `[items]`. A length below 0 counts as 0, a length
    /// above `distance` as `distance`. Rows of `out` past the length of a sequence are not written.
    ///
    /// # Errors
    /// Returns an error if there are no layers, if a tensor has another shape or context than planned, or if an address
    /// is not a multiple of 16 bytes. The output is then not written.
    pub fn forward(
        &self,
        x: &Tensor<T>,
        lengths: &Tensor<i32>,
        layers: &[EncoderWeights<'_, T>],
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.forward_first(usize::MAX, x, lengths, layers, out, stream)
    }

    /// Queues the layers for packed sequences, which follow each other without padding; otherwise like
    /// [`Encoder::forward`].
    ///
    /// `x` and `out` are `[most, width]`, where `most` is [`EncoderOptions::most`], by default and at most
    /// `items * distance`. Rows past the last token are not read, and those rows of `out` are not written.
    ///
    /// ```
    /// # use einsparse::{Context, formats::{Dense, f16}, nn::{Encoder, EncoderOptions, EncoderWeights}};
    /// # let ctx = Context::cpu();
    /// # let ones = |shape: &[usize]| ctx.upload_dense(&Dense::from_fn(shape.to_vec(), |_| f16::ONE)?);
    /// # let (square, wide, row, long) = (ones(&[64, 64])?, ones(&[64, 192])?, ones(&[64])?, ones(&[192])?);
    /// # let layer = EncoderWeights {
    /// #     qkv: [&wide, &long],
    /// #     out: [&square, &row],
    /// #     up: [&square, &row],
    /// #     down: [&square, &row],
    /// #     first_norm: [&row, &row],
    /// #     second_norm: [&row, &row],
    /// # };
    /// let options = EncoderOptions {
    ///     items: 2, distance: 64, width: 64, heads: 1, hidden: 64, epsilon: 1e-5, most: Some(4), expected: None,
    /// };
    /// let encoder = Encoder::new(&ctx, &options)?;
    /// // Three tokens, and room for one more.
    /// let lengths = ctx.upload_dense(&Dense::new([2], vec![1i32, 2])?)?;
    /// let (x, mut out) = (ones(&[4, 64])?, ctx.zeros(&[4, 64])?);
    /// encoder.forward_packed(&x, &lengths, &[layer], &mut out, &ctx.stream()?)?;
    /// assert_eq!(out.to_dense()?.values()[..192], [f16::ONE; 192]);
    /// assert_eq!(out.to_dense()?.values()[192..], [f16::ZERO; 64]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Encoder::forward`].
    pub fn forward_packed(
        &self,
        x: &Tensor<T>,
        lengths: &Tensor<i32>,
        layers: &[EncoderWeights<'_, T>],
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.run((true, usize::MAX), x, lengths, layers, out, stream)
    }

    /// Queues only the first `steps` launches on a GPU, to time them. The CPU computes all steps.
    #[doc(hidden)]
    pub fn forward_first(
        &self,
        steps: usize,
        x: &Tensor<T>,
        lengths: &Tensor<i32>,
        layers: &[EncoderWeights<'_, T>],
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.run((false, steps), x, lengths, layers, out, stream)
    }

    fn run(
        &self,
        (packed, steps): (bool, usize),
        x: &Tensor<T>,
        lengths: &Tensor<i32>,
        layers: &[EncoderWeights<'_, T>],
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let EncoderOptions { items, distance, width, .. } = self.options;
        let (apart, together) = ([items, distance, width], [self.options.rows(), width]);
        let shape = if packed { &together[..] } else { &apart };
        let run = self.operator.start(stream)?;
        run.check("x", x.any(), shape)?;
        run.check("out", out.any(), shape)?;
        run.check("lengths", lengths.any(), &[items])?;
        self.check(&run, layers)?;
        let arguments = EncoderRun {
            options: &self.options,
            packed,
            steps,
            x: rows(x),
            out: rows(out),
            lengths: lengths.place(),
        };
        run.queue(
            |own, queue| own.run(&arguments, layers, queue),
            || {
                // SAFETY: only values are stored.
                let out = unsafe { out.any_mut() };
                Batch::new(&self.options, lengths, packed).run(x, layers, out);
                Ok(())
            },
        )
    }

    fn check(&self, run: &Run<'_, Launches>, layers: &[EncoderWeights<'_, T>]) -> Result<()> {
        let EncoderOptions { width, hidden, .. } = self.options;
        if layers.is_empty() {
            return Err(Error::range("layers", 0, ">= 1"));
        }
        let check =
            |name: &str, tensor: &Tensor<T>, shape: &[usize]| run.check(name, tensor.any(), shape);
        for weights in layers {
            for (name, [matrix, bias], [inputs, outputs]) in [
                ("qkv", weights.qkv, [width, 3 * width]),
                ("out", weights.out, [width, width]),
                ("up", weights.up, [width, hidden]),
                ("down", weights.down, [hidden, width]),
            ] {
                check(name, matrix, &[inputs, outputs])?;
                check(&format!("bias of {name}"), bias, &[outputs])?;
            }
            for norm in [weights.first_norm, weights.second_norm] {
                check("factor of the norm", norm[0], &[width])?;
                check("summand of the norm", norm[1], &[width])?;
            }
        }
        Ok(())
    }
}

/// Address and row stride of a tensor.
fn rows<T: Scalar>(tensor: &Tensor<T>) -> Rows {
    Rows { address: tensor.place(), leading: tensor.leading() }
}
