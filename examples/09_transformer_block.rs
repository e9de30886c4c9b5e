//! Transformer block for 12,288 tokens with block-sparse weights and sparse attention, compared with the dense block:
//! forward time and device memory. Norms and residual sums are left out because they are not products. Every step of
//! both blocks is checked in f64 for a sample of tokens. Requires a GPU.

use std::time::{Duration, Instant};

use einsparse::formats::{
    AnySparse, Bsr, BsrPattern, Csr, CsrPattern, Dense, Format, bf16, convert, generate,
};
use einsparse::ops::{AttentionOptions, SparseAttention};
use einsparse::raw::RawAttention;
use einsparse::{Context, Operand, Plan, Result, SparseTensor, Stream, Tensor};

const TOKENS: usize = 12_288;
const HEADS: usize = 8;
const DIM: usize = 128;
const MODEL: usize = HEADS * DIM;
const INNER: usize = 4 * MODEL;
/// Block edge of the weights, and the share of their blocks that is stored.
const EDGE: usize = 64;
const DENSITY: f64 = 0.2;
/// Distance of the tokens that are checked.
const STEP: usize = 1021;

/// Keys that a query attends to.
#[derive(Clone, Copy)]
enum Keys {
    /// All keys up to the query, as in dense attention.
    Causal,
    /// The last keys, and this share of the keys before them (Sputnik's paper, arXiv 2006.10901, section 7.4).
    Band(usize, f64),
}

fn main() -> Result<()> {
    let ctx = Context::new();
    println!("{ctx}");
    if !ctx.is_cuda() {
        println!("no GPU: nothing to compare");
        return Ok(());
    }
    let dense = measure(&ctx, "dense, causal", None, Keys::Causal)?;
    let scores = HEADS * TOKENS * TOKENS * 4;
    println!("  (its attention is fused as well; the scores alone would be {} MB)", scores >> 20);
    for (name, keys) in [
        ("sparse, Sputnik's mask", Keys::Band(256, 0.05)),
        ("sparse, band of 256", Keys::Band(256, 0.0)),
    ] {
        let sparse = measure(&ctx, name, Some(DENSITY), keys)?;
        println!(
            "  {:.2} times as fast, {:.2} of the memory, {:.3} of it with the scores",
            dense.0.as_secs_f64() / sparse.0.as_secs_f64(),
            sparse.1 as f64 / dense.1 as f64,
            sparse.1 as f64 / (dense.1 + scores as u64) as f64
        );
    }
    Ok(())
}

