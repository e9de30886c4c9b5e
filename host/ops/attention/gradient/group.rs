//! Heads with the same mask on a GPU: the plans of all steps, and what lies between them.

use einsparse_formats::{Csr, CsrPattern};

use crate::context::Context;
use crate::device::Stream;
use crate::error::Result;
use crate::families::attention::AttentionExtents;
use crate::families::softmax::RawSoftmax;
use crate::launch::{RawSddmm, RawSpmm};
use crate::ops::{SoftmaxOptions, SparseSoftmax};
use crate::plan::Plan;
use crate::registry::Scalar;
use crate::tensor::{SparseTensor, Tensor};

/// Neighbouring heads with the same mask.
#[derive(Debug)]
pub(super) struct Group<T: Scalar> {
    first: usize,
    heads: usize,
    pattern: SparseTensor<T>,
    sampled: Plan<T>,
    softmax: SparseSoftmax<T>,
    /// dQ from dS and K; dK and dV from dS, Q and P, dO; the same added to what is there.
    products: [Plan<T>; 3],
    /// One launch serves all heads: each has keys of its own.
    batched: bool,
    /// Of all heads, `[heads, slots]`: P, and dP, which becomes dS.
    weights: Tensor<T>,
    slopes: Tensor<T>,
}

/// A tensor of heads on a GPU.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    address: u64,
    /// Elements from one row to the next.
    leading: usize,
    /// Bytes of a row with the gap behind.
    row: u64,
}

impl Heads {
    pub(super) fn of<T: Scalar>(tensor: &Tensor<T>) -> Heads {
        Heads {
            address: tensor.address().unwrap_or(0),
            leading: tensor.leading(),
            row: (tensor.leading() * size_of::<T>()) as u64,
        }
    }

    /// The first of these rows.
    fn at(&self, row: usize) -> u64 {
        self.address + row as u64 * self.row
    }
}

/// All tensors of a run.
pub(super) struct Places {
    pub inputs: [Heads; 3],
    pub upstream: Heads,
    pub outputs: [Heads; 3],
    /// Heads of queries for each of keys.
    pub ratio: usize,
}

