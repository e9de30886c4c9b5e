//! BERT-base layer over 32 sequences of up to 128 tokens, 40 on average (PIT, arXiv 2301.10936), without padding
//! tokens. The baseline is the layer over the padded batch: cuBLASLt with bias and GELU in its epilogue, attention of
//! all 128 keys, and einsparse's normalization. Each is a captured CUDA graph.
//!
//! `m` is the rows of the padded batch, `nnz` the tokens; rates count their products. Recorded as operation `encoder`.

use crate::peers::fused::FusedDense;
use crate::peers::torch;
use crate::prelude::*;
use einsparse::nn::{Encoder, EncoderOptions, EncoderWeights, ResidualNorm};
use einsparse::ops::{AttentionMask, AttentionOptions, SparseAttention};

pub const OP: &str = "encoder";

const ITEMS: usize = 32;
const DISTANCE: usize = 128;
const ROWS: usize = ITEMS * DISTANCE;
const WIDTH: usize = 768;
const HEADS: usize = 12;
const HIDDEN: usize = 3072;
const MEAN: usize = 40;
/// Number of checked sequences.
const CHECKED: usize = 2;

pub fn run(bench: &Bench<'_>) -> Result<()> {
    measured::<f16>(&bench.anew()?, Dtype::F16)?;
    measured::<bf16>(&bench.anew()?, Dtype::Bf16)
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

/// Weights in host memory.
struct Model<T> {
    /// qkv, out, up, down; the two normalizations.
    pairs: Vec<[Dense<T>; 2]>,
}

impl<T: Scalar> Model<T> {
    fn new() -> Result<Self> {
        let mut pairs = Vec::new();
        for (i, [inputs, outputs]) in EXTENTS.into_iter().enumerate() {
            let size = 1.0 / (inputs as f64).sqrt();
            pairs.push([
                values::dense(&[inputs, outputs], 100 + i, NORMAL * size),
                values::dense(&[outputs], 10 + i, NORMAL * 0.1),
            ]);
        }
        for seed in [20, 30] {
            let ones = Dense::from_fn(vec![WIDTH], |_| T::ONE)?;
            pairs.push([ones, values::dense(&[WIDTH], seed, NORMAL * 0.1)]);
        }
        Ok(Model { pairs })
    }

    fn upload(&self, context: &Context) -> Result<Vec<[Tensor<T>; 2]>> {
        let pair =
            |[a, b]: &[Dense<T>; 2]| Ok([context.upload_dense(a)?, context.upload_dense(b)?]);
        self.pairs.iter().map(pair).collect()
    }
}

/// Inputs and outputs of the four products.
const EXTENTS: [[usize; 2]; 4] =
    [[WIDTH, 3 * WIDTH], [WIDTH, WIDTH], [WIDTH, HIDDEN], [HIDDEN, WIDTH]];

fn weights<T>(pairs: &[[Tensor<T>; 2]]) -> EncoderWeights<'_, T> {
    let [qkv, out, up, down, first_norm, second_norm] =
        [0, 1, 2, 3, 4, 5].map(|i| pairs[i].each_ref());
    EncoderWeights { qkv, out, up, down, first_norm, second_norm }
}

fn options(items: usize, expected: usize) -> EncoderOptions {
    EncoderOptions {
        items,
        distance: DISTANCE,
        width: WIDTH,
        heads: HEADS,
        hidden: HIDDEN,
        epsilon: 1e-5,
        most: None,
        expected: Some(expected),
    }
}

/// Weights and an input in device memory.
struct Case<'a, T> {
    bench: &'a Bench<'a>,
    dtype: Dtype,
    pairs: Vec<[Tensor<T>; 2]>,
    x: Tensor<T>,
}

