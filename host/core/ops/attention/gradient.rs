//! Gradient of attention at the entries of a mask, composed of separate sparse products.

mod group;

use einsparse_formats::CsrPattern;

use super::{AttentionMask, AttentionOptions, Masked};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::families::attention::AttentionExtents;
use crate::families::attention::cpu::HostHeads;
use crate::families::attention::queries::Seen;
use crate::operator::Operator;
use crate::registry::Scalar;
use crate::tensor::{SparseTensor, Tensor};
use group::{Group, HeadOperands, Heads};

/// Gradients of the queries, keys and values of [`SparseAttention`](super::SparseAttention), from the gradient of its
/// output, for many heads. Every step is a separate sparse kernel at the mask's entries. P are the weights and S the
/// scores. dK and dV are summed over the heads that share keys.
///
/// ```text
/// P = softmax(scale Q K^T)
/// dV = P^T dO    dP = dO V^T    dS = P (dP - sum P dP)    dQ = scale dS K    dK = scale dS^T Q
/// ```
///
/// The weights are recomputed, so the forward pass stores nothing for the gradient. P and dS of all heads are stored in
/// the element type: 2 values per entry and head. They are rounded to it, as in attention by separate products and
/// unlike a fused kernel. Sums are in f32. If heads share keys, dK and dV are rounded after each head. Masks are those
/// of the forward pass. Masks of blocks and of a known structure are expanded to single entries. A GPU supports f32,
/// f16 and bf16, and each `dim` that the products support. In f16 and bf16, the products of a large mask that fills
/// blocks run on Tensor Cores. Queries, keys and gradients must then be finite, because hidden elements of a block are
/// multiplied by zeros. Results are bitwise deterministic.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Csr, CsrPattern, Dense, f16};
/// use einsparse::ops::{AttentionGradient, AttentionOptions};
/// let ctx = Context::cpu();
/// // Each query has one key: its weight is 1 whatever the score, so the values' gradient is the output's.
/// let mask = Csr::new(CsrPattern::new(2, 2, vec![0, 1, 2], vec![1, 0])?, vec![f16::ONE; 2])?;
/// let options = AttentionOptions { heads: 1, dim: 64, ..AttentionOptions::default() };
/// let mut gradient = AttentionGradient::new(&ctx, &[&ctx.upload(mask)?], &options)?;
/// let tensor = |values: [f32; 2]| ctx.upload_dense(&Dense::from_fn([1, 2, 64], |i| f16::from_f32(values[i[1]]))?);
/// let (q, k, v, upstream) = (tensor([1.0, 2.0])?, tensor([3.0, 4.0])?, tensor([5.0, 6.0])?, tensor([7.0, 8.0])?);
/// let [mut dq, mut dk, mut dv] = [tensor([0.0; 2])?, tensor([0.0; 2])?, tensor([0.0; 2])?];
/// let stream = ctx.stream()?;
/// gradient.backward([&q, &k, &v], &upstream, [&mut dq, &mut dk, &mut dv], &stream)?;
/// stream.synchronize()?;
/// assert_eq!(dv.to_dense()?.get(&[0, 0, 63]), Some(f16::from_f32(8.0)));
/// assert_eq!(dq.to_dense()?.values(), [f16::ZERO; 128]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct AttentionGradient<T: Scalar> {
    own: Masked,
    /// Adjacent heads with the same mask. Runs share the weights of the groups.
    operator: Operator<Vec<Group<T>>>,
}

impl<T: Scalar> AttentionGradient<T> {
    /// Plans the gradient of attention at the entries of `masks`, which are those of
    /// [`SparseAttention::new`](super::SparseAttention::new).
    ///
    /// # Errors
    /// [`Error::StorageFormat`] or [`Error::OtherContext`] for masks of other formats or contexts;
    /// [`Error::OutOfRange`] for inconsistent options and a scale that is not a positive number; [`Error::Shape`] for
    /// masks of different shapes; [`Error::NoKernel`] for a type without a softmax; [`Error::Overflow`] for more than
    /// 2^32 entries of a mask.
    pub fn new(
        context: &Context,
        masks: &[&SparseTensor<T>],
        options: &AttentionOptions,
    ) -> Result<Self> {
        Self::planned(context, Masked::at_entries(context, masks, options)?)
    }

    /// Plans the gradient of attention of `m` queries and `n` keys at the entries of masks of a known structure. The
    /// masks are those of [`SparseAttention::structured`](super::SparseAttention::structured). Their entries are
    /// listed.
    ///
    /// # Errors
    /// [`Error::InvalidIndex`] for masks with an index out of range; [`Error::OutOfRange`] for inconsistent options;
    /// see also [`AttentionGradient::new`].
    pub fn structured(
        context: &Context,
        shape: [usize; 2],
        masks: &[AttentionMask],
        options: &AttentionOptions,
    ) -> Result<Self> {
        Self::planned(context, Masked::structured(shape, masks, options)?)
    }

    /// Calls `make` again for the shadow: masks are stored in host memory, also for a GPU.
    fn planned(context: &Context, own: Masked) -> Result<Self> {
        let operator = Operator::new(context, |device| match own.extents.d {
            0 => Ok(Vec::new()),
            _ => groups(&Context::of(device), &own),
        })?;
        Ok(AttentionGradient { operator: operator.serialized()?, own })
    }

    /// Returns the device memory in bytes, operands excluded: patterns, weights, slopes, and the memory of the plans.
    pub fn workspace_bytes(&self) -> usize {
        self.operator.bytes(|groups| groups.iter().map(Group::bytes).sum())
    }

