//! A BERT-base layer over 32 sequences of up to 128 tokens, 40 on average (PIT, arXiv 2301.10936): only the tokens that are there, beside
//! the layer over the padded batch: cuBLASLt with bias and GELU in its epilogue, attention of all 128 keys, and our
//! normalisation. Each a captured CUDA graph.
//!
//! `m` is the rows of the padded batch, `nnz` the tokens; rates count their products. Recorded as operation `layer`.

use crate::device::{Buffer, Gpu, Result};
use crate::peers::fused::FusedDense;
use crate::peers::torch;
use crate::problems::{Dtype, SEED};
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::driver::Graph;
use einsparse::formats::{Dense, bf16, f16, generate};
use einsparse::ops::{
    AttentionMask, AttentionOptions, EncoderLayer, EncoderOptions, EncoderWeights, ResidualNorm,
    SparseAttention,
};
use einsparse::{Context, Error, Scalar, Stream, Tensor};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::fmt::Display;

const ITEMS: usize = 32;
const DISTANCE: usize = 128;
const ROWS: usize = ITEMS * DISTANCE;
const WIDTH: usize = 768;
const HEADS: usize = 12;
const HIDDEN: usize = 3072;
const MEAN: usize = 40;
/// Sequences whose output is checked.
const CHECKED: usize = 2;

/// Both element types.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    measured::<f16>(gpu, effort, recorder, Dtype::F16)?;
    measured::<bf16>(gpu, effort, recorder, Dtype::Bf16)
}

/// Lengths between 1 and 79 whose mean is exactly [`MEAN`].
fn lengths() -> Vec<i32> {
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut lengths: Vec<i32> = (0..ITEMS).map(|_| rng.random_range(1..80)).collect();
    let mut at = 0;
    loop {
        let missing = (MEAN * ITEMS) as i32 - lengths.iter().sum::<i32>();
        if missing == 0 {
            return lengths;
        }
        let next = lengths[at] + missing.signum();
        if (1..80).contains(&next) {
            lengths[at] = next;
        }
        at = (at + 1) % ITEMS;
    }
}

/// Weights on the GPU and on the host.
struct Model<T> {
    /// qkv, out, up, down; the two normalisations.
    pairs: Vec<[Dense<T>; 2]>,
}

fn normal<T: Scalar>(shape: &[usize], size: f64, seed: u64) -> Result<Dense<T>> {
    let values = generate::random_values::<f32>(shape.iter().product(), SEED + seed);
    let values = values.iter().map(|&x| T::from_f64(f64::from(x) * size));
    Dense::new(shape.to_vec(), values.collect()).map_err(text)
}

impl<T: Scalar> Model<T> {
    fn new() -> Result<Self> {
        let mut pairs = Vec::new();
        for (i, [inputs, outputs]) in EXTENTS.into_iter().enumerate() {
            let size = 1.0 / (inputs as f64).sqrt();
            pairs.push([
                normal(&[inputs, outputs], size, i as u64)?,
                normal(&[outputs], 0.1, 10 + i as u64)?,
            ]);
        }
        for seed in [20, 30] {
            let ones = Dense::from_fn(vec![WIDTH], |_| T::ONE).map_err(text)?;
            pairs.push([ones, normal(&[WIDTH], 0.1, seed)?]);
        }
        Ok(Model { pairs })
    }

    fn upload(&self, context: &Context) -> Result<Vec<[Tensor<T>; 2]>> {
        let upload = |dense: &Dense<T>| context.upload_dense(dense).map_err(text);
        let pair = |[a, b]: &[Dense<T>; 2]| Ok([upload(a)?, upload(b)?]);
        self.pairs.iter().map(pair).collect()
    }
}

/// Inputs and outputs of the four products.
const EXTENTS: [[usize; 2]; 4] = [
    [WIDTH, 3 * WIDTH],
    [WIDTH, WIDTH],
    [WIDTH, HIDDEN],
    [HIDDEN, WIDTH],
];

fn weights<T>(pairs: &[[Tensor<T>; 2]]) -> EncoderWeights<'_, T> {
    let [qkv, out, up, down, first_norm, second_norm] =
        [0, 1, 2, 3, 4, 5].map(|i| pairs[i].each_ref());
    EncoderWeights {
        qkv,
        out,
        up,
        down,
        first_norm,
        second_norm,
    }
}