fn measured<T: Scalar>(bench: &Bench<'_>, dtype: Dtype) -> Result<()> {
    let model = Model::<T>::new()?;
    let x = values::dense::<T>(&[ITEMS, DISTANCE, WIDTH], 40, NORMAL);
    let case = Case { bench, dtype, pairs: model.upload(&bench.context)?, x: bench.upload(&x)? };
    let cases = [("bert-b32-mean40", lengths()), ("bert-b32-full", vec![DISTANCE as i32; ITEMS])];
    for (workload, lengths) in &cases {
        case.ours(workload, lengths, |out| error(&model, &x, lengths, out))?;
        case.in_torch(workload, lengths)?;
    }
    let Some(times) = or_said(case.padded(), "padded layer") else {
        return Ok(());
    };
    for (workload, lengths) in &cases {
        let row = case.row(workload, lengths).by("cublas", "padded dense layer").timed(&times);
        bench.add(row.note(
            "a CUDA graph; cublasLt with bias and GELU, our attention of 128 keys on heads that lie apart, our \
             normalisation",
        ))?;
    }
    Ok(())
}

impl<T: Scalar> Case<'_, T> {
    fn row(&self, workload: &str, lengths: &[i32]) -> Row {
        let products: usize = EXTENTS.iter().map(|[k, n]| k * n).sum();
        let tokens = lengths.iter().sum::<i32>() as usize;
        Row::new(OP, workload, [ROWS, WIDTH, HIDDEN], tokens, self.dtype)
            .flops(2.0 * (tokens * products) as f64)
            .dense()
    }

    /// Times PyTorch's layer without padding, and its attention alone.
    fn in_torch(&self, workload: &str, lengths: &[i32]) -> Result<()> {
        let (dim, dtype) = (WIDTH / HEADS, self.dtype);
        let asked = format!(
            r#"{{"lengths": {lengths:?}, "heads": {HEADS}, "dim": {dim}, "hidden": {HIDDEN}, "dtype": "{dtype}"}}"#
        );
        let row = self.row(workload, lengths);
        let row = row.note("a CUDA graph; attention over packed sequences, packing left out");
        let (layers, others): (Vec<_>, Vec<_>) = torch::measure("packed", &asked)
            .into_iter()
            .partition(|(name, _)| name.starts_with("layer"));
        if let Some((name, times)) = torch::fastest(layers) {
            self.bench.add(row.clone().by("torch", name).timed(&times))?;
        }
        // einsparse's attention cannot be timed separately, because the launches of its layer overlap.
        for (name, times) in others.into_iter().filter(|(name, _)| name == "attention") {
            let row = Row { op: "packed_attention".into(), ..row.clone() };
            self.bench.add(row.by("torch", name).timed(&times))?;
        }
        Ok(())
    }

    /// Measures the time that each launch adds to a graph of the preceding ones, and the layer. Launches overlap, so
    /// these are not the times of single launches.
    fn ours(
        &self,
        workload: &str,
        lengths: &[i32],
        error: impl FnOnce(&Tensor<T>) -> Result<f64>,
    ) -> Result<()> {
        let bench = self.bench;
        let tokens = lengths.iter().sum::<i32>() as usize;
        let layer = Encoder::<T>::new(&bench.context, &options(ITEMS, tokens))?;
        let there = bench.tensor(&[ITEMS], lengths.to_vec())?;
        let mut out = bench.zeros(&[ITEMS, DISTANCE, WIDTH])?;
        let own = [weights(&self.pairs)];
        let mut before = [0.0; 2];
        for (name, count) in Encoder::<T>::STEPS.into_iter().zip(1..) {
            let times = bench.in_a_graph(|| {
                Ok(layer.forward_first(count, &self.x, &there, &own, &mut out, &bench.stream)?)
            })?;
            let note = format!(
                "a CUDA graph of the first {count} launches takes {:.1} us ({:.1} warm); less that of the launches in \
                 front",
                times.cold * 1e3,
                times.warm * 1e3
            );
            let row = self.row(&format!("{workload}-kernels"), lengths);
            bench.add(Row {
                ms: times.cold - before[0],
                ms_warm: Some(times.warm - before[1]),
                work: Default::default(),
                ..row.ours(format!("{count} {name}")).note(note)
            })?;
            before = [times.cold, times.warm];
        }
        let times = bench
            .in_a_graph(|| Ok(layer.forward(&self.x, &there, &own, &mut out, &bench.stream)?))?;
        let row = self.row(workload, lengths).ours(layer.variants().join(" ")).timed(&times);
        let row = row.prepared(None, layer.workspace_bytes()).note("a CUDA graph");
        bench.add(row.error(error(&out)?))
    }

    /// Times the layer over all rows. The weights are einsparse's, read as `[outputs, inputs]`, which does not change
    /// the times.
    fn padded(&self) -> Result<Times> {
        let (bench, stream, pairs) = (self.bench, &self.bench.stream, &self.pairs);
        let (mut products, mut biases) = (Vec::new(), Vec::new());
        for (i, [inputs, outputs]) in EXTENTS.into_iter().enumerate() {
            let bias = Buffer::from_slice(&values::<T>(outputs, 40 + i, NORMAL * 0.1))?;
            let extents = [outputs, inputs, ROWS];
            let own = (&bias, i == 2);
            products.push(FusedDense::linear(bench.gpu, self.dtype, extents, own)?);
            biases.push(bias);
        }
        let options = AttentionOptions {
            heads: ITEMS * HEADS,
            dim: WIDTH / HEADS,
            ..AttentionOptions::default()
        };
        let all = [AttentionMask::Window { before: DISTANCE, after: DISTANCE }];
        let extents = [DISTANCE; 2];
        let attention = SparseAttention::<T>::structured(&bench.context, extents, &all, &options)?;
        let norm = ResidualNorm::<T>::new(&bench.context, [ROWS, WIDTH], 1e-5)?;
        let heads = [ITEMS * HEADS, DISTANCE, WIDTH / HEADS];
        let filled = |shape: &[usize], seed| bench.filled::<T>(shape, seed, NORMAL);
        let (q, k, v) = (filled(&heads, 50)?, filled(&heads, 51)?, filled(&heads, 52)?);
        let mut seen = bench.zeros::<T>(&heads)?;
        let rows = |columns: usize| bench.zeros::<T>(&[ROWS, columns]);
        let input = filled(&[ROWS, WIDTH], 53)?;
        let (qkv, sums) = (rows(3 * WIDTH)?, rows(WIDTH)?);
        let (mut h, hidden, mut out) = (rows(WIDTH)?, rows(HIDDEN)?, rows(WIDTH)?);
        bench.in_a_graph(|| {
            products[0].run([at(&pairs[0][0])?, at(&self.x)?, at(&qkv)?])?;
            attention.forward([&q, &k, &v], &mut seen, None, stream)?;
            products[1].run([at(&pairs[1][0])?, at(&seen)?, at(&sums)?])?;
            norm.forward([&input, &sums], pairs[4].each_ref(), &mut h, stream)?;
            products[2].run([at(&pairs[2][0])?, at(&h)?, at(&hidden)?])?;
            products[3].run([at(&pairs[3][0])?, at(&hidden)?, at(&sums)?])?;
            Ok(norm.forward([&h, &sums], pairs[5].each_ref(), &mut out, stream)?)
        })
    }
}

