//! The thirteen 1x1 convolutions of MobileNetV1 with 90 % of the weights pruned: time and device memory of the chain,
//! sparse and dense. Each layer is one kernel with bias and ReLU. Checked against the CPU. Requires a GPU.
//!
//! A 1x1 convolution is `C[out,place] = relu(W[out,in] * B[in,place] + bias[out])`; `place` is a pixel. The depthwise
//! layers in between are left out. After a layer that halves the map, the chain uses the first quarter of the pixels.

use std::time::Instant;

use einsparse::formats::{Csr, Dense, f16, generate};
use einsparse::raw::RawSpmm;
use einsparse::{Context, Graph, Operand, Options, Plan, Result, SparseTensor, Tensor, Weights};

/// Output channels, input channels and edge of the feature map (arXiv 1704.04861, table 1). The 512 x 512 layer
/// occurs five times.
const LAYERS: [(usize, usize, usize); 13] = [
    (64, 32, 112),
    (128, 64, 56),
    (128, 128, 56),
    (256, 128, 28),
    (256, 256, 28),
    (512, 256, 14),
    (512, 512, 14),
    (512, 512, 14),
    (512, 512, 14),
    (512, 512, 14),
    (512, 512, 14),
    (1024, 512, 7),
    (1024, 1024, 7),
];
const DENSITY: f64 = 0.1;
/// Images per run. With 8 images the columns of all maps are multiples of 8, the elements of a kernel's vector loads.
const IMAGES: usize = 8;
const TEXT: &str = "C[m,n] = relu(W[m,k] * B[k,n] + bias[m])";

/// Storage of a layer's weights.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stored {
    /// CSR only.
    Sparse,
    /// CSR, and the format that the plan selects and prepacks once.
    Prepacked,
    /// Dense.
    Dense,
}

enum Matrix {
    Sparse(SparseTensor<f16>),
    Dense(Tensor<f16>),
}

struct Layer {
    weights: Matrix,
    bias: Tensor<f16>,
    plan: Plan<f16>,
    places: usize,
}

fn main() -> Result<()> {
    let ctx = Context::new();
    if ctx.device().is_none() {
        println!("skipped: no GPU (`einsparse doctor` says what is missing)");
        return Ok(());
    }
    println!("{ctx}");
    let pruned = LAYERS.iter().zip(1..).map(|(&(out, inputs, _), seed)| {
        let pattern = generate::uniform(out, inputs, DENSITY, seed)?;
        // Preserves the variance of the input: after a ReLU half of the inputs are zero.
        let scale = (2.0 / (inputs as f64 * DENSITY)).sqrt();
        let values = generate::random_values::<f32>(pattern.columns().len(), seed);
        let values = values.iter().map(|x| f16::from_f64(f64::from(*x) * scale));
        Ok(Csr::new(pattern, values.collect())?)
    });
    let pruned = pruned.collect::<Result<Vec<_>>>()?;
    let biases: Vec<Vec<f16>> = (LAYERS.iter().zip(100..))
        .map(|(&(out, ..), seed)| generate::random_values::<f16>(out, seed))
        .collect();
    let input = generate::random_values::<f16>(LAYERS[0].1 * places(0), 7);
    let input = Dense::new([LAYERS[0].1, places(0)], input)?;
    let mut outputs = Vec::new();
    for kind in [Stored::Dense, Stored::Sparse, Stored::Prepacked] {
        outputs.push(chain(&ctx, kind, &pruned, &biases, &input)?);
    }
    check(&pruned, &biases, &input, &outputs);
    Ok(())
}

/// Pixels of a layer's maps, of all images.
fn places(layer: usize) -> usize {
    LAYERS[layer].2 * LAYERS[layer].2 * IMAGES
}

/// Plans one layer. Also returns its bytes of device memory, without input and output.
fn layer(
    ctx: &Context,
    kind: Stored,
    (weights, bias, places): (&Csr<f16>, &[f16], usize),
) -> Result<(Layer, usize)> {
    let pattern = weights.pattern();
    let (out, inputs) = (pattern.rows(), pattern.cols());
    let bias = ctx.upload_dense(&Dense::new([out], bias.to_vec())?)?;
    // Planning uses only the shape of the input.
    let b = Dense::<f16>::zeros(vec![inputs, places])?;
    let (weights, bytes) = if kind == Stored::Dense {
        let dense = weights.to_dense()?;
        (Matrix::Dense(ctx.upload_dense(&dense)?), out * inputs * 2)
    } else {
        let bytes = pattern.columns().len() * 6 + (out + 1) * 4;
        (Matrix::Sparse(ctx.upload(weights)?), bytes)
    };
    let own: Operand<'_, f16> = match &weights {
        Matrix::Sparse(weights) => weights.into(),
        Matrix::Dense(weights) => weights.into(),
    };
    let options = Options::default().weights(if kind == Stored::Prepacked {
        Weights::Static
    } else {
        Weights::EachRun
    });
    let operands = [("W", own), ("B", (&b).into()), ("bias", (&bias).into())];
    let plan = ctx.plan(TEXT).operands(&operands).options(&options).build()?;
    let bytes = bytes + plan.workspace_bytes() + out * 2;
    let layer = Layer { weights, bias, plan, places };
    Ok((layer, bytes))
}