    /// Returns the names of the kernels of the scores, the softmax, its gradient, dQ, and dK and dV; `cpu` on a CPU
    /// context.
    pub fn variants(&self) -> [&'static str; 5] {
        let first = self.operator.on_gpu().and_then(|groups| groups.first());
        first.map_or(["cpu"; 5], Group::variants)
    }

    /// Computes the gradients. Queries and `dy`, the gradient of the output, are `[heads, m, dim]`; keys and values are
    /// `[key_heads, n, dim]`. The gradients have the shapes of their operands. On a GPU, the call neither allocates nor
    /// waits. The caller must order runs on several streams.
    ///
    /// # Errors
    /// Fails for tensors of another shape or context than planned. The outputs are then unchanged.
    pub fn backward(
        &mut self,
        [q, k, v]: [&Tensor<T>; 3],
        dy: &Tensor<T>,
        [dq, dk, dv]: [&mut Tensor<T>; 3],
        stream: &Stream,
    ) -> Result<()> {
        let (queries, keys) = self.own.extents.shapes();
        let run = self.operator.start(stream)?;
        for (name, tensor, shape) in [
            ("q", q, queries),
            ("k", k, keys),
            ("v", v, keys),
            ("dy", dy, queries),
            ("dq", &*dq, queries),
            ("dk", &*dk, keys),
            ("dv", &*dv, keys),
        ] {
            run.check(name, tensor.any(), &shape)?;
        }
        let operands = HeadOperands {
            inputs: [q, k, v].map(|t| Heads::of(t)),
            upstream: Heads::of(dy),
            outputs: [&*dq, &*dk, &*dv].map(|t| Heads::of(t)),
            ratio: queries[0] / keys[0].max(1),
            scale: self.own.scale,
        };
        run.queue(
            |groups, queue| groups.iter().try_for_each(|group| group.queue(&operands, queue)),
            || {
                let operands = [q, k, v].map(|tensor| HostHeads::of(tensor.any()));
                let gradients = [dq, dk, dv].map(|t| &mut t.any);
                self.own.on_host(operands).gradient(&HostHeads::of(dy.any()), gradients);
                Ok(())
            },
        )
    }

    /// [`backward`](Self::backward) for heads stored side by side in rows, as projections store them. `qkv`,
    /// `[m, (heads + 2 key_heads) dim]`, contains queries, keys and values; `dqkv` receives their gradients in the same
    /// layout. `dy` is `[m, heads dim]`. The numbers of keys and queries must be equal.
    ///
    /// # Errors
    /// See [`backward`](Self::backward); [`Error::Shape`] for a mask that is not square.
    pub fn backward_in_rows(
        &mut self,
        qkv: &Tensor<T>,
        dy: &Tensor<T>,
        dqkv: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let AttentionExtents { heads, key_heads, m, n, d } = self.own.extents;
        if m != n {
            let found = format!("{m} x {n}");
            return Err(Error::shape(
                "mask",
                found,
                "rows hold a query and a key each: m must be n",
            ));
        }
        let width = (heads + 2 * key_heads) * d;
        let run = self.operator.start(stream)?;
        run.check("qkv", qkv.any(), &[m, width])?;
        run.check("dqkv", dqkv.any(), &[m, width])?;
        run.check("dy", dy.any(), &[m, heads * d])?;
        let first = [0, heads, heads + key_heads];
        let parts = |of: &Tensor<T>| first.map(|at| Heads::in_rows(of, at * d, d));
        let operands = HeadOperands {
            inputs: parts(qkv),
            upstream: Heads::in_rows(dy, 0, d),
            outputs: parts(dqkv),
            ratio: heads / key_heads.max(1),
            scale: self.own.scale,
        };
        run.queue(
            |groups, queue| groups.iter().try_for_each(|group| group.queue(&operands, queue)),
            || {
                let all = HostHeads::in_rows(qkv.any(), d);
                let part = |at: usize, heads: usize| HostHeads {
                    values: all.values[at * m * d..][..heads * m * d].to_vec().into(),
                    leading: d,
                };
                let [q, k, v] = first;
                let operands = [part(q, heads), part(k, key_heads), part(v, key_heads)];
                let own = self.own.on_host(operands);
                own.gradient_in_rows(&HostHeads::in_rows(dy.any(), d), &mut dqkv.any);
                Ok(())
            },
        )
    }
}

/// Plans the steps of each group of adjacent heads with the same mask.
fn groups<T: Scalar>(context: &Context, own: &Masked) -> Result<Vec<Group<T>>> {
    let mut groups = Vec::new();
    let mut first = 0;
    for heads in own.of_head.chunk_by(|a, b| a == b) {
        let pattern = entries(own.masks[heads[0]].seen(own.extents))?;
        let end = first + heads.len();
        groups.push(Group::new(context, own.extents, pattern, first..end)?);
        first = end;
    }
    Ok(groups)
}

/// Lists the visible entries of a mask.
fn entries(mask: Seen<'_>) -> Result<CsrPattern> {
    let [m, n] = mask.shape();
    // Entries are counted before they are listed: a mask of a known structure may have any number.
    let mut offsets = vec![0];
    let mut count = 0;
    for row in 0..m {
        count += mask.keys(row).len();
        offsets.push(u32::try_from(count).map_err(|_| Error::Overflow {
            what: "entries of a mask".into(),
            value: count as u128,
            limit: u128::from(u32::MAX),
        })?);
    }
    let mut columns = Vec::with_capacity(count);
    for row in 0..m {
        columns.extend(mask.keys(row).into_iter().map(|key| key as u32));
    }
    Ok(CsrPattern::new(m, n, offsets, columns)?)
}
