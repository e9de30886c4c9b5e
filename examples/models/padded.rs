//! Batch of [`encoder`](super::encoder), and its baseline: the layers over the batch padded to its longest sequence.

use einsparse::formats::{Csr, CsrPattern, Dense, f16, generate};
use einsparse::nn::{EncoderOptions, ResidualNorm};
use einsparse::ops::{AttentionOptions, SparseAttention};
use einsparse::{Context, Operand, Plan, Result, Scalar, Stream, Tensor};

use super::encoder::Layer;

/// Seeded lengths of `items` sequences with `tokens` tokens in total. The first is the longest, most are short.
pub fn lengths(items: usize, tokens: usize, longest: usize) -> Vec<i32> {
    let draws = generate::random_values::<f32>(items, 7);
    let mut lengths: Vec<usize> = draws
        .iter()
        .map(|x| 1 + ((longest - 1) as f32 * (x * x / 4.0).min(1.0)) as usize)
        .collect();
    lengths[0] = longest;
    for at in (1..items).cycle() {
        match lengths.iter().sum::<usize>().cmp(&tokens) {
            std::cmp::Ordering::Equal => break,
            std::cmp::Ordering::Less => lengths[at] = (lengths[at] + 1).min(longest),
            std::cmp::Ordering::Greater => lengths[at] = (lengths[at] - 1).max(1),
        }
    }
    lengths.into_iter().map(|length| length as i32).collect()
}

/// Rows of the padded batch that contain tokens, in the order of the packed batch.
fn rows_of(o: &EncoderOptions, lengths: &[i32]) -> Vec<usize> {
    let rows = |(item, length): (usize, &i32)| {
        let first = item * o.distance;
        first..first + *length as usize
    };
    lengths.iter().enumerate().flat_map(rows).collect()
}

/// Returns these rows of a matrix.
pub fn taken<T: Scalar>(matrix: &Tensor<T>, width: usize, rows: &[usize]) -> Result<Vec<T>> {
    let all = matrix.to_dense()?;
    let rows = rows.iter().flat_map(|row| &all.values()[row * width..][..width]);
    Ok(rows.copied().collect())
}

pub fn wide<T: Scalar>(values: &[T]) -> Vec<f64> {
    values.iter().map(|x| x.to_f64()).collect()
}

/// A batch in f16, packed and padded.
pub struct Batch {
    pub lengths: Vec<i32>,
    pub rows: Vec<usize>,
    pub packed: Dense<f16>,
    pub padded: Dense<f16>,
}

impl Batch {
    pub fn new(o: &EncoderOptions, lengths: Vec<i32>) -> Result<Self> {
        let (rows, width) = (rows_of(o, &lengths), o.width);
        let values = generate::random_values::<f16>(rows.len() * width, 3);
        let mut padded = vec![f16::from_f32(0.0); o.items * o.distance * width];
        for (row, values) in rows.iter().zip(values.chunks(width)) {
            padded[row * width..][..width].copy_from_slice(values);
        }
        Ok(Batch {
            packed: Dense::new([rows.len(), width], values)?,
            padded: Dense::new([o.items, o.distance, width], padded)?,
            lengths,
            rows,
        })
    }
}

const PROJECTION: &str = "C[m,n] = A[m,k] * W[k,n] + b[n]";
const UP: &str = "C[m,n] = gelu(A[m,k] * W[k,n] + b[n])";

/// Dense layers over all rows. Only the attention uses the lengths.
pub struct Padded {
    plans: [Plan<f16>; 4],
    attention: SparseAttention<f16>,
    norm: ResidualNorm<f16>,
    qkv: Tensor<f16>,
    seen: Tensor<f16>,
    sums: Tensor<f16>,
    between: Tensor<f16>,
    hidden: Tensor<f16>,
}

impl Padded {
    pub fn new(
        ctx: &Context,
        o: &EncoderOptions,
        lengths: &[i32],
        like: &Layer<f16>,
    ) -> Result<Self> {
        let rows = o.items * o.distance;
        let zeros = |columns: usize| ctx.zeros::<f16>(&[rows, columns]);
        let (x, hidden) = (zeros(o.width)?, zeros(o.hidden)?);
        let plan = |text: &str, a: &Tensor<f16>, [w, b]: [&Tensor<f16>; 2]| {
            let operands = [("A", a.into()), ("W", w.into()), ("b", b.into())];
            ctx.plan(text).operands(&operands).build()
        };
        let w = like.weights();
        let plans = [
            plan(PROJECTION, &x, w.qkv)?,
            plan(PROJECTION, &x, w.out)?,
            plan(UP, &x, w.up)?,
            plan(PROJECTION, &hidden, w.down)?,
        ];
        // All queries of a sequence, including padding, attend to its keys up to its length.
        let (mut offsets, mut keys) = (vec![0], Vec::new());
        for row in 0..rows {
            let item = row / o.distance;
            let first = (item * o.distance) as u32;
            keys.extend(first..first + lengths[item] as u32);
            offsets.push(keys.len() as u32);
        }
        let ones = vec![f16::from_f32(1.0); keys.len()];
        let pattern = CsrPattern::new(rows, rows, offsets, keys)?;
        let mask = ctx.upload(Csr::new(pattern, ones)?)?;
        let options = AttentionOptions {
            heads: o.heads,
            dim: o.width / o.heads,
            ..AttentionOptions::default()
        };
        Ok(Padded {
            plans,
            attention: SparseAttention::new(ctx, &[&mask], &options)?,
            norm: ResidualNorm::new(ctx, [rows, o.width], o.epsilon)?,
            qkv: zeros(3 * o.width)?,
            seen: zeros(o.width)?,
            sums: zeros(o.width)?,
            between: x,
            hidden,
        })
    }

    /// Runs the layers in place: `x` is the input, then the output.
    pub fn forward(
        &mut self,
        layers: &[Layer<f16>],
        x: &mut Tensor<f16>,
        stream: &Stream,
    ) -> Result<()> {
        let width = self.seen.shape()[1];
        for layer in layers {
            let w = layer.weights();
            product(&self.plans[0], x, w.qkv, &mut self.qkv, stream)?;
            let part = |part: usize| self.qkv.columns(part * width..(part + 1) * width);
            let (q, k, v) = (part(0)?, part(1)?, part(2)?);
            self.attention.forward([&q, &k, &v], &mut self.seen, None, stream)?;
            product(&self.plans[1], &self.seen, w.out, &mut self.sums, stream)?;
            self.norm.forward([x, &self.sums], w.first_norm, &mut self.between, stream)?;
            product(&self.plans[2], &self.between, w.up, &mut self.hidden, stream)?;
            product(&self.plans[3], &self.hidden, w.down, &mut self.sums, stream)?;
            self.norm.forward([&self.between, &self.sums], w.second_norm, x, stream)?;
        }
        Ok(())
    }
}

fn product(
    plan: &Plan<f16>,
    a: &Tensor<f16>,
    [w, b]: [&Tensor<f16>; 2],
    out: &mut Tensor<f16>,
    stream: &Stream,
) -> Result<()> {
    let operands: [(&str, Operand<'_, f16>); 3] =
        [("A", a.into()), ("W", w.into()), ("b", b.into())];
    plan.run(&operands, out, stream)
}