/// Runs the chain, prints its time and memory, and returns the last map.
fn chain(
    ctx: &Context,
    kind: Stored,
    pruned: &[Csr<f16>],
    biases: &[Vec<f16>],
    input: &Dense<f16>,
) -> Result<Dense<f16>> {
    let (mut layers, mut bytes) = (Vec::new(), 0);
    for (i, (weights, bias)) in pruned.iter().zip(biases).enumerate() {
        let (layer, own) = layer(ctx, kind, (weights, bias, places(i)))?;
        bytes += own;
        layers.push(layer);
    }
    // Layers alternate between two maps: one is read, the other written. The first layer's output is the largest map.
    let input = ctx.upload_dense(input)?;
    let largest = LAYERS[0].0 * places(0);
    let maps: [Tensor<f16>; 2] = [ctx.zeros(&[largest])?, ctx.zeros(&[largest])?];
    let address = |tensor: &Tensor<f16>| tensor.address().unwrap_or(0);
    let mut steps = Vec::new();
    let (mut from, mut ldb) = (address(&input), places(0));
    for (i, layer) in layers.iter().enumerate() {
        let (columns, values) = match &layer.weights {
            Matrix::Sparse(weights) => (weights.columns_address(), weights.values_address()),
            Matrix::Dense(weights) => (None, weights.address()),
        };
        let to = address(&maps[i % 2]);
        let raw = RawSpmm::default()
            .columns(columns.unwrap_or(0))
            .values(values.unwrap_or(0))
            .b(from)
            .ldb(ldb)
            .c(to)
            .ldc(layer.places)
            .bias(address(&layer.bias));
        steps.push((&layer.plan, raw));
        (from, ldb) = (to, layer.places);
    }
    let microseconds = timed(ctx, &steps)?;
    let maps_bytes = 2 * 2 * largest;
    let names: Vec<&str> = layers.iter().map(|layer| layer.plan.variant()).collect();
    println!(
        "{kind:?}: {microseconds:.0} us a chain; {:.2} MB of weights and work lists, {:.1} MB with the maps\n  {}",
        bytes as f64 / 1e6,
        (bytes + maps_bytes) as f64 / 1e6,
        names.join(", ")
    );
    let last = layers.len() - 1;
    let shape = [LAYERS[last].0, places(last)];
    let mut all = maps[last % 2].to_dense()?.values().to_vec();
    all.truncate(shape[0] * shape[1]);
    Ok(Dense::new(shape, all)?)
}

/// Median microseconds of the chain as a CUDA graph.
fn timed(ctx: &Context, steps: &[(&Plan<f16>, RawSpmm)]) -> Result<f64> {
    const REPEATS: u32 = 20;
    let stream = ctx.stream()?;
    let mut graph = Graph::capture(stream.raw(), |stream| {
        for (plan, raw) in steps {
            // SAFETY: the addresses point to operands of the planned shapes and pattern, which stay valid until the
            // last replay is done. Maps are at least as long as planned, and so are their row strides.
            unsafe { plan.run_raw(raw, stream)? };
        }
        Ok(())
    })?;
    let mut times = Vec::new();
    for _ in 0..10 {
        let start = Instant::now();
        for _ in 0..REPEATS {
            // SAFETY: the operands captured above stay valid.
            unsafe { graph.launch(stream.raw())? };
        }
        stream.raw().synchronize()?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(REPEATS));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Compares every 41st pixel of the last maps with a chain on the CPU, which rounds each map to f16 as the kernels do.
/// The channels of a pixel do not depend on other pixels.
fn check(pruned: &[Csr<f16>], biases: &[Vec<f16>], input: &Dense<f16>, outputs: &[Dense<f16>]) {
    let (mut worst, mut largest) = (vec![0f64; outputs.len()], 0f64);
    for place in (0..places(LAYERS.len() - 1)).step_by(41) {
        let mut channels: Vec<f64> =
            (0..LAYERS[0].1).map(|c| input.values()[c * places(0) + place].to_f64()).collect();
        for (weights, bias) in pruned.iter().zip(biases) {
            let pattern = weights.pattern();
            let row = |row: usize| {
                let entries = pattern.row(row);
                let columns = pattern.columns()[entries.clone()].iter();
                let values = weights.values()[entries].iter();
                let products = columns.zip(values).map(|(&c, w)| w.to_f64() * channels[c as usize]);
                f16::from_f64((products.sum::<f64>() + bias[row].to_f64()).max(0.0)).to_f64()
            };
            channels = (0..pattern.rows()).map(row).collect();
        }
        for (channel, wanted) in channels.iter().enumerate() {
            largest = largest.max(*wanted);
            for (worst, output) in worst.iter_mut().zip(outputs) {
                let found = output.values()[channel * output.shape()[1] + place].to_f64();
                // A NaN counts as an infinite error.
                let error = (found - wanted).abs();
                *worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
            }
        }
    }
    for worst in worst {
        println!("differs by {:.1e} of the largest value", worst / largest);
        // Each of the 13 roundings may differ by 1/2048, and later layers propagate the differences.
        assert!(worst <= 0.01 * largest, "off by {worst}, the largest is {largest}");
    }
}
