//! Embedding of tokens, and greedy selection of the next token.

use std::marker::PhantomData;

use crate::context::{Context, Prepared};
use crate::device::Stream;
use crate::dynamic::{operand, without_gaps};
use crate::error::{Elsewhere, Result, elements};
use crate::families::elementwise::{Layout, TokensLaunch, cpu};
use crate::kernel::Queue;
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// Embedding lookup: copies one row of a table per token.
///
/// Tokens are read at each run. A token outside of the table yields zeros. GPU kernels exist for f32, f16 and bf16.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::Dense;
/// use einsparse::nn::{Embedding, Greedy};
/// let ctx = Context::cpu();
/// let stream = ctx.stream()?;
/// let embedding = Embedding::<f32>::new(&ctx, [2, 3], 1, false)?;
/// let table = ctx.upload_dense(&Dense::new([2, 3], vec![1.0, 2.0, 3.0, 4.0, 6.0, 5.0])?)?;
/// let mut tokens = ctx.upload_dense(&Dense::new([1], vec![1])?)?;
/// let mut x = ctx.zeros(&[1, 3])?;
/// embedding.forward(&table, &tokens, &mut x, &stream)?;
/// assert_eq!(x.to_dense()?.values(), [4.0, 6.0, 5.0]);
/// // The number of the largest is the next token.
/// Greedy::<f32>::new(&ctx, [1, 3], false)?.forward(&x, &mut tokens, None, &stream)?;
/// assert_eq!(tokens.to_dense()?.values(), [1]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Embedding<T> {
    context: Context,
    vocabulary: usize,
    layout: Layout,
    launch: Prepared<TokensLaunch>,
    element: PhantomData<T>,
}

impl<T: Scalar> Embedding<T> {
    /// Creates the operation for a table `[vocabulary, width]` and a fixed number of tokens per run.
    ///
    /// # Errors
    /// Except on [`Context::unchecked_cpu`]: [`Error::Overflow`](einsparse_core::Error::Overflow) for more than 2^31 - 1 rows,
    /// [`Error::NoKernel`](einsparse_core::Error::NoKernel) for other element types.
    pub fn new(
        context: &Context,
        [vocabulary, width]: [usize; 2],
        tokens: usize,
        tokens_in_columns: bool,
    ) -> Result<Self> {
        elements("table", &[vocabulary, width])?;
        let layout = Layout::new("out", [tokens, width], tokens_in_columns)?;
        Ok(Embedding {
            context: context.clone(),
            vocabulary,
            layout,
            launch: context
                .prepared(|device| TokensLaunch::embed(device, T::DTYPE, layout, vocabulary))?,
            element: PhantomData,
        })
    }

    /// Returns the kernel name, or `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.launch.as_ref().map_or("cpu", TokensLaunch::variant)
    }

    /// Queues the lookup. `tokens` is `[tokens]`. `out` is `[tokens, width]`, or its transpose with
    /// `tokens_in_columns`.
    ///
    /// # Errors
    /// [`Error::Shape`](einsparse_core::Error::Shape) if an operand has other extents than planned;
    /// [`Error::OtherContext`](einsparse_core::Error::OtherContext) if one belongs to another context.
    pub fn forward(
        &self,
        table: &Tensor<T>,
        tokens: &Tensor<i32>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let (context, layout) = (&self.context, self.layout);
        table.check("table", context, &[self.vocabulary, layout.width])?;
        tokens.check("tokens", context, &[layout.tokens])?;
        out.check("out", context, &layout.shape())?;
        let runs = self.launch.queue(|launch| {
            let tokens = without_gaps(context, "tokens", tokens, stream)?.address;
            let [table, out] = [operand(context, table, stream)?, operand(context, out, stream)?];
            // SAFETY: operands have the planned shapes and types; the caller keeps them until the stream is done.
            let queue = unsafe { Queue::new(stream.raw()) };
            launch.run_embed(table, tokens, out, queue)
        })?;
        if runs {
            return Ok(());
        }
        let tokens = tokens.host().or_elsewhere("tokens")?;
        let leading = out.leading();
        let to = out.host_mut().or_elsewhere("out")?;
        let table = (&cpu::Host::of("table", table)?, self.vocabulary);
        cpu::embed(layout, table, tokens, (to, leading));
        Ok(())
    }
}