impl<T: Scalar> Group<T> {
    pub(super) fn new(
        context: &Context,
        extents: AttentionExtents,
        pattern: CsrPattern,
        (first, heads): (usize, usize),
    ) -> Result<Self> {
        let AttentionExtents { m, n, d, .. } = extents;
        let slots = pattern.columns().len();
        let scores = context.upload(Csr::new(pattern, vec![T::ZERO; slots])?)?;
        let batched = extents.heads == extents.key_heads;
        // Only the shapes are planned with.
        let of = |rows: usize| match batched {
            true => context.zeros::<T>(&[heads, rows, d]),
            false => context.zeros::<T>(&[rows, d]),
        };
        let (queries, keys) = (of(m)?, of(n)?);
        let plan = |text: &str, b: &Tensor<T>| {
            let text = match batched {
                true => text.to_owned(),
                false => text.replace("h,", ""),
            };
            let operands = [("S", (&scores).into()), ("X", b.into())];
            context.plan(&text).operands(&operands).build()
        };
        let products = [
            plan("Y[h,m,d] = S[m,n] * X[h,n,d]", &keys)?,
            plan("Y[h,n,d] = S[m,n] * X[h,m,d]", &queries)?,
            plan("Y[h,n,d] += S[m,n] * X[h,m,d]", &queries)?,
        ];
        drop((queries, keys));
        let (x, y) = (context.zeros::<T>(&[m, d])?, context.zeros::<T>(&[n, d])?);
        let operands = [("X", (&x).into()), ("Y", (&y).into())];
        let sampled = context
            .plan("S[m,n] = X[m,d] * Y[n,d]")
            .operands(&operands)
            .sparse_output(&scores)
            .build()?;
        let options = SoftmaxOptions {
            heads,
            ..SoftmaxOptions::default()
        };
        let softmax = SparseSoftmax::new(context, &scores, &options)?;
        let stride = slots.next_multiple_of(8).max(8);
        let values = || Tensor::new(context.device(), &[heads, slots], stride);
        Ok(Group {
            first,
            heads,
            sampled,
            softmax,
            products,
            batched,
            weights: values()?,
            slopes: values()?,
            pattern: scores,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        let values = 2 * self.heads * self.weights.leading() * size_of::<T>();
        let pattern = self.pattern.pattern().slots() * (4 + size_of::<T>());
        let plans: usize = self.products.iter().map(Plan::workspace_bytes).sum();
        values + pattern + plans + self.sampled.workspace_bytes() + self.softmax.workspace_bytes()
    }

    /// All steps of these heads.
    pub(super) fn queue(
        &self,
        places: &Places,
        extents: AttentionExtents,
        scale: f64,
        stream: &Stream,
    ) -> Result<()> {
        self.sample(places, extents, scale, stream)?;
        let (weights, slopes) = (Heads::of(&self.weights), Heads::of(&self.slopes));
        let forward = RawSoftmax {
            input: weights.address,
            upstream: 0,
            output: weights.address,
            stride: weights.leading,
        };
        let backward = RawSoftmax {
            upstream: slopes.address,
            output: slopes.address,
            ..forward
        };
        // SAFETY: `[heads, slots]` of the pattern, owned by self.
        unsafe {
            self.softmax.run_raw(&forward, stream.raw())?;
            self.softmax.run_raw(&backward, stream.raw())?;
        }
        self.multiply(places, extents, scale, stream)
    }

    /// Scaled scores and the gradients of the weights.
    fn sample(
        &self,
        places: &Places,
        AttentionExtents { m, n, .. }: AttentionExtents,
        scale: f64,
        stream: &Stream,
    ) -> Result<()> {
        let (weights, slopes) = (Heads::of(&self.weights), Heads::of(&self.slopes));
        let [q, k, v] = places.inputs;
        let columns = self.pattern.columns_address().unwrap_or(0);
        for own in 0..self.heads {
            let head = self.first + own;
            for (x, y, to, alpha) in [(q, k, weights, scale), (places.upstream, v, slopes, 1.0)] {
                let raw = RawSddmm {
                    columns,
                    x: x.at(head * m),
                    ldx: x.leading,
                    y: y.at(head / places.ratio * n),
                    ldy: y.leading,
                    mask: 0,
                    values: to.at(own),
                    alpha,
                };
                // SAFETY: shapes and places of the operands were checked, the rest is owned by self.
                unsafe { self.sampled.run_raw(&raw, stream.raw())? };
            }
        }
        Ok(())
    }

    /// Gradients of queries, keys and values.
    fn multiply(
        &self,
        places: &Places,
        AttentionExtents { m, n, .. }: AttentionExtents,
        scale: f64,
        stream: &Stream,
    ) -> Result<()> {
        let (weights, slopes) = (Heads::of(&self.weights), Heads::of(&self.slopes));
        let [q, k, _] = places.inputs;
        let columns = self.pattern.columns_address().unwrap_or(0);
        let [dq, dk, dv] = places.outputs;
        let step = if self.batched { self.heads } else { 1 };
        for own in (0..self.heads).step_by(step) {
            let head = self.first + own;
            let key_row = head / places.ratio * n;
            let onto = usize::from(!head.is_multiple_of(places.ratio));
            let of_keys = &self.products[1 + onto];
            for (plan, values, b, c, alpha) in [
                (
                    &self.products[0],
                    slopes,
                    (k, key_row),
                    (dq, head * m),
                    scale,
                ),
                (of_keys, slopes, (q, head * m), (dk, key_row), scale),
                (
                    of_keys,
                    weights,
                    (places.upstream, head * m),
                    (dv, key_row),
                    1.0,
                ),
            ] {
                let raw = RawSpmm {
                    columns,
                    values: values.at(own),
                    value_stride: values.leading,
                    b: b.0.at(b.1),
                    ldb: b.0.leading,
                    c: c.0.at(c.1),
                    ldc: c.0.leading,
                    alpha,
                    ..RawSpmm::default()
                };
                // SAFETY: as above.
                unsafe { plan.run_raw(&raw, stream.raw())? };
            }
        }
        Ok(())
    }
}

impl<T: Scalar> Group<T> {
    /// Kernels: scores, softmax, its gradient, dQ, and dK and dV.
    pub(super) fn variants(&self) -> [&'static str; 5] {
        let [forward, backward] = self.softmax.variants();
        let [dq, dk, _] = self.products.each_ref().map(Plan::variant);
        [self.sampled.variant(), forward, backward, dq, dk]
    }
}
