//! Plans and workspace of the gradient for adjacent heads with the same mask, on a GPU.

mod blocks;

use std::ops::Range;

use einsparse_formats::{Csr, CsrPattern};

use crate::context::Context;
use crate::error::Result;
use crate::families::attention::AttentionExtents;
use crate::families::softmax::RawSoftmax;
use crate::kernel::Queue;
use crate::launch::{RawSddmm, RawSpmm};
use crate::ops::{SoftmaxOptions, SparseSoftmax};
use crate::plan::Plan;
use crate::registry::Scalar;
use crate::tensor::{Operand, SparseTensor, Tensor};
use blocks::Blocks;

/// Adjacent heads with the same mask.
#[derive(Debug)]
pub(super) struct Group<T: Scalar> {
    first: usize,
    heads: usize,
    pattern: SparseTensor<T>,
    sampled: Plan<T>,
    softmax: SparseSoftmax<T>,
    products: Products<T>,
    /// P (`weights`), and dP that dS overwrites (`slopes`), of all heads: `[heads, slots]`.
    weights: Tensor<T>,
    slopes: Tensor<T>,
}

/// Products of weights and slopes.
#[derive(Debug)]
enum Products<T: Scalar> {
    Entries(Box<Entries<T>>),
    /// Products over blocks, if the mask fills blocks.
    Blocks(Box<Blocks<T>>),
}

/// Products over single entries.
#[derive(Debug)]
struct Entries<T: Scalar> {
    /// dQ from dS and K; dK and dV from dS, Q and P, dO.
    products: [Plan<T>; 2],
    /// Adds to dK and dV, if heads share keys.
    onto: Option<Plan<T>>,
    /// One launch computes all heads. Requires that no heads share keys.
    batched: bool,
}

impl<T: Scalar> Entries<T> {
    fn new(
        context: &Context,
        extents: AttentionExtents,
        heads: usize,
        scores: &SparseTensor<T>,
    ) -> Result<Self> {
        let AttentionExtents { m, n, d, .. } = extents;
        let batched = extents.heads == extents.key_heads;
        let plan = |text: &str, rows: usize| {
            let (text, shape) = match batched {
                true => (text.to_owned(), &[heads, rows, d][..]),
                false => (text.replace("h,", ""), &[rows, d][..]),
            };
            let operands = [("S", scores.into()), ("X", Operand::Shape(shape))];
            context.plan(&text).operands(&operands).build()
        };
        let products =
            [plan("Y[h,m,d] = S[m,n] * X[h,n,d]", n)?, plan("Y[h,n,d] = S[m,n] * X[h,m,d]", m)?];
        let onto = || plan("Y[h,n,d] += S[m,n] * X[h,m,d]", m);
        Ok(Entries { products, onto: (!batched).then(onto).transpose()?, batched })
    }
}

/// Tensor of heads on a GPU: one after the other, or side by side in rows.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    address: u64,
    /// Row stride in elements.
    leading: usize,
    /// Head stride in elements.
    head: usize,
    /// Bytes of an element.
    bytes: u64,
}

impl Heads {
    /// Heads of a tensor `[heads, rows, d]`.
    pub(super) fn of<T: Scalar>(tensor: &Tensor<T>) -> Heads {
        let rows = tensor.shape()[1];
        Self::in_rows(tensor, 0, rows * tensor.leading())
    }

    /// Heads of a tensor `[rows, width]`: the first head begins at column `first`, and `head` is the stride of heads in
    /// elements.
    pub(super) fn in_rows<T: Scalar>(tensor: &Tensor<T>, first: usize, head: usize) -> Heads {
        let bytes = size_of::<T>() as u64;
        Heads {
            address: tensor.place() + first as u64 * bytes,
            leading: tensor.leading(),
            head,
            bytes,
        }
    }

    pub(super) fn at(&self, head: usize) -> u64 {
        self.address + (head * self.head) as u64 * self.bytes
    }
}

/// All tensors of a run.
pub(super) struct HeadOperands {
    pub inputs: [Heads; 3],
    pub upstream: Heads,
    pub outputs: [Heads; 3],
    /// Number of heads of queries per head of keys.
    pub ratio: usize,
    /// Factor of the scores.
    pub scale: f64,
}

