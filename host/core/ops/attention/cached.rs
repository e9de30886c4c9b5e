//! Attention of one new token per sequence over a cache of keys and values.

use super::masks::{choose_cached, heads_of};
use super::{AttentionOptions, scale_of};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result, elements};
use crate::families::attention::cpu::{HostDecode, HostHeads};
use crate::families::attention::{DecodeExtents, DecodeLaunch, RawDecode};
use crate::operator::{Operator, Run};
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// `O = softmax(scale q K^T) V` for one query of each head, over the cached keys and values of its sequence. A language
/// model computes it for every token that it generates. The lengths of the sequences are data of each run, so a
/// captured CUDA graph remains valid as sequences grow. Adjacent heads may share keys and values (grouped queries).
///
/// Long sequences are split into chunks whose sums are added in order (flash-decoding). The output bits of a sequence
/// depend only on its length and on the planned options. They do not depend on other sequences or on timing. Sums and
/// softmax are in f32. The weights are rounded to the element type before the product with V. The CPU computes in f64.
/// Cached data past a length is never used, whatever its values. A NaN or Inf in V reaches the heads of its sequence
/// that share it.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Dense, f16};
/// use einsparse::ops::{AttentionOptions, CachedAttention};
/// let ctx = Context::cpu();
/// // One sequence of up to 4 tokens, one head of 64 elements.
/// let options = AttentionOptions { heads: 1, dim: 64, scale: Some(1.0 / 64.0), ..AttentionOptions::default() };
/// let attention = CachedAttention::new(&ctx, [1, 4], &options)?;
/// let one = |x: f32| ctx.upload_dense(&Dense::from_fn([1, 1, 64], |_| f16::from_f32(x))?);
/// let [mut k, mut v] = [ctx.zeros(&[1, 1, 4, 64])?, ctx.zeros(&[1, 1, 4, 64])?];
/// let mut out = ctx.zeros(&[1, 1, 64])?;
/// let stream = ctx.stream()?;
/// for (length, key, value, wanted) in [(1, 0.0, 4.0, 4.0), (2, 3f32.ln(), 8.0, 7.0)] {
///     // The new token counts.
///     let lengths = ctx.upload_dense(&Dense::new([1], vec![length])?)?;
///     let new = [one(key)?, one(value)?];
///     attention.append(&one(1.0)?, new.each_ref(), [&mut k, &mut v], &lengths, &mut out, &stream)?;
///     stream.synchronize()?;
///     assert!((out.to_dense()?.values()[0].to_f32() - wanted).abs() < 1e-2);
/// }
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct CachedAttention<T> {
    extents: DecodeExtents,
    scale: f64,
    operator: Operator<DecodeLaunch>,
    element: std::marker::PhantomData<T>,
}

impl<T: Scalar> CachedAttention<T> {
    /// Plans attention over caches of `batch` sequences with space for `capacity` tokens each. `options` describe one
    /// sequence. They must not set lengths, which are data here, nor a causal limit: the query is the last token.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for lengths, a causal limit, and inconsistent options; [`Error::OutOfMemory`]. On a GPU
    /// also [`Error::NoKernel`] for a type other than f16 and bf16 or a `dim` other than 64 and 128;
    /// [`Error::Overflow`] if more than 16 heads share a head of keys.
    pub fn new(
        context: &Context,
        [batch, capacity]: [usize; 2],
        options: &AttentionOptions,
    ) -> Result<Self> {
        let (heads, key_heads) = heads_of(options, 1)?;
        if options.lengths.is_some() {
            return Err(Error::range("lengths", "Some", "None: lengths are data of each run"));
        }
        if let Some(causal) = options.causal {
            let allowed = "None: the query is the last token, which sees all keys";
            return Err(Error::range("causal", format!("Some({causal})"), allowed));
        }
        let scale = scale_of(options)?;
        let extents = DecodeExtents {
            batch,
            key_heads,
            group: heads.checked_div(key_heads).unwrap_or(0),
            capacity,
            d: options.dim,
        };
        elements("queries", &[batch, heads, options.dim])?;
        elements("keys", &[batch, key_heads, capacity, options.dim])?;
        let operator = Operator::new(context, |device| {
            let row = choose_cached::<T>(device.machine(), extents.d)?;
            DecodeLaunch::new(device, row, extents, scale)
        })?;
        Ok(CachedAttention { extents, scale, operator, element: std::marker::PhantomData })
    }

