//! Block of gated experts after attention: the cost of a layer of Qwen3-30B-A3B, at prefill and token by token.

use einsparse::formats::{Dense, bf16, generate};
use einsparse::{Context, Result, Scalar};

use super::common::{Measured, Memory, Run, largest_error, wide};
use super::moe_block::Block;
use super::moe_dense::{self, DenseExperts};
use super::pruned::cast;

/// Extents of a block.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub model: usize,
    /// Query heads and key heads.
    pub heads: [usize; 2],
    pub dim: usize,
    pub experts: usize,
    pub hidden: usize,
    pub top_k: usize,
    /// Scale of the terms added to the residual stream. It is small where runs follow one another on the same residual
    /// stream, so that all runs make the same choices.
    pub gain: f64,
}

const QWEN: Shape = Shape {
    model: 2048,
    heads: [32, 4],
    dim: 128,
    experts: 128,
    hidden: 768,
    top_k: 8,
    gain: 1e-4,
};

impl Shape {
    /// Seeded weights of all experts, as [`Moe`](einsparse::nn::Moe) requires them with `transposed`.
    pub fn experts_seeded<T: Scalar>(&self) -> Result<[Dense<T>; 2]> {
        let (experts, hidden, model) = (self.experts, self.hidden, self.model);
        let size = |inputs: usize| 1.0 / (inputs as f64).sqrt();
        Ok([
            values(&[experts, 2 * hidden, model], size(model), 4)?,
            values(&[experts, model, hidden], self.gain * size(hidden), 5)?,
        ])
    }
}

/// Seeded values, rounded to bf16.
pub fn values<T: Scalar>(shape: &[usize], size: f64, seed: u64) -> Result<Dense<T>> {
    let values = generate::random_values::<f32>(shape.iter().product(), seed);
    let values: Vec<bf16> = values.iter().map(|x| bf16::from_f32(x * size as f32)).collect();
    Ok(Dense::new(shape, cast(&values))?)
}

/// Rows with the same first feature.
pub fn inputs<T: Scalar>(tokens: usize, model: usize) -> Result<Dense<T>> {
    let mut x = values::<T>(&[tokens, model], 1.0, 6)?;
    let first = x.values_mut().iter_mut().step_by(model.max(1));
    first.for_each(|x| *x = T::from_f64(4.0));
    Ok(x)
}

/// Error of the residual stream after a block against f64, over tokens with equal choices. Asserts that two runs give
/// the same bits.
pub fn checked(ctx: &Context, past: Option<usize>, tokens: usize) -> Result<f64> {
    let shape =
        Shape { model: 128, heads: [4, 2], dim: 64, experts: 8, hidden: 64, top_k: 2, gain: 1.0 };
    fn stream_of<T: Scalar>(
        ctx: &Context,
        shape: &Shape,
        (tokens, past): (usize, Option<usize>),
    ) -> Result<(Vec<f64>, Vec<i32>)> {
        let mut block = Block::<T>::new(ctx, shape, tokens, past)?;
        let stream = ctx.stream()?;
        block.start(&stream)?;
        block.forward(&stream)?;
        stream.synchronize()?;
        let x = block.x.to_dense()?;
        let x = x.values().iter().map(|x| x.to_f64()).collect();
        Ok((x, block.choices.to_dense()?.into_values()))
    }
    let asked = (tokens, past);
    let (found, choices) = stream_of::<bf16>(ctx, &shape, asked)?;
    assert_eq!(found, stream_of::<bf16>(ctx, &shape, asked)?.0, "two runs differ");
    let (wanted, exact) = stream_of::<f64>(&Context::unchecked_cpu(), &shape, asked)?;
    // Rounding decides between logits that are close, and a token with other experts has another result.
    let model = shape.model;
    let same = |token: &usize| choices[token * 2..][..2] == exact[token * 2..][..2];
    let rows: Vec<usize> = (0..tokens).filter(same).collect();
    assert!(rows.len() * 10 >= tokens * 8, "{} of {tokens} tokens", rows.len());
    let of = |values: &[f64]| -> Vec<f64> {
        rows.iter().flat_map(|&t| values[t * model..][..model].to_vec()).collect()
    };
    Ok(largest_error(&of(&found), &of(&wanted)))
}

pub fn run(run: &Run<'_>) -> Result<()> {
    let ctx = &run.context;
    let worst = checked(ctx, None, 40)?.max(checked(ctx, Some(5), 8)?);
    println!("a block of 128 features: largest error {worst:.1e}");
    assert!(worst < 0.04);
    let (shape, past, prefill) = match run.toy {
        true => (
            Shape {
                model: 64,
                heads: [2, 1],
                dim: 64,
                experts: 8,
                hidden: 32,
                top_k: 2,
                gain: 1.0,
            },
            16,
            64,
        ),
        false => (QWEN, 1024, 4096),
    };
    let dense = moe_dense::weights(ctx, &shape)?;
    let batches = run.arguments.batch.clone().unwrap_or(vec![1, 16, 64]);
    let asked = batches.iter().map(|&batch| (batch, Some(past)));
    for (tokens, past) in asked.chain([(prefill, None)]) {
        let memory = Memory::before(ctx);
        let mut block = Block::<bf16>::new(ctx, &shape, tokens, past)?;
        let stream = ctx.stream()?;
        block.start(&stream)?;
        let attention = run.time(|stream| block.attend(stream))?;
        let experts = run.time(|stream| block.choose(stream))?;
        let times = run.time(|stream| block.forward(stream))?;
        let held = memory.since(ctx);
        block.choose(&stream)?;
        stream.synchronize()?;
        let mut met = block.choices.to_dense()?.into_values();
        met.sort_unstable();
        met.dedup();
        let mut twin = DenseExperts::new(ctx, &shape, &block, &dense)?;
        twin.forward(&block.normed, &stream)?;
        stream.synchronize()?;
        let [y, wanted] = [wide(&block.y)?, wide(&twin.y)?];
        let error = largest_error(&y, &wanted);
        assert!(error < 0.03, "all experts say otherwise: {error}");
        let other = run.time(|stream| {
            block.around(stream, |own| {
                twin.forward(&own.normed, stream)?;
                std::mem::swap(&mut own.y, &mut twin.y);
                Ok(())
            })
        })?;
        let [own, sum] = [times.cold, attention.cold.zip(experts.cold).map(|(a, b)| a + b)];
        let [own, sum] = [own.unwrap_or(times.warm), sum.unwrap_or(attention.warm + experts.warm)];
        run.report(Measured {
            case: match past {
                Some(past) => format!("moe decode, {tokens} sequences, {past} past"),
                None => format!("moe prefill, {tokens} tokens"),
            },
            dtype: "bf16",
            times,
            work: (tokens as f64, "tokens"),
            twin: Some(("all experts, dense".into(), other)),
            held,
            error: Some(worst),
            note: format!(
                "{} of {} experts met; attention {:.4} ms and experts {:.4} ms by themselves: the block is {:.2} of \
                 their sum; {}",
                met.len(),
                shape.experts,
                attention.cold.unwrap_or(attention.warm),
                experts.cold.unwrap_or(experts.warm),
                own / sum,
                block.moe.variants().join(" ")
            ),
        });
    }
    Ok(())
}
