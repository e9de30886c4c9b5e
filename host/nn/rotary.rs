//! Queries, keys and values of a product, turned by position.

use std::marker::PhantomData;

use einsparse_formats::allocate;

use crate::context::{Context, Prepared};
use crate::device::Stream;
use crate::dynamic::{operand, without_gaps};
use crate::error::{Elsewhere, Error, Result, elements};
use crate::families::elementwise::{Layout, ROTARY_PAIRS, RotaryLaunch, cpu};
use crate::kernel::Queue;
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// Extents of [`Rotary`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotaryOptions {
    /// Tokens of a run.
    pub tokens: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys, and as many of values.
    pub key_heads: usize,
    /// Elements of a head: a multiple of 16.
    pub dim: usize,
    /// The angle of pair `i` grows by `base^(-2 i / dim)` from one position to the next.
    pub base: f64,
    /// Tokens are columns of the input.
    pub tokens_in_columns: bool,
}

impl Default for RotaryOptions {
    fn default() -> Self {
        RotaryOptions {
            tokens: 1,
            heads: 1,
            key_heads: 1,
            dim: 64,
            base: 10_000.0,
            tokens_in_columns: false,
        }
    }
}

/// Rotary positions (RoPE, arXiv 2104.09864) for the output of the product to queries, keys and values: takes it apart,
/// and turns queries and keys by the position of their token. Elements `i` and `i + dim / 2` of a head are a pair, as in
/// Llama. Angles are counted in f64. GPU kernels for f32, f16 and bf16.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::Dense;
/// use einsparse::nn::{Rotary, RotaryOptions};
/// let ctx = Context::cpu();
/// let options = RotaryOptions { dim: 16, ..RotaryOptions::default() };
/// let rotary = Rotary::<f32>::new(&ctx, &options)?;
/// let x = ctx.upload_dense(&Dense::from_fn(vec![1, 48], |i| if i[1] % 16 == 0 { 1.0 } else { 0.0 })?)?;
/// let lengths = ctx.upload_dense(&Dense::new([1], vec![2])?)?; // the second token of its sequence
/// let mut parts = [ctx.zeros(&[1, 1, 16])?, ctx.zeros(&[1, 1, 16])?, ctx.zeros(&[1, 1, 16])?];
/// rotary.forward(&x, &lengths, parts.each_mut(), &ctx.stream()?)?;
/// let [q, _, v] = parts;
/// let q = q.to_dense()?;
/// assert!((q.values()[0] - 1f32.cos()).abs() < 1e-6 && (q.values()[8] - 1f32.sin()).abs() < 1e-6);
/// assert_eq!(v.to_dense()?.values()[0], 1.0);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Rotary<T> {
    context: Context,
    options: RotaryOptions,
    layout: Layout,
    /// Whole turns of each pair from one position to the next.
    turns: Vec<f64>,
    launch: Prepared<RotaryLaunch>,
    element: PhantomData<T>,
}

impl<T: Scalar> Rotary<T> {
    /// For tokens of these extents.
    ///
    /// # Errors
    /// [`Error::Operand`] for heads of no multiple of 16 elements, and a base that is not above 0;
    /// [`Error::NoKernel`] for other element types.
    pub fn new(context: &Context, options: &RotaryOptions) -> Result<Self> {
        let RotaryOptions { tokens, heads, key_heads, dim, base, .. } = *options;
        if !dim.is_multiple_of(ROTARY_PAIRS) || dim == 0 {
            let reason = format!("is {dim}; heads are a multiple of {ROTARY_PAIRS} elements");
            return Err(Error::operand("dim", reason));
        }
        if !base.is_finite() || base <= 0.0 {
            return Err(Error::operand("base", format!("is {base}, not above 0")));
        }
        let all = key_heads.saturating_mul(2).saturating_add(heads);
        let width = elements("a token of x", &[all, dim])?;
        allocate::extent("elements of a head", dim as u128, 4, 0)?;
        let angle = |i: usize| base.powf(-2.0 * i as f64 / dim as f64);
        let turns: Vec<f64> = (0..dim / 2).map(|i| angle(i) / std::f64::consts::TAU).collect();
        let layout = Layout::new("x", [tokens, width], options.tokens_in_columns)?;
        let heads = [heads, key_heads];
        Ok(Rotary {
            context: context.clone(),
            options: *options,
            layout,
            launch: context
                .prepared(|device| RotaryLaunch::new(device, T::DTYPE, layout, heads, &turns))?,
            turns,
            element: PhantomData,
        })
    }

    /// Name of the kernel, `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.launch.as_ref().map_or("cpu", RotaryLaunch::variant)
    }

    /// Queues the rotation. `x` holds queries, keys and values of a token behind each other: `[tokens, (heads + 2
    /// key_heads) * dim]`, or its transpose with `tokens_in_columns`. `lengths`, `[tokens]`, says how many tokens a
    /// sequence has up to and with this one, so that its position is one less: as
    /// [`CachedAttention::append`](crate::ops::CachedAttention::append) takes them. Out come `[tokens, heads, dim]` and
    /// twice `[tokens, key_heads, dim]`; [reshaped](Tensor::reshape) to two axes they are what
    /// [`SparseAttention`](crate::ops::SparseAttention) takes.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand is not of the planned extents; [`Error::Operand`] if one lies in another context,
    /// or outputs have gaps.
    pub fn forward(
        &self,
        x: &Tensor<T>,
        lengths: &Tensor<i32>,
        [q, k, v]: [&mut Tensor<T>; 3],
        stream: &Stream,
    ) -> Result<()> {
        let RotaryOptions { tokens, heads, key_heads, dim, .. } = self.options;
        x.check("x", &self.context, &self.layout.shape())?;
        lengths.check("lengths", &self.context, &[tokens])?;
        for (name, tensor, heads) in
            [("q", &*q, heads), ("k", &*k, key_heads), ("v", &*v, key_heads)]
        {
            tensor.check(name, &self.context, &[tokens, heads, dim])?;
            if tensor.leading() != dim {
                let reason = format!(
                    "has {} elements from one row to the next, not {dim}",
                    tensor.leading()
                );
                return Err(Error::operand(name, reason));
            }
        }
        let runs = self.launch.queue(|launch| {
            let mut out = [0; 3];
            for (to, (name, tensor)) in out.iter_mut().zip([("q", &*q), ("k", &*k), ("v", &*v)]) {
                *to = operand(&self.context, tensor, stream)?.address;
                crate::launch::in_vectors(name, *to)?;
            }
            let lengths = without_gaps(&self.context, "lengths", lengths, stream)?;
            let x = operand(&self.context, x, stream)?;
            // SAFETY: operands of the planned shapes and types; they are the caller's to keep until the stream is done.
            let queue = unsafe { Queue::new(stream.raw()) };
            launch.run(x, lengths.address, out, queue)
        })?;
        if runs {
            return Ok(());
        }
        let lengths = lengths.host().or_elsewhere("lengths")?;
        let out = [(q, "q"), (k, "k"), (v, "v")]
            .map(|(tensor, name)| tensor.host_mut().or_elsewhere(name));
        let [q, k, v] = out;
        let own = (lengths, &self.turns[..], [heads, key_heads]);
        cpu::rotary(self.layout, &cpu::Host::of("x", x)?, own, [q?, k?, v?]);
        Ok(())
    }
}
