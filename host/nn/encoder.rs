//! A Transformer encoder layer over sequences of varying lengths.

mod host;
mod launches;
mod norm;

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::families::discover::{LiveProduct, Rows};
use crate::kernel::Queue;
use crate::registry::Scalar;
use crate::tensor::Tensor;
use host::HostLayer;
use launches::Launches;
pub use norm::ResidualNorm;

/// Extents of an [`EncoderLayer`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderOptions {
    /// Sequences of a batch.
    pub items: usize,
    /// Rows from one sequence to the next: the longest length.
    pub distance: usize,
    /// Elements of a token: a multiple of 8, up to 1024 on a GPU.
    pub width: usize,
    /// Heads of `width / heads` elements: 64 or 128 on a GPU.
    pub heads: usize,
    /// Elements between the two products of the feed-forward network, a multiple of 8.
    pub hidden: usize,
    /// Added to the variance of a row.
    pub epsilon: f64,
    /// Tokens of a batch that are expected, all lengths together; `None`: the most. Tiles are chosen for so many; any
    /// number is right.
    pub expected: Option<usize>,
}

/// Weights of an [`EncoderLayer`], `[inputs, outputs]`, and a bias for each output.
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

/// The layer of BERT (arXiv 1810.04805; post-norm, arXiv 1706.03762) over a batch whose sequences have lengths of their
/// own, which are data of each run: `h = norm(x + attention(x) W_o)`, `out = norm(h + gelu(h W_up) W_down)`.
///
/// Tokens are micro-tiles along m (PIT, arXiv 2301.10936, section 2): rows of all sequences are packed on the way in
/// and sent back on the way out, and nothing in between is computed for padding. How many rows there are stays on the
/// GPU: tiles behind the last one end at once, and the attention takes the packed batch as one sequence whose queries
/// see the keys of their own. Nothing is allocated or waited for; a captured CUDA graph takes other lengths at every
/// launch.
///
/// Sums and normalisation in f32, results of each step rounded to the element type. The same bits every time, but a
/// sequence's may depend on where it lies in the batch: keys are gathered by 64 of the packed rows. A NaN or Inf in the
/// values of one sequence can reach its neighbours in the batch, as in
/// [`DynamicAttention`](crate::ops::DynamicAttention).
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::Dense;
/// use einsparse::nn::{EncoderLayer, EncoderOptions, EncoderWeights};
/// let ctx = Context::cpu();
/// let options = EncoderOptions {
///     items: 2, distance: 3, width: 8, heads: 1, hidden: 8, epsilon: 1e-5, expected: None,
/// };
/// let layer = EncoderLayer::new(&ctx, &options)?;
/// let ones = |shape: &[usize]| ctx.upload_dense(&Dense::from_fn(shape.to_vec(), |_| 1.0f32)?);
/// let (square, wide, row, long) = (ones(&[8, 8])?, ones(&[8, 24])?, ones(&[8])?, ones(&[24])?);
/// let weights = EncoderWeights {
///     qkv: [&wide, &long],
///     out: [&square, &row],
///     up: [&square, &row],
///     down: [&square, &row],
///     first_norm: [&row, &row],
///     second_norm: [&row, &row],
/// };
/// let lengths = ctx.upload_dense(&Dense::new([2], vec![1i32, 2])?)?;
/// let (x, mut out) = (ones(&[2, 3, 8])?, ctx.zeros(&[2, 3, 8])?);
/// layer.forward(&x, &lengths, &weights, &mut out, &ctx.stream()?)?;
/// let out = out.to_dense()?;
/// // Equal elements are normalised to the summand; padding is left alone.
/// assert_eq!(out.values()[..8], [1.0; 8]);
/// assert_eq!(out.values()[8..24], [0.0; 16]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct EncoderLayer<T> {
    context: Context,
    options: EncoderOptions,
    launch: Option<Launches>,
    element: std::marker::PhantomData<T>,
}

impl<T: Scalar> EncoderLayer<T> {
    /// A layer of these extents.
    ///
    /// # Errors
    /// [`Error::Operand`] for heads that do not divide the width, and extents that no kernel takes; [`Error::NoKernel`]
    /// on a GPU for another type than f16 and bf16, or heads of another width than 64 and 128; [`Error::Overflow`] for
    /// more than 131,072 rows of all sequences; [`Error::OutOfMemory`].
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
        let launch = match context.device() {
            None => None,
            Some(device) => Some(Launches::new::<T>(device, options)?),
        };
        Ok(EncoderLayer {
            context: context.clone(),
            options: *options,
            launch,
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

    /// What [`EncoderLayer::forward_first`] counts.
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

    /// `x` and `out` `[items, distance, width]`, `lengths` `[items]` (below 0 is 0, above the distance is the
    /// distance). Rows of `out` behind a sequence's length are left as they are.
    ///
    /// # Errors
    /// Tensors of another shape or context than planned and, on a GPU, addresses that are no multiples of 16 bytes;
    /// output untouched.
    pub fn forward(
        &self,
        x: &Tensor<T>,
        lengths: &Tensor<i32>,
        weights: &EncoderWeights<'_, T>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.forward_first(Self::STEPS.len(), x, lengths, weights, out, stream)
    }

    /// The first so many of the layer's launches on a GPU, to time them; all on the CPU.
    #[doc(hidden)]
    pub fn forward_first(
        &self,
        steps: usize,
        x: &Tensor<T>,
        lengths: &Tensor<i32>,
        weights: &EncoderWeights<'_, T>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.check(x, lengths, weights, out)?;
        let Some(own) = &self.launch else {
            HostLayer::new(&self.options, weights).run(x, lengths, &mut out.any);
            return Ok(());
        };
        let belongs = |device| stream.belongs_to(device);
        if !self.context.device().is_some_and(|device| belongs(device)) {
            return Err(Error::operand("stream", "belongs to another context"));
        }
        let lengths = lengths.address().unwrap_or(0);
        // SAFETY: shapes and places were checked; the tensors are borrowed for the call, and device memory is freed
        // only after the work queued on the context. Runs take turns.
        let queue = unsafe { Queue::new(stream.raw()) };
        own.turns.queue(true, stream.raw(), || {
            own.run(
                (&self.options, steps),
                [rows(x), rows(out)],
                lengths,
                weights,
                queue,
            )
        })
    }

    fn check(
        &self,
        x: &Tensor<T>,
        lengths: &Tensor<i32>,
        weights: &EncoderWeights<'_, T>,
        out: &Tensor<T>,
    ) -> Result<()> {
        let EncoderOptions {
            items,
            distance,
            width,
            hidden,
            ..
        } = self.options;
        let check = |name: &str, tensor: &Tensor<T>, shape: &[usize]| {
            tensor.check(name, &self.context, shape)
        };
        check("x", x, &[items, distance, width])?;
        check("out", out, &[items, distance, width])?;
        lengths.check("lengths", &self.context, &[items])?;
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
        Ok(())
    }
}

/// A tensor's rows.
fn rows<T: Scalar>(tensor: &Tensor<T>) -> Rows {
    Rows {
        address: tensor.address().unwrap_or(0),
        leading: tensor.leading(),
    }
}