fn options(items: usize, expected: usize) -> EncoderOptions {
    EncoderOptions {
        items,
        distance: DISTANCE,
        width: WIDTH,
        heads: HEADS,
        hidden: HIDDEN,
        epsilon: 1e-5,
        expected: Some(expected),
    }
}

/// What is queued, captured once and launched as a graph.
pub fn in_a_graph(
    gpu: &Gpu,
    effort: Effort,
    stream: &Stream,
    run: &mut dyn FnMut() -> Result<()>,
) -> Result<Times> {
    // What is loaded and allocated at the first call cannot be captured.
    run()?;
    gpu.wait()?;
    let capture = |_| {
        run().map_err(|reason| Error::Cuda {
            call: "capture".into(),
            reason,
        })
    };
    let graph = Graph::capture(stream.raw(), capture).map_err(text)?;
    let mut graph = graph.instantiate().map_err(text)?;
    measure(gpu, effort, &mut || {
        // SAFETY: what the captured run names outlives this function's caller.
        unsafe { graph.launch(stream.raw()) }.map_err(text)
    })
}

fn measured<T: Scalar>(
    gpu: &Gpu,
    effort: Effort,
    recorder: &mut Recorder,
    dtype: Dtype,
) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    // SAFETY: the bench's stream belongs to the primary context and outlives this function.
    let stream = unsafe { Stream::from_raw(gpu.stream.cast()) };
    let model = Model::<T>::new()?;
    let pairs = model.upload(&context)?;
    let x = normal::<T>(&[ITEMS, DISTANCE, WIDTH], 1.0, 40)?;
    let x_there = context.upload_dense(&x).map_err(text)?;
    kernels(
        gpu,
        effort,
        recorder,
        (&context, &stream),
        (&x_there, &pairs),
        dtype,
    )?;
    for (workload, lengths) in [
        ("bert-b32-mean40", lengths()),
        ("bert-b32-full", vec![DISTANCE as i32; ITEMS]),
    ] {
        let tokens = lengths.iter().sum::<i32>() as usize;
        let layer = EncoderLayer::<T>::new(&context, &options(ITEMS, tokens)).map_err(text)?;
        let there = Dense::new([ITEMS], lengths.clone()).map_err(text)?;
        let there = context.upload_dense(&there).map_err(text)?;
        let mut out = context.zeros(&[ITEMS, DISTANCE, WIDTH]).map_err(text)?;
        let own = weights(&pairs);
        let times = in_a_graph(gpu, effort, &stream, &mut || {
            let run = layer.run(&x_there, &there, &own, &mut out, &stream);
            run.map_err(text)
        })?;
        let error = error(&model, &x, &lengths, &out)?;
        let right = error <= 1.0;
        recorder.add(Row {
            engine: "einsparse".into(),
            variant: layer.variants().join(" "),
            ms: if right { times.cold } else { f64::NAN },
            prepared_bytes: Some(layer.workspace_bytes()),
            note: format!(
                "{}a CUDA graph; err {error:.2} of the bound",
                if right { "" } else { "WRONG: " }
            ),
            ..row(workload, dtype, tokens, times)
        })?;
        in_torch(recorder, (workload, &lengths), dtype)?;
    }
    let times = match padded(gpu, effort, &context, &stream, (&x_there, &pairs), dtype) {
        Ok(times) => times,
        Err(reason) => {
            println!("padded layer skipped: {reason}");
            return Ok(());
        }
    };
    for (workload, tokens) in [("bert-b32-mean40", MEAN * ITEMS), ("bert-b32-full", ROWS)] {
        recorder.add(Row {
            engine: "cublas".into(),
            variant: "padded dense layer".into(),
            note: "a CUDA graph; cublasLt with bias and GELU, our attention of 128 keys on heads that lie apart, our normalisation".into(),
            ..row(workload, dtype, tokens, times)
        })?;
    }
    Ok(())
}

