//! Transformer encoder layers over sequences of varying lengths.

mod host;
mod launches;
mod norm;
mod norm_gradient;

use crate::context::{Context, Prepared};
use crate::device::Stream;
use crate::error::{Error, Result, elements};
use crate::families::discover::{LiveProduct, Rows};
use crate::kernel::Queue;
use crate::registry::Scalar;
use crate::tensor::Tensor;
use host::Batch;
use launches::{Launches, Run};
pub use norm::ResidualNorm;
pub use norm_gradient::ResidualNormGradient;

/// Extents of an [`Encoder`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderOptions {
    /// Sequences of a batch.
    pub items: usize,
    /// Rows from one sequence to the next: the longest length.
    pub distance: usize,
    /// Elements of a token: a multiple of 8, up to 1024.
    pub width: usize,
    /// Heads of `width / heads` elements: 64 or 128.
    pub heads: usize,
    /// Elements between the two products of the feed-forward network, a multiple of 8.
    pub hidden: usize,
    /// Added to the variance of a row.
    pub epsilon: f64,
    /// Tokens of a batch at the most, all lengths together; `None`: all sequences of the longest length. Room is made
    /// for so many, and tokens behind them are left out.
    pub most: Option<usize>,
    /// Tokens of a batch that are expected; `None`: the most. Tiles are chosen for so many; any number is right.
    pub expected: Option<usize>,
}

impl EncoderOptions {
    /// Packed rows at the most.
    fn rows(&self) -> usize {
        let all = self.items.saturating_mul(self.distance);
        self.most.map_or(all, |most| most.min(all))
    }
}

