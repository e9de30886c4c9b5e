//! Attention of one new token of each sequence over a cache of keys and values.

use super::masks::{choose_cached, heads_of};
use super::{AttentionOptions, scale_of};
use crate::context::{Context, Prepared};
use crate::device::Stream;
use crate::error::{Error, Result, elements};
use crate::families::attention::cpu::{HostDecode, HostHeads};
use crate::families::attention::{DecodeExtents, DecodeLaunch, RawDecode};
use crate::kernel::Queue;
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// One query of each head against the keys and values that a cache holds of its sequence, as a language model asks for
/// every token that it generates: `O = softmax(scale q K^T) V`. How long sequences are is data of each run, so a
/// captured CUDA graph serves them as they grow. Neighbouring heads may share keys and values (grouped queries).
///
/// Long sequences are cut into chunks, whose sums are added in order (flash-decoding): the bits of a sequence follow
/// from its length and from what is planned here, not from other sequences, nor from time. Sums and softmax in f32,
/// weights rounded to the element type in front of the product with V; the CPU computes in f64. What lies in the cache
/// behind a length is never used, whatever it is. A NaN or Inf in V reaches the heads of its sequence that share it.
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
    context: Context,
    extents: DecodeExtents,
    scale: f64,
    launch: Prepared<DecodeLaunch>,
    element: std::marker::PhantomData<T>,
}

impl<T: Scalar> CachedAttention<T> {
    /// Attention over caches of `batch` sequences with room for `capacity` tokens each. `options` are those of one
    /// sequence, without lengths, which are data here, and without a causal limit: the query is the last token.
    ///
    /// # Errors
    /// [`Error::Operand`] for lengths, a causal limit, and options that do not fit each other; [`Error::NoKernel`] on a
    /// GPU for another type than f16 and bf16 or another `dim` than 64 and 128; [`Error::Overflow`] there for more than
    /// 16 heads that share one of keys; [`Error::OutOfMemory`].
    pub fn new(
        context: &Context,
        [batch, capacity]: [usize; 2],
        options: &AttentionOptions,
    ) -> Result<Self> {
        let (heads, key_heads) = heads_of(options, 1)?;
        if options.lengths.is_some() {
            return Err(Error::operand("lengths", "are data of each run here"));
        }
        if options.causal.is_some() {
            let reason = "hides nothing here: the query is the last token";
            return Err(Error::operand("causal", reason));
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
        let launch = context.prepared(|device| {
            let row = choose_cached::<T>(device.machine(), extents.d)?;
            DecodeLaunch::new(device, row, extents, scale)
        })?;
        Ok(CachedAttention {
            context: context.clone(),
            extents,
            scale,
            launch,
            element: std::marker::PhantomData,
        })
    }

    /// The kernel, `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.launch.as_ref().map_or("cpu", |l| l.row().name)
    }

    /// Device bytes beside the operands: sums of the chunks of sequences.
    pub fn workspace_bytes(&self) -> usize {
        self.launch.as_ref().map_or(0, DecodeLaunch::bytes)
    }

    /// Queries `[batch, heads, dim]`, keys and values `[batch, key_heads, capacity, dim]`, of which the first so many
    /// count as `lengths`, `[batch]`, says of a sequence, into the output `[batch, heads, dim]`. A length below 0 is 0,
    /// which gives zeros; above the capacity it is the capacity. On a GPU nothing is allocated and nothing waited for;
    /// the call can be captured in a CUDA graph, and reads the lengths anew at every launch of it.
    ///
    /// # Errors
    /// Tensors of another shape or context than planned; output untouched. On a GPU [`Error::Operand`] for addresses
    /// and rows that are no multiples of 16 bytes.
    pub fn forward(
        &self,
        q: &Tensor<T>,
        [k, v]: [&Tensor<T>; 2],
        lengths: &Tensor<i32>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.check([q, k, v, out], lengths)?;
        if !self.queue([q, k, v, out], None, lengths, stream)? {
            self.run_on_host([q, k, v], lengths, out);
        }
        Ok(())
    }

    /// Puts key and value of this step, `[batch, key_heads, dim]`, into the cache as the last ones of their sequence,
    /// at `lengths` - 1, and computes [`forward`](Self::forward) over the whole, in one kernel. `lengths` counts them;
    /// a sequence of length 0 gets none, and where a length is above the capacity they take the place of the last.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); cache and output untouched.
    pub fn append(
        &self,
        q: &Tensor<T>,
        new: [&Tensor<T>; 2],
        [k, v]: [&mut Tensor<T>; 2],
        lengths: &Tensor<i32>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.check([q, k, v, out], lengths)?;
        let DecodeExtents { batch, key_heads, d, .. } = self.extents;
        for (name, tensor) in [("new k", new[0]), ("new v", new[1])] {
            tensor.check(name, &self.context, &[batch, key_heads, d])?;
        }
        if self.queue([q, k, v, out], Some(new), lengths, stream)? {
            return Ok(());
        }
        for (new, cache) in new.into_iter().zip([&mut *k, &mut *v]) {
            self.put_on_host(new, cache, lengths);
        }
        self.run_on_host([q, k, v], lengths, out);
        Ok(())
    }

    /// Shapes and places.
    fn check(&self, [q, k, v, out]: [&Tensor<T>; 4], lengths: &Tensor<i32>) -> Result<()> {
        let DecodeExtents { batch, key_heads, group, capacity, d } = self.extents;
        let queries = [batch, key_heads * group, d];
        let cached = [batch, key_heads, capacity, d];
        q.check("q", &self.context, &queries)?;
        k.check("k", &self.context, &cached)?;
        v.check("v", &self.context, &cached)?;
        lengths.check("lengths", &self.context, &[batch])?;
        out.check("out", &self.context, &queries)
    }

    /// Returns whether a GPU computes it.
    fn queue(
        &self,
        [q, k, v, out]: [&Tensor<T>; 4],
        new: Option<[&Tensor<T>; 2]>,
        lengths: &Tensor<i32>,
        stream: &Stream,
    ) -> Result<bool> {
        let stream = self.context.stream_of(stream)?;
        let rows = |tensor: &Tensor<T>| (tensor.place(), tensor.leading());
        let raw = RawDecode {
            q: rows(q),
            cache: [rows(k), rows(v)],
            fresh: new.map(|new| new.map(rows)),
            lengths: lengths.place(),
            out: rows(out),
        };
        // SAFETY: shapes and places were checked; the tensors are borrowed for the call, and device memory is freed
        // only after the work queued on the context.
        let queue = unsafe { Queue::new(stream) };
        self.launch.queue(|launch| launch.run(&raw, queue))
    }

    /// How many keys count of each sequence.
    fn lengths_of(&self, lengths: &Tensor<i32>) -> Vec<usize> {
        // The storage may have a gap after the last length.
        let all = lengths.host().unwrap_or(&[]).iter();
        let all = all.take(self.extents.batch);
        all.map(|&length| usize::try_from(length).unwrap_or(0))
            .map(|length| length.min(self.extents.capacity))
            .collect()
    }

    /// Rows of this step to the ends of their sequences.
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
        let [q, k, v] = operands.map(|tensor| HostHeads::of(tensor));
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