/// The layer without padding by PyTorch, and its attention alone.
fn in_torch(
    recorder: &mut Recorder,
    (workload, lengths): (&str, &[i32]),
    dtype: Dtype,
) -> Result<()> {
    let dim = WIDTH / HEADS;
    let asked = format!(
        r#"{{"lengths": {lengths:?}, "heads": {HEADS}, "dim": {dim}, "hidden": {HIDDEN}, "dtype": "{dtype}"}}"#
    );
    let all = torch::measure("packed", &asked);
    let tokens = lengths.iter().sum::<i32>() as usize;
    let mut add = |op: &str, variant: &str, times: Times| {
        recorder.add(Row {
            op: op.into(),
            engine: "torch".into(),
            variant: variant.into(),
            note: "a CUDA graph; attention over packed sequences, packing left out".into(),
            ..row(workload, dtype, tokens, times)
        })
    };
    let layers = all.iter().filter(|(name, _)| name.starts_with("layer"));
    if let Some((name, times)) = layers.min_by(|a, b| a.1.cold.total_cmp(&b.1.cold)) {
        add("encoder", name, *times)?;
    }
    match all.iter().find(|(name, _)| name == "attention") {
        // Ours is part of a layer, and its launches overlap: no figure of its own beside this one.
        Some((_, times)) => add("packed_attention", "attention", *times),
        None => Ok(()),
    }
}

/// What each launch adds to a graph of those in front of it. The launches overlap, so none costs this by itself.
fn kernels<T: Scalar>(
    gpu: &Gpu,
    effort: Effort,
    recorder: &mut Recorder,
    (context, stream): (&Context, &Stream),
    (x, pairs): (&Tensor<T>, &[[Tensor<T>; 2]]),
    dtype: Dtype,
) -> Result<()> {
    let tokens = MEAN * ITEMS;
    let layer = EncoderLayer::<T>::new(context, &options(ITEMS, tokens)).map_err(text)?;
    let there = Dense::new([ITEMS], lengths()).map_err(text)?;
    let there = context.upload_dense(&there).map_err(text)?;
    let mut out = context.zeros(&[ITEMS, DISTANCE, WIDTH]).map_err(text)?;
    let own = weights(pairs);
    let mut before = [0.0; 2];
    for (step, name) in EncoderLayer::<T>::STEPS.into_iter().enumerate() {
        let times = in_a_graph(gpu, effort, stream, &mut || {
            let run = layer.run_first(step + 1, x, &there, &own, &mut out, stream);
            run.map_err(text)
        })?;
        recorder.add(Row {
            engine: "einsparse".into(),
            variant: format!("{} {name}", step + 1),
            ms: times.cold - before[0],
            ms_warm: Some(times.warm - before[1]),
            gflops: None,
            note: format!(
                "a CUDA graph of the first {} launches takes {:.1} us ({:.1} warm); less that of the launches in front",
                step + 1,
                times.cold * 1e3,
                times.warm * 1e3
            ),
            ..row("bert-b32-mean40-kernels", dtype, tokens, times)
        })?;
        before = [times.cold, times.warm];
    }
    Ok(())
}

fn row(workload: &str, dtype: Dtype, tokens: usize, times: Times) -> Row {
    let products: usize = EXTENTS.iter().map(|[k, n]| k * n).sum();
    Row {
        op: "encoder".into(),
        workload: workload.into(),
        m: ROWS,
        k: WIDTH,
        n: HIDDEN,
        nnz: tokens,
        dtype: dtype.to_string(),
        zeros: "dense".into(),
        ms: times.cold,
        ms_warm: Some(times.warm),
        gflops: Some(2.0 * (tokens * products) as f64 / times.cold / 1e6),
        ..Row::default()
    }
}

