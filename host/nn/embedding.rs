//! Embedding of tokens, and greedy selection of the next token.

use std::marker::PhantomData;

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Elsewhere, Result, elements};
use crate::families::elementwise::{Layout, TokensLaunch, cpu};
use crate::operator::Operator;
use crate::operator_of;
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
    vocabulary: usize,
    layout: Layout,
    operator: Operator<TokensLaunch>,
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
            vocabulary,
            layout,
            operator: operator_of(context, |device| {
                TokensLaunch::embed(device, T::DTYPE, layout, vocabulary)
            })?,
            element: PhantomData,
        })
    }

    /// Returns the kernel name, or `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.operator.variant(TokensLaunch::variant)
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
        let layout = self.layout;
        let run = self.operator.start(stream)?;
        let rows = run.matrix("table", table.any(), &[self.vocabulary, layout.width])?;
        let chosen = run.contiguous("tokens", tokens.any(), &[layout.tokens])?;
        let to = run.matrix("out", out.any(), &layout.shape())?;
        run.queue(
            |launch, queue| launch.run_embed(rows, chosen, to, queue),
            || {
                let tokens = tokens.host().or_elsewhere("tokens")?;
                let table = (&cpu::Host::of("table", table)?, self.vocabulary);
                cpu::embed(layout, table, tokens, out.host_rows_mut("out")?);
                Ok(())
            },
        )
    }
}

/// Greedy decoding: the next token of each sequence is the index of its largest logit.
///
/// Of equal logits, the first one is selected. NaN is never selected; if all logits are NaN, the token is 0. The tokens
/// stay in device memory, so a captured step generates a token at every launch. [`Embedding`] has an example.
#[derive(Debug)]
pub struct Greedy<T> {
    layout: Layout,
    operator: Operator<TokensLaunch>,
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
            layout,
            operator: operator_of(context, |device| {
                TokensLaunch::greedy(device, T::DTYPE, layout)
            })?,
            element: PhantomData,
        })
    }

    /// Returns the kernel name, or `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.operator.variant(TokensLaunch::variant)
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
        let layout = self.layout;
        let run = self.operator.start(stream)?;
        let from = run.matrix("logits", logits.any(), &layout.shape())?;
        let to = run.contiguous("tokens", tokens.any(), &[layout.tokens])?;
        let grown = match &lengths {
            Some(lengths) => run.contiguous("lengths", lengths.any(), &[layout.tokens])?,
            None => 0,
        };
        run.queue(
            |launch, queue| launch.run_greedy(from, [to, grown], queue),
            || {
                let to = tokens.host_mut().or_elsewhere("tokens")?;
                cpu::greedy(layout, &cpu::Host::of("logits", logits)?, to);
                if let Some(lengths) = lengths {
                    let lengths = lengths.host_mut().or_elsewhere("lengths")?;
                    lengths.iter_mut().for_each(|length| *length = length.wrapping_add(1));
                }
                Ok(())
            },
        )
    }
}
