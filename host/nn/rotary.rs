//! Rotary position embedding of queries and keys.

use std::marker::PhantomData;

use einsparse_formats::allocate;

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Result, elements};
use crate::families::elementwise::{Layout, ROTARY_PAIRS, RotaryLaunch, cpu};
use crate::operator::Operator;
use crate::operator_of;
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// Extents of [`Rotary`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotaryOptions {
    /// Tokens per run.
    pub tokens: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key heads, and of value heads.
    pub key_heads: usize,
    /// Elements of a head: a multiple of 16.
    pub dim: usize,
    /// The angle of pair `i` grows by `base^(-2 i / dim)` from one position to the next.
    pub base: f64,
    /// Whether tokens are columns of the input.
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

/// Rotary position embedding (RoPE, arXiv 2104.09864) of queries and keys.
///
/// It splits the output of a product into queries, keys and values, and rotates queries and keys by the position of
/// their token. Elements `i` and `i + dim / 2` of a head are a pair, as in Llama. Angles are computed in f64. GPU
/// kernels exist for f32, f16 and bf16.
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
    options: RotaryOptions,
    layout: Layout,
    /// Rotation of each pair from one position to the next, in units of 2 pi.
    turns: Vec<f64>,
    operator: Operator<RotaryLaunch>,
    element: PhantomData<T>,
}

impl<T: Scalar> Rotary<T> {
    /// Creates the operation for these extents.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `dim` is not a multiple of 16 or `base` is not above 0; [`Error::NoKernel`] for other
    /// element types.
    pub fn new(context: &Context, options: &RotaryOptions) -> Result<Self> {
        let RotaryOptions { tokens, heads, key_heads, dim, base, .. } = *options;
        if !dim.is_multiple_of(ROTARY_PAIRS) || dim == 0 {
            let allowed = format!("a multiple of {ROTARY_PAIRS} above 0");
            return Err(Error::range("dim", dim, allowed));
        }
        if !base.is_finite() || base <= 0.0 {
            return Err(Error::range("base", base, "> 0 and finite"));
        }
        let all = key_heads.saturating_mul(2).saturating_add(heads);
        let width = elements("a token of x", &[all, dim])?;
        allocate::extent("elements of a head", dim as u128, 4, 0)?;
        let angle = |i: usize| base.powf(-2.0 * i as f64 / dim as f64);
        let turns: Vec<f64> = (0..dim / 2).map(|i| angle(i) / std::f64::consts::TAU).collect();
        let layout = Layout::new("x", [tokens, width], options.tokens_in_columns)?;
        let heads = [heads, key_heads];
        Ok(Rotary {
            options: *options,
            layout,
            operator: operator_of(context, |device| {
                RotaryLaunch::new(device, T::DTYPE, layout, heads, &turns)
            })?,
            turns,
            element: PhantomData,
        })
    }

    /// Returns the kernel name, or `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.operator.variant(RotaryLaunch::variant)
    }

    /// Queues the rotation.
    ///
    /// Each row of `x` contains the queries, then the keys, then the values of a token:
    /// `[tokens, (heads + 2 key_heads) * dim]`, or its transpose with `tokens_in_columns`. `lengths`, `[tokens]`,
    /// contains the length of each sequence up to and including this token, as in
    /// [`CachedAttention::append`](einsparse_core::ops::CachedAttention::append). The position of the token is this length minus
    /// one. `q` is `[tokens, heads, dim]`; `k` and `v` are `[tokens, key_heads, dim]`. [Reshaped](Tensor::reshape) to
    /// two axes, they are operands of [`SparseAttention`](einsparse_core::ops::SparseAttention).
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand has other extents than planned; [`Error::OtherContext`] if one belongs to another
    /// context; [`Error::RowStride`] if outputs have gaps.
    pub fn forward(
        &self,
        x: &Tensor<T>,
        lengths: &Tensor<i32>,
        [q, k, v]: [&mut Tensor<T>; 3],
        stream: &Stream,
    ) -> Result<()> {
        let RotaryOptions { tokens, heads, key_heads, dim, .. } = self.options;
        let run = self.operator.start(stream)?;
        let from = run.matrix("x", x.any(), &self.layout.shape())?;
        let positions = run.contiguous("lengths", lengths.any(), &[tokens])?;
        let mut out = [0; 3];
        let all = [("q", &*q, heads), ("k", &*k, key_heads), ("v", &*v, key_heads)];
        for (to, (name, tensor, heads)) in out.iter_mut().zip(all) {
            *to = run.matrix(name, tensor.any(), &[tokens, heads, dim])?.address;
            if tensor.leading() != dim {
                return Err(Error::stride(name, tensor.leading(), dim));
            }
        }
        run.queue(
            |launch, queue| {
                for (name, to) in ["q", "k", "v"].into_iter().zip(out) {
                    crate::launch::in_vectors(name, to)?;
                }
                launch.run(from, positions, out, queue)
            },
            || {
                let lengths = lengths.host().or_elsewhere("lengths")?;
                let own = (lengths, &self.turns[..], [heads, key_heads]);
                let out = [(q, "q"), (k, "k"), (v, "v")]
                    .map(|(tensor, name)| tensor.host_mut().or_elsewhere(name));
                let [q, k, v] = out;
                cpu::rotary(self.layout, &cpu::Host::of("x", x)?, own, [q?, k?, v?]);
                Ok(())
            },
        )
    }
}