/// Pseudorandom number in 0..1 for a pair.
fn chance(a: usize, b: usize) -> f64 {
    let x = (a as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (b as u64 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
    let x = (x ^ (x >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x >> 40) as f64 / (1u64 << 24) as f64
}

fn mask(keys: Keys) -> Result<(AnySparse<bf16>, Option<i64>)> {
    match keys {
        Keys::Causal => {
            let side = TOKENS / EDGE;
            let offsets = (0..=side).map(|row| (row * (row + 1) / 2) as u32).collect();
            let columns = (0..side).flat_map(|row| 0..=row as u32).collect();
            let pattern = BsrPattern::new(TOKENS, TOKENS, (EDGE, EDGE), offsets, columns)?;
            let values = vec![bf16::ONE; pattern.columns().len() * EDGE * EDGE];
            Ok((Bsr::new(pattern, values)?.into(), Some(0)))
        }
        Keys::Band(band, share) => {
            let (mut offsets, mut columns) = (vec![0], Vec::new());
            for row in 0..TOKENS {
                let start = (row + 1).saturating_sub(band);
                columns.extend(
                    (0..start).filter(|&key| chance(row, key) < share).map(|key| key as u32),
                );
                columns.extend(start as u32..=row as u32);
                offsets.push(columns.len() as u32);
            }
            let pattern = CsrPattern::new(TOKENS, TOKENS, offsets, columns)?;
            let values = vec![bf16::ONE; pattern.columns().len()];
            Ok((Csr::new(pattern, values)?.into(), None))
        }
    }
}

/// Product with weights, `Y[t,o] = X[t,i] * W[o,i]`.
struct Layer {
    plan: Plan<bf16>,
    sparse: Option<SparseTensor<bf16>>,
    dense: Option<Tensor<bf16>>,
    host: Dense<bf16>,
    relu: bool,
}

impl Layer {
    fn new(
        ctx: &Context,
        [outputs, inputs]: [usize; 2],
        density: Option<f64>,
        (relu, seed): (bool, u64),
    ) -> Result<Self> {
        let block = (EDGE, EDGE);
        let pattern = generate::blocks(outputs, inputs, block, density.unwrap_or(1.0), seed)?;
        let scale = (1.0 / (inputs as f64 * density.unwrap_or(1.0))).sqrt();
        let values = generate::random_values::<f32>(pattern.columns().len() * EDGE * EDGE, seed);
        let values = values.iter().map(|v| bf16::from_f64(f64::from(*v) * scale)).collect();
        let csr: Csr<bf16> = convert::bsr_to_csr(&Bsr::new(pattern, values)?)?;
        let matrix = AnySparse::from(csr);
        let host = matrix.to_dense()?;
        let (mut sparse, mut dense) = (None, None);
        match density {
            Some(_) => {
                sparse =
                    Some(ctx.upload(matrix.convert(Format::BlockGroupCoo { block, group: None })?)?)
            }
            None => dense = Some(ctx.upload_dense(&host)?),
        }
        let x = ctx.zeros::<bf16>(&[TOKENS, inputs])?;
        let text = match relu {
            true => "Y[t,o] = relu(X[t,i] * W[o,i])",
            false => "Y[t,o] = X[t,i] * W[o,i]",
        };
        let plan = ctx
            .plan(text)
            .operands(&[("X", (&x).into()), ("W", weight(&sparse, &dense))])
            .build()?;
        Ok(Layer { plan, sparse, dense, host, relu })
    }

    fn run(&self, x: &Tensor<bf16>, y: &mut Tensor<bf16>, stream: &Stream) -> Result<()> {
        self.plan.run(&[("X", x.into()), ("W", weight(&self.sparse, &self.dense))], y, stream)
    }

    /// Largest error over sampled tokens, relative to the largest output.
    fn error(&self, x: &Tensor<bf16>, y: &Tensor<bf16>) -> Result<f64> {
        let (x, y) = (x.to_dense()?, y.to_dense()?);
        let (inputs, outputs) = (x.shape()[1], y.shape()[1]);
        let (mut worst, mut largest) = (0f64, 0f64);
        for token in (0..TOKENS).step_by(STEP) {
            let x = &x.values()[token * inputs..][..inputs];
            for (o, found) in y.values()[token * outputs..][..outputs].iter().enumerate() {
                let wanted = dot(x, &self.host.values()[o * inputs..][..inputs]);
                let wanted = if self.relu { wanted.max(0.0) } else { wanted };
                worst = worst.max((found.to_f64() - wanted).abs());
                largest = largest.max(wanted.abs());
            }
        }
        Ok(worst / largest)
    }
}

fn weight<'a>(
    sparse: &'a Option<SparseTensor<bf16>>,
    dense: &'a Option<Tensor<bf16>>,
) -> Operand<'a, bf16> {
    match (sparse, dense) {
        (Some(sparse), _) => sparse.into(),
        (_, Some(dense)) => dense.into(),
        _ => unreachable!("a layer has weights"),
    }
}

fn dot(a: &[bf16], b: &[bf16]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a.to_f64() * b.to_f64()).sum()
}

/// Plans, weights and activations of a block, in device memory.
struct Block {
    /// Queries, keys, values, output, and the two layers of the feed-forward network.
    layers: [Layer; 6],
    attention: SparseAttention<bf16>,
    /// Input, queries, keys, values, attention result, output projection, hidden layer, final output.
    states: [Tensor<bf16>; 8],
}

impl Block {
    fn new(ctx: &Context, density: Option<f64>, keys: Keys) -> Result<Self> {
        let square = [MODEL, MODEL];
        let layer = |shape, seed| Layer::new(ctx, shape, density, (shape == [INNER, MODEL], seed));
        let layers = [
            layer(square, 1)?,
            layer(square, 2)?,
            layer(square, 3)?,
            layer(square, 4)?,
            layer([INNER, MODEL], 5)?,
            layer([MODEL, INNER], 6)?,
        ];
        let (mask, causal) = mask(keys)?;
        let options =
            AttentionOptions { heads: HEADS, dim: DIM, causal, ..AttentionOptions::default() };
        // The plan stores what it requires of the mask.
        let attention = SparseAttention::new(ctx, &[&ctx.upload(mask)?], &options)?;
        let input = generate::random_values::<bf16>(TOKENS * MODEL, 7);
        let state = || ctx.zeros::<bf16>(&[TOKENS, MODEL]);
        let states = [
            ctx.upload_dense(&Dense::new([TOKENS, MODEL], input)?)?,
            state()?,
            state()?,
            state()?,
            state()?,
            state()?,
            ctx.zeros::<bf16>(&[TOKENS, INNER])?,
            state()?,
        ];
        Ok(Block { layers, attention, states })
    }