/// Weights of a layer of an [`Encoder`], `[inputs, outputs]`, and a bias for each output.
#[derive(Clone, Copy, Debug)]
pub struct EncoderWeights<'a, T> {
    /// Queries, keys and values side by side, `[width, 3 width]`.
    pub qkv: [&'a Tensor<T>; 2],
    /// Output projection, `[width, width]`.
    pub out: [&'a Tensor<T>; 2],
    /// First product of the feed-forward network, `[width, hidden]`, in front of the GELU.
    pub up: [&'a Tensor<T>; 2],
    /// Second product, `[hidden, width]`.
    pub down: [&'a Tensor<T>; 2],
    /// Factor and summand of the normalisation behind attention, `[width]` each.
    pub first_norm: [&'a Tensor<T>; 2],
    /// Of that behind the feed-forward network.
    pub second_norm: [&'a Tensor<T>; 2],
}

/// Layers of BERT (arXiv 1810.04805; post-norm, arXiv 1706.03762), one behind the other, over a batch whose sequences
/// have lengths of their own, which are data of each run: `h = norm(x + attention(x) W_o)`,
/// `out = norm(h + gelu(h W_up) W_down)`.
///
/// Tokens are micro-tiles along m (PIT, arXiv 2301.10936, section 2): rows of all sequences are packed on the way into
/// the first layer and sent back on the way out of the last, and nothing in between is computed for padding. How many
/// rows there are stays on the GPU: tiles behind the last one end at once, and the attention takes the packed batch as
/// one sequence whose queries see the keys of their own. Nothing is allocated or waited for; a captured CUDA graph
/// takes other lengths at every launch. Layers share their room: it does not grow with their number.
///
/// Sums and normalisation in f32, results of each step rounded to the element type. The same bits every time, and those
/// of the same layers run one by one, but a sequence's may depend on where it lies in the batch: keys are gathered by
/// 64 of the packed rows. A NaN or Inf in the values of one sequence can reach its neighbours in the batch, as in
/// [`DynamicAttention`](crate::ops::DynamicAttention).
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
    context: Context,
    options: EncoderOptions,
    launch: Prepared<Launches>,
    element: std::marker::PhantomData<T>,
}

impl<T: Scalar> Encoder<T> {
    /// Layers of these extents.
    ///
    /// # Errors
    /// [`Error::Operand`] for heads that do not divide the width, and extents that no kernel takes; [`Error::NoKernel`]
    /// for another type than f16 and bf16, or heads of another width than 64 and 128; [`Error::Overflow`] for
    /// more than 131,072 packed rows; [`Error::OutOfMemory`].
    pub fn new(context: &Context, options: &EncoderOptions) -> Result<Self> {
        let EncoderOptions { width, heads, .. } = *options;
        if heads == 0 || !width.is_multiple_of(heads) {
            let reason = format!("are {heads}, which do not divide {width} elements");
            return Err(Error::operand("heads", reason));
        }
        if options.epsilon.is_nan() || options.epsilon < 0.0 {
            let reason = format!("is {}, not a variance", options.epsilon);
            return Err(Error::operand("epsilon", reason));
        }
        for (name, columns) in [("x", 3), ("hidden rows", 1)] {
            let each = if columns == 3 { width } else { options.hidden };
            elements(name, &[options.items, options.distance, each, columns])?;
        }
        Ok(Encoder {
            context: context.clone(),
            options: *options,
            launch: context.prepared(|device| Launches::new::<T>(device, options))?,
            element: std::marker::PhantomData,
        })
    }

    /// Kernels of attention and of the four products; `cpu` on a CPU context.
    pub fn variants(&self) -> [&'static str; 5] {
        self.launch.as_ref().map_or(["cpu"; 5], |own| {
            let [a, b, c, d] = own.products.each_ref().map(LiveProduct::name);
            [own.attention.row().name, a, b, c, d]
        })
    }

    /// Device bytes beside the operands.
    pub fn workspace_bytes(&self) -> usize {
        self.launch.as_ref().map_or(0, |own| {
            let rows: usize = own.rows.iter().map(|(memory, _)| memory.bytes()).sum();
            rows + own.pack.bytes() + own.masks.bytes() + own.attention.bytes()
        })
    }

    /// What [`Encoder::forward_first`] counts of the first layer; the others leave out packing and the work list.
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

    /// The layers with these weights, in their order. `x` and `out` `[items, distance, width]`, `lengths` `[items]`
    /// (below 0 is 0, above the distance is the distance). Rows of `out` behind a sequence's length are left as they
    /// are.
    ///
    /// # Errors
    /// Without layers, tensors of another shape or context than planned, and addresses other than multiples of 16
    /// bytes; output untouched.
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

    /// [`Encoder::forward`] of sequences that lie one behind the other: `x` and `out` `[most, width]`, as many rows as
    /// [`EncoderOptions::most`] says, or all sequences of the longest length have. Rows behind the last token are not
    /// looked at, and those of `out` are left as they are.
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
    /// As [`Encoder::forward`].
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

    /// The first so many of the launches on a GPU, to time them; all on the CPU.
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
        x.check("x", &self.context, shape)?;
        out.check("out", &self.context, shape)?;
        lengths.check("lengths", &self.context, &[items])?;
        self.check(layers)?;
        let runs = self.launch.queue(|own| {
            self.context.check_stream(stream)?;
            let run = Run {
                options: &self.options,
                packed,
                steps,
                x: rows(x),
                out: rows(out),
                lengths: lengths.place(),
            };
            // SAFETY: shapes and places were checked; the tensors are borrowed for the call, and device memory is freed
            // only after the work queued on the context. Runs take turns.
            let queue = unsafe { Queue::new(stream.raw()) };
            own.turns.queue(true, stream.raw(), || own.run(&run, layers, queue))
        })?;
        if runs {
            return Ok(());
        }
        Batch::new(&self.options, lengths, packed).run(x, layers, &mut out.any);
        Ok(())
    }

    fn check(&self, layers: &[EncoderWeights<'_, T>]) -> Result<()> {
        let EncoderOptions { width, hidden, .. } = self.options;
        if layers.is_empty() {
            return Err(Error::operand("layers", "are none"));
        }
        let check = |name: &str, tensor: &Tensor<T>, shape: &[usize]| {
            tensor.check(name, &self.context, shape)
        };
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

/// A tensor's rows.
fn rows<T: Scalar>(tensor: &Tensor<T>) -> Rows {
    Rows { address: tensor.place(), leading: tensor.leading() }
}