    /// Returns the name of the kernel; `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.operator.variant(|launch| launch.row().name)
    }

    /// Returns the device memory in bytes, operands excluded: sums of the chunks of sequences.
    pub fn workspace_bytes(&self) -> usize {
        self.operator.bytes(DecodeLaunch::bytes)
    }

    /// Computes the output `[batch, heads, dim]` from queries `[batch, heads, dim]`, and keys and values
    /// `[batch, key_heads, capacity, dim]`. `lengths`, `[batch]`, is the number of tokens of each sequence. A length
    /// below 0 counts as 0, which gives zeros; a length above the capacity counts as the capacity. On a GPU, the call
    /// neither allocates nor waits. It can be captured in a CUDA graph, each launch of which reads the lengths again.
    ///
    /// # Errors
    /// Fails for tensors of another shape or context than planned; on a GPU also with [`Error::Alignment`] for
    /// addresses and row strides that are not multiples of 16 bytes. The output is then unchanged.
    pub fn forward(
        &self,
        q: &Tensor<T>,
        [k, v]: [&Tensor<T>; 2],
        lengths: &Tensor<i32>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        let raw = self.operands(&run, [q, k, v, out], lengths)?;
        run.queue(
            |launch, queue| launch.run(&raw, queue),
            || {
                self.run_on_host([q, k, v], lengths, out);
                Ok(())
            },
        )
    }

    /// Appends the keys and values of this step, `[batch, key_heads, dim]`, to the cache at index `lengths` - 1, then
    /// computes [`forward`](Self::forward), in one kernel. `lengths` includes the new tokens. Nothing is appended to a
    /// sequence of length 0. If a length is above the capacity, the last token is overwritten.
    ///
    /// # Errors
    /// See [`forward`](Self::forward). Cache and output are then unchanged.
    pub fn append(
        &self,
        q: &Tensor<T>,
        new: [&Tensor<T>; 2],
        [k, v]: [&mut Tensor<T>; 2],
        lengths: &Tensor<i32>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let DecodeExtents { batch, key_heads, d, .. } = self.extents;
        let run = self.operator.start(stream)?;
        let mut raw = self.operands(&run, [q, k, v, out], lengths)?;
        let [new_k, new_v] = new;
        for (name, tensor) in [("new k", new_k), ("new v", new_v)] {
            run.check(name, tensor.any(), &[batch, key_heads, d])?;
        }
        raw.fresh = Some(new.map(|tensor| (tensor.place(), tensor.leading())));
        run.queue(
            |launch, queue| launch.run(&raw, queue),
            || {
                for (new, cache) in new.into_iter().zip([&mut *k, &mut *v]) {
                    self.put_on_host(new, cache, lengths);
                }
                self.run_on_host([q, k, v], lengths, out);
                Ok(())
            },
        )
    }

    /// Validates the tensors of a run and returns their addresses and strides.
    fn operands(
        &self,
        run: &Run<'_, DecodeLaunch>,
        [q, k, v, out]: [&Tensor<T>; 4],
        lengths: &Tensor<i32>,
    ) -> Result<RawDecode> {
        let DecodeExtents { batch, key_heads, group, capacity, d } = self.extents;
        let queries = [batch, key_heads * group, d];
        let cached = [batch, key_heads, capacity, d];
        Ok(RawDecode {
            q: run.rows("q", q.any(), &queries)?,
            cache: [run.rows("k", k.any(), &cached)?, run.rows("v", v.any(), &cached)?],
            fresh: None,
            lengths: run.matrix("lengths", lengths.any(), &[batch])?.address,
            out: run.rows("out", out.any(), &queries)?,
        })
    }

    fn lengths_of(&self, lengths: &Tensor<i32>) -> Vec<usize> {
        // The storage may have a gap after the last length.
        let all = lengths.host().unwrap_or(&[]).iter();
        let all = all.take(self.extents.batch);
        all.map(|&length| usize::try_from(length).unwrap_or(0))
            .map(|length| length.min(self.extents.capacity))
            .collect()
    }

    /// Copies the rows of this step to the ends of their sequences.
    fn put_on_host(&self, new: &Tensor<T>, cache: &mut Tensor<T>, lengths: &Tensor<i32>) {
        let DecodeExtents { key_heads, capacity, d, .. } = self.extents;
        let (from, to) = (new.leading(), cache.leading());
        let (Some(new), Some(cache)) = (new.host(), cache.host_mut()) else {
            return;
        };
        for (sequence, length) in self.lengths_of(lengths).into_iter().enumerate() {
            let Some(last) = length.checked_sub(1) else {
                continue;
            };
            for pair in sequence * key_heads..(sequence + 1) * key_heads {
                let row = &new[pair * from..][..d];
                cache[(pair * capacity + last) * to..][..d].copy_from_slice(row);
            }
        }
    }

    fn run_on_host(&self, operands: [&Tensor<T>; 3], lengths: &Tensor<i32>, out: &mut Tensor<T>) {
        let [q, k, v] = operands.map(|tensor| HostHeads::of(tensor.any()));
        let decode = HostDecode {
            q,
            k,
            v,
            lengths: self.lengths_of(lengths),
            extents: self.extents,
            scale: self.scale,
        };
        decode.run(&mut out.any);
    }
}