    fn run(&mut self, stream: &Stream) -> Result<()> {
        let [x, q, k, v, given, out, inner, end] = &mut self.states;
        let [of_q, of_k, of_v, of_out, up, down] = &self.layers;
        of_q.run(x, q, stream)?;
        of_k.run(x, k, stream)?;
        of_v.run(x, v, stream)?;
        // The heads of a token are adjacent in its row, so no transpose is required.
        let address = |t: &Tensor<bf16>| t.address().unwrap_or(0);
        let strides = [DIM, MODEL];
        let raw = RawAttention::default()
            .q(address(q))
            .q_strides(strides)
            .k(address(k))
            .k_strides(strides)
            .v(address(v))
            .v_strides(strides)
            .out(address(given))
            .out_strides(strides)
            .log_sum(0);
        // SAFETY: all are `[tokens, heads, dim]` and stay valid until the caller has synchronized.
        unsafe { self.attention.run_raw(&raw, stream.raw())? };
        of_out.run(given, out, stream)?;
        up.run(out, inner, stream)?;
        down.run(inner, end, stream)
    }

    /// Largest error of all steps. Each step is checked with the stored result of the step before as its input.
    fn error(&self, keys: Keys) -> Result<f64> {
        let [x, q, k, v, given, out, inner, end] = &self.states;
        let steps = [(x, q), (x, k), (x, v), (given, out), (out, inner), (inner, end)];
        let mut worst = attention_error([q, k, v, given], keys)?;
        for (layer, (x, y)) in self.layers.iter().zip(steps) {
            worst = worst.max(layer.error(x, y)?);
        }
        Ok(worst)
    }
}

/// Largest error over sampled queries of all heads, relative to the largest output.
fn attention_error(states: [&Tensor<bf16>; 4], keys: Keys) -> Result<f64> {
    let [q, k, v, given] = states.map(Tensor::to_dense);
    let (q, k, v, given) = (q?, k?, v?, given?);
    let (mut worst, mut largest) = (0f64, 0f64);
    for (token, head) in (0..TOKENS).step_by(STEP).flat_map(|t| (0..HEADS).map(move |h| (t, h))) {
        let row = |dense: &Dense<bf16>, token: usize| {
            dense.values()[token * MODEL + head * DIM..][..DIM].to_vec()
        };
        let sees = |&key: &usize| match keys {
            Keys::Causal => true,
            Keys::Band(band, share) => key + band > token || chance(token, key) < share,
        };
        let seen: Vec<usize> = (0..=token).filter(sees).collect();
        let own = row(&q, token);
        let scores: Vec<f64> =
            seen.iter().map(|&key| dot(&own, &row(&k, key)) / (DIM as f64).sqrt()).collect();
        let max = scores.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let mut wanted = vec![0.0; DIM];
        for (score, &key) in scores.iter().zip(&seen) {
            for (wanted, v) in wanted.iter_mut().zip(row(&v, key)) {
                *wanted += (score - max).exp() / sum * v.to_f64();
            }
        }
        for (wanted, found) in wanted.iter().zip(row(&given, token)) {
            worst = worst.max((found.to_f64() - wanted).abs());
            largest = largest.max(wanted.abs());
        }
    }
    Ok(worst / largest)
}

/// Median time of a run, and the device memory that the block uses.
fn measure(ctx: &Context, name: &str, density: Option<f64>, keys: Keys) -> Result<(Duration, u64)> {
    let stream = ctx.stream()?;
    ctx.synchronize()?;
    let before = ctx.free_memory()?;
    let mut block = Block::new(ctx, density, keys)?;
    block.run(&stream)?;
    stream.synchronize()?;
    let bytes = before.saturating_sub(ctx.free_memory()?);
    let mut times = Vec::new();
    for _ in 0..21 {
        let start = Instant::now();
        block.run(&stream)?;
        stream.synchronize()?;
        times.push(start.elapsed());
    }
    times.sort();
    let (time, error) = (times[times.len() / 2], block.error(keys)?);
    println!("{name}: {time:?}, {} MB, largest error of a step {error:.1e}", bytes >> 20);
    assert!(error < 0.02, "{name} is off by {error}");
    Ok((time, bytes))
}