impl<T: Scalar> Group<T> {
    pub(super) fn new(
        context: &Context,
        extents: AttentionExtents,
        pattern: CsrPattern,
        heads: Range<usize>,
    ) -> Result<Self> {
        let (first, heads) = (heads.start, heads.len());
        let AttentionExtents { m, n, d, .. } = extents;
        let slots = pattern.columns().len();
        let blocks = Blocks::new(context, &pattern, extents)?;
        let scores = context.upload(Csr::new(pattern, vec![T::ZERO; slots])?)?;
        let products = match blocks {
            Some(blocks) => Products::Blocks(Box::new(blocks)),
            None => {
                let own = Entries::new(context, extents, heads, &scores)?;
                Products::Entries(Box::new(own))
            }
        };
        let operands: [(_, Operand<'_, T>); 2] =
            [("X", Operand::Shape(&[m, d])), ("Y", Operand::Shape(&[n, d]))];
        let sampled = context
            .plan("S[m,n] = X[m,d] * Y[n,d]")
            .operands(&operands)
            .sparse_output(&scores)
            .build()?;
        let options = SoftmaxOptions { heads, ..SoftmaxOptions::default() };
        let softmax = SparseSoftmax::new(context, &scores, &options)?;
        let stride = slots.next_multiple_of(8).max(8);
        let values = || Tensor::new(context.device(), &[heads, slots], stride);
        Ok(Group {
            first,
            heads,
            sampled,
            softmax,
            products,
            weights: values()?,
            slopes: values()?,
            pattern: scores,
        })
    }

    /// Returns weights and slopes, one row per head.
    fn values(&self) -> [Heads; 2] {
        [&self.weights, &self.slopes].map(|own| Heads::in_rows(own, 0, own.leading()))
    }

    pub(super) fn bytes(&self) -> usize {
        let values = 2 * self.heads * self.weights.leading() * size_of::<T>();
        let pattern = self.pattern.pattern().slots() * (4 + size_of::<T>());
        let products = match &self.products {
            Products::Blocks(blocks) => blocks.bytes(),
            Products::Entries(own) => {
                let plans = own.products.iter().chain(&own.onto);
                plans.map(Plan::workspace_bytes).sum()
            }
        };
        let sampled = self.sampled.workspace_bytes();
        values + pattern + products + sampled + self.softmax.workspace_bytes()
    }

    /// Queues all steps of these heads.
    pub(super) fn queue(&self, operands: &HeadOperands, queue: Queue<'_>) -> Result<()> {
        self.sample(operands, queue)?;
        let [weights, slopes] = self.values();
        let forward = RawSoftmax {
            input: weights.address,
            upstream: 0,
            output: weights.address,
            stride: weights.leading,
        };
        let backward = RawSoftmax { upstream: slopes.address, output: slopes.address, ..forward };
        // SAFETY: the tensors are `[heads, slots]` of the pattern and owned by self.
        unsafe {
            self.softmax.run_raw(&forward, queue.stream())?;
            self.softmax.run_raw(&backward, queue.stream())?;
        }
        self.multiply(operands, queue)
    }

    /// Computes the scaled scores, and the gradients of the weights.
    fn sample(&self, operands: &HeadOperands, queue: Queue<'_>) -> Result<()> {
        let [weights, slopes] = self.values();
        let [q, k, v] = operands.inputs;
        let columns = self.pattern.columns_address().unwrap_or(0);
        for own in 0..self.heads {
            let head = self.first + own;
            for (x, y, to, alpha) in
                [(q, k, weights, operands.scale), (operands.upstream, v, slopes, 1.0)]
            {
                let raw = RawSddmm {
                    columns,
                    x: x.at(head),
                    ldx: x.leading,
                    y: y.at(head / operands.ratio),
                    ldy: y.leading,
                    mask: 0,
                    values: to.at(own),
                    alpha,
                };
                // SAFETY: shapes and addresses of the operands were validated; the other tensors are owned by self.
                unsafe { self.sampled.run_raw(&raw, queue.stream())? };
            }
        }
        Ok(())
    }

    /// Computes the gradients of queries, keys and values.
    fn multiply(&self, operands: &HeadOperands, queue: Queue<'_>) -> Result<()> {
        let [weights, slopes] = self.values();
        let [q, k, _] = operands.inputs;
        let columns = self.pattern.columns_address().unwrap_or(0);
        let [dq, dk, dv] = operands.outputs;
        let entries = match &self.products {
            Products::Entries(entries) => entries,
            Products::Blocks(blocks) => {
                let mut heads = 0..self.heads;
                return heads.try_for_each(|own| {
                    let values = [weights.at(own), slopes.at(own)];
                    blocks.multiply(self.first + own, values, operands, queue)
                });
            }
        };
        let step = if entries.batched { self.heads } else { 1 };
        for own in (0..self.heads).step_by(step) {
            let head = self.first + own;
            let key_head = head / operands.ratio;
            let of_keys = match &entries.onto {
                Some(onto) if !head.is_multiple_of(operands.ratio) => onto,
                _ => &entries.products[1],
            };
            for (plan, values, b, c, alpha) in [
                (&entries.products[0], slopes, (k, key_head), (dq, head), operands.scale),
                (of_keys, slopes, (q, head), (dk, key_head), operands.scale),
                (of_keys, weights, (operands.upstream, head), (dv, key_head), 1.0),
            ] {
                let raw = RawSpmm {
                    columns,
                    values: values.at(own),
                    value_stride: values.leading,
                    b_stride: b.0.head,
                    c_stride: c.0.head,
                    b: b.0.at(b.1),
                    ldb: b.0.leading,
                    c: c.0.at(c.1),
                    ldc: c.0.leading,
                    alpha,
                    ..RawSpmm::default()
                };
                // SAFETY: shapes and addresses of the operands were validated; the other tensors are owned by self.
                unsafe { plan.run_raw(&raw, queue.stream())? };
            }
        }
        Ok(())
    }
}

impl<T: Scalar> Group<T> {
    /// Returns the names of the kernels of the scores, the softmax, its gradient, dQ, and dK and dV.
    pub(super) fn variants(&self) -> [&'static str; 5] {
        let [forward, backward] = self.softmax.variants();
        let products = match &self.products {
            Products::Entries(own) => &own.products,
            Products::Blocks(own) => own.products(),
        };
        let [dq, dk] = products.each_ref().map(Plan::variant);
        [self.sampled.variant(), forward, backward, dq, dk]
    }
}