/// Greedy decoding: the next token of each sequence is the index of its largest logit.
///
/// Of equal logits, the first one is selected. NaN is never selected; if all logits are NaN, the token is 0. The tokens
/// stay in device memory, so a captured step generates a token at every launch. [`Embedding`] has an example.
#[derive(Debug)]
pub struct Greedy<T> {
    context: Context,
    layout: Layout,
    launch: Prepared<TokensLaunch>,
    element: PhantomData<T>,
}

impl<T: Scalar> Greedy<T> {
    /// Creates the operation for logits `[tokens, vocabulary]`, or their transpose with `tokens_in_columns`.
    ///
    /// # Errors
    /// Except on [`Context::unchecked_cpu`]: [`Error::Overflow`](einsparse_core::Error::Overflow) for more than 2^31 - 1 tokens
    /// or logits of a token, [`Error::NoKernel`](einsparse_core::Error::NoKernel) for other element types.
    pub fn new(
        context: &Context,
        [tokens, vocabulary]: [usize; 2],
        tokens_in_columns: bool,
    ) -> Result<Self> {
        let layout = Layout::new("logits", [tokens, vocabulary], tokens_in_columns)?;
        Ok(Greedy {
            context: context.clone(),
            layout,
            launch: context.prepared(|device| TokensLaunch::greedy(device, T::DTYPE, layout))?,
            element: PhantomData,
        })
    }

    /// Returns the kernel name, or `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.launch.as_ref().map_or("cpu", TokensLaunch::variant)
    }

    /// Queues the selection. `tokens` is `[tokens]`. If `lengths`, `[tokens]`, is given, each length is incremented by
    /// one. [`Rotary`](super::Rotary) and [`CachedAttention`](einsparse_core::ops::CachedAttention) read these lengths in the
    /// next step.
    ///
    /// # Errors
    /// [`Error::Shape`](einsparse_core::Error::Shape) if an operand has other extents than planned;
    /// [`Error::OtherContext`](einsparse_core::Error::OtherContext) if one belongs to another context.
    pub fn forward(
        &self,
        logits: &Tensor<T>,
        tokens: &mut Tensor<i32>,
        lengths: Option<&mut Tensor<i32>>,
        stream: &Stream,
    ) -> Result<()> {
        let (context, layout) = (&self.context, self.layout);
        logits.check("logits", context, &layout.shape())?;
        tokens.check("tokens", context, &[layout.tokens])?;
        if let Some(lengths) = &lengths {
            lengths.check("lengths", context, &[layout.tokens])?;
        }
        let runs = self.launch.queue(|launch| {
            let at = |name, tensor: &Tensor<i32>| {
                without_gaps(context, name, tensor, stream).map(|matrix| matrix.address)
            };
            let lengths = lengths.as_deref().map(|lengths| at("lengths", lengths)).transpose()?;
            let words = [at("tokens", tokens)?, lengths.unwrap_or(0)];
            let logits = operand(context, logits, stream)?;
            // SAFETY: operands have the planned shapes and types; the caller keeps them until the stream is done.
            let queue = unsafe { Queue::new(stream.raw()) };
            launch.run_greedy(logits, words, queue)
        })?;
        if runs {
            return Ok(());
        }
        let to = tokens.host_mut().or_elsewhere("tokens")?;
        cpu::greedy(layout, &cpu::Host::of("logits", logits)?, to);
        if let Some(lengths) = lengths {
            let lengths = lengths.host_mut().or_elsewhere("lengths")?;
            lengths.iter_mut().for_each(|length| *length = length.wrapping_add(1));
        }
        Ok(())
    }
}