/// The layer over all rows. Weights are those of ours read turned over, `[outputs, inputs]`: the times are the same.
fn padded<T: Scalar>(
    gpu: &Gpu,
    effort: Effort,
    context: &Context,
    stream: &Stream,
    (x, pairs): (&Tensor<T>, &[[Tensor<T>; 2]]),
    dtype: Dtype,
) -> Result<Times> {
    let at = |tensor: &Tensor<T>| tensor.address().ok_or("not on the GPU".to_string());
    let mut products = Vec::new();
    let mut biases = Vec::new();
    for (i, [inputs, outputs]) in EXTENTS.into_iter().enumerate() {
        let bias = Buffer::from_slice(normal::<T>(&[outputs], 0.1, 40 + i as u64)?.values())?;
        let extents = [outputs, inputs, ROWS];
        products.push(FusedDense::linear(gpu, dtype, extents, (&bias, i == 2))?);
        biases.push(bias);
    }
    let attention_options = AttentionOptions {
        heads: ITEMS * HEADS,
        dim: WIDTH / HEADS,
        ..AttentionOptions::default()
    };
    let all = [AttentionMask::Window {
        before: DISTANCE,
        after: DISTANCE,
    }];
    let attention =
        SparseAttention::<T>::structured(context, [DISTANCE; 2], &all, &attention_options);
    let attention = attention.map_err(text)?;
    let norm = ResidualNorm::<T>::new(context, [ROWS, WIDTH], 1e-5).map_err(text)?;
    let zeros = |shape: &[usize]| context.zeros::<T>(shape).map_err(text);
    let heads = [ITEMS * HEADS, DISTANCE, WIDTH / HEADS];
    let filled = |shape: &[usize], seed| {
        let values = normal::<T>(shape, 1.0, seed)?;
        context.upload_dense(&values).map_err(text)
    };
    let [q, k, v] = [50, 51, 52].map(|seed| filled(&heads, seed));
    let (q, k, v) = (q?, k?, v?);
    let mut seen = zeros(&heads)?;
    let rows = |columns: usize| zeros(&[ROWS, columns]);
    let input = filled(&[ROWS, WIDTH], 53)?;
    let (qkv, sums) = (rows(3 * WIDTH)?, rows(WIDTH)?);
    let (mut h, hidden, mut out) = (rows(WIDTH)?, rows(HIDDEN)?, rows(WIDTH)?);
    let x_at = at(x)?;
    in_a_graph(gpu, effort, stream, &mut || {
        products[0].run([at(&pairs[0][0])?, x_at, at(&qkv)?])?;
        attention
            .run([&q, &k, &v], &mut seen, None, stream)
            .map_err(text)?;
        products[1].run([at(&pairs[1][0])?, at(&seen)?, at(&sums)?])?;
        let affine = pairs[4].each_ref();
        norm.run([&input, &sums], affine, &mut h, stream)
            .map_err(text)?;
        products[2].run([at(&pairs[2][0])?, at(&h)?, at(&hidden)?])?;
        products[3].run([at(&pairs[3][0])?, at(&hidden)?, at(&sums)?])?;
        norm.run([&h, &sums], pairs[5].each_ref(), &mut out, stream)
            .map_err(text)
    })
}

/// Largest error of some sequences, as a share of a bound: results of seven steps are rounded, normalised elements are near 1.
fn error<T: Scalar>(
    model: &Model<T>,
    x: &Dense<T>,
    lengths: &[i32],
    out: &Tensor<T>,
) -> Result<f64> {
    let cpu = Context::cpu();
    let pairs = model.upload(&cpu)?;
    let size = DISTANCE * WIDTH;
    let layer = EncoderLayer::<T>::new(&cpu, &options(CHECKED, ROWS)).map_err(text)?;
    let part = x.values()[..CHECKED * size].to_vec();
    let part = Dense::new(vec![CHECKED, DISTANCE, WIDTH], part).map_err(text)?;
    let part = cpu.upload_dense(&part).map_err(text)?;
    let own = Dense::new([CHECKED], lengths[..CHECKED].to_vec()).map_err(text)?;
    let own = cpu.upload_dense(&own).map_err(text)?;
    let mut wanted = cpu.zeros(&[CHECKED, DISTANCE, WIDTH]).map_err(text)?;
    let stream = cpu.stream().map_err(text)?;
    let run = layer.run(&part, &own, &weights(&pairs), &mut wanted, &stream);
    run.map_err(text)?;
    let (wanted, out) = (
        wanted.to_dense().map_err(text)?,
        out.to_dense().map_err(text)?,
    );
    let bound = if T::NAME == "f16" { 0.02 } else { 0.12 };
    let mut worst = 0f64;
    for (found, wanted) in out.values().iter().zip(wanted.values()) {
        let share = (found.to_f64() - wanted.to_f64()).abs() / bound;
        worst = if share.is_nan() {
            f64::INFINITY
        } else {
            worst.max(share)
        };
    }
    Ok(worst)
}

fn text(error: impl Display) -> String {
    error.to_string()
}