/// Max error of some sequences, relative to a bound. Results of seven steps are rounded, and normalized elements are
/// near 1.
fn error<T: Scalar>(
    model: &Model<T>,
    x: &Dense<T>,
    lengths: &[i32],
    out: &Tensor<T>,
) -> Result<f64> {
    let cpu = Context::cpu();
    let pairs = model.upload(&cpu)?;
    let size = DISTANCE * WIDTH;
    let layer = Encoder::<T>::new(&cpu, &options(CHECKED, ROWS))?;
    let part = x.values()[..CHECKED * size].to_vec();
    let part = Dense::new(vec![CHECKED, DISTANCE, WIDTH], part)?;
    let part = cpu.upload_dense(&part)?;
    let own = Dense::new([CHECKED], lengths[..CHECKED].to_vec())?;
    let own = cpu.upload_dense(&own)?;
    let mut wanted = cpu.zeros(&[CHECKED, DISTANCE, WIDTH])?;
    let stream = cpu.stream()?;
    layer.forward(&part, &own, &[weights(&pairs)], &mut wanted, &stream)?;
    let (wanted, out) = (wanted.to_dense()?, out.to_dense()?);
    let bound = if T::NAME == "f16" { 0.02 } else { 0.12 };
    let pairs = out.values().iter().zip(wanted.values());
    let errors = pairs.map(|(found, wanted)| (found.to_f64() - wanted.to_f64()).abs() / bound);
    Ok(errors.fold(0.0, worse))
}
