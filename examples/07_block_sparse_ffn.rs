//! Feed-forward layer of a Transformer with block-sparse weights, compared with the dense layer, forward and backward:
//! `H = relu(X W1^T)`, `Y = H W2^T`, and the gradients of both weights and of X.

use std::time::{Duration, Instant};

use einsparse::formats::{AnySparse, Dense, Format, f16, generate};
use einsparse::nn::{Linear, LinearOptions};
use einsparse::{Context, Operand, Plan, Result, Scalar, Stream, Tensor};

/// Sizes: model width, hidden width, number of tokens, block edge, and density of the weights.
struct Shape {
    model: usize,
    inner: usize,
    tokens: usize,
    edge: usize,
    density: f64,
}

fn main() -> Result<()> {
    let ctx = Context::new();
    println!("{ctx}");
    if ctx.is_cuda() {
        compare::<f16>(
            &ctx,
            &Shape { model: 2048, inner: 8192, tokens: 4096, edge: 64, density: 0.1 },
        )
    } else {
        compare::<f32>(&ctx, &Shape { model: 64, inner: 128, tokens: 32, edge: 16, density: 0.25 })
    }
}

/// Pseudorandom number in -1..1.
fn value(i: usize) -> f64 {
    ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / (1u64 << 23) as f64 - 1.0
}

/// Random block-sparse weights `[outputs, inputs]`.
fn weights<T: Scalar>(shape: &Shape, [outputs, inputs]: [usize; 2]) -> Result<AnySparse<T>> {
    let block = (shape.edge, shape.edge);
    let blocks = generate::blocks(outputs, inputs, block, shape.density, 1)?;
    let slots = blocks.columns().len() * shape.edge * shape.edge;
    let scale = (3.0 / (inputs as f64 * shape.density)).sqrt();
    let values = (0..slots).map(|i| T::from_f64(value(i) * scale)).collect();
    let bsr = einsparse::formats::Bsr::new(blocks, values)?;
    Ok(bsr.convert(Format::BlockGroupCoo { block, group: None })?)
}

fn random<T: Scalar>(ctx: &Context, [rows, columns]: [usize; 2], seed: usize) -> Result<Tensor<T>> {
    let at = |i: &[usize]| T::from_f64(value(i[0] * columns + i[1] + seed));
    ctx.upload_dense(&Dense::from_fn([rows, columns], at)?)
}

/// Results of one step: the output, the gradient of the input, and the gradients of both weights.
type Step<T> = [Dense<T>; 4];

/// Median time of nine steps after one warm-up step.
fn timed(stream: &Stream, mut step: impl FnMut() -> Result<()>) -> Result<Duration> {
    step()?;
    stream.synchronize()?;
    let mut times = Vec::new();
    for _ in 0..9 {
        let start = Instant::now();
        step()?;
        stream.synchronize()?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2])
}

fn compare<T: Scalar>(ctx: &Context, shape: &Shape) -> Result<()> {
    let w1 = weights::<T>(shape, [shape.inner, shape.model])?;
    let w2 = weights::<T>(shape, [shape.model, shape.inner])?;
    let x = random(ctx, [shape.tokens, shape.model], 1)?;
    let dy = random(ctx, [shape.tokens, shape.model], 2)?;
    let (sparse, sparse_time) = block_sparse(ctx, shape, [&w1, &w2], &x, &dy)?;
    let dense_weights = [w1.to_dense()?, w2.to_dense()?];
    let (dense, dense_time) = with_dense_weights(ctx, shape, &dense_weights, &x, &dy)?;
    println!(
        "one step: {sparse_time:?} with {} of the weights, {dense_time:?} with all",
        shape.density
    );
    for (i, name) in ["Y", "dX", "dW1", "dW2"].into_iter().enumerate() {
        let weight = i.checked_sub(2).map(|i| &dense_weights[i]);
        let error = difference(&sparse[i], &dense[i], weight);
        println!("{name:4} differs by {error:.1e} of its largest value");
        assert!(error < 4.0 * T::from_f64(1.0 / 512.0).to_f64(), "{name}: {error}");
    }
    Ok(())
}

/// Largest difference relative to the largest value. With `weight`, compares only where the weight is nonzero.
fn difference<T: Scalar>(a: &Dense<T>, b: &Dense<T>, weight: Option<&Dense<T>>) -> f64 {
    let (mut error, mut largest) = (0f64, 0f64);
    for (i, (a, b)) in a.values().iter().zip(b.values()).enumerate() {
        if weight.is_some_and(|w| w.values()[i] == T::ZERO) {
            continue;
        }
        error = error.max((a.to_f64() - b.to_f64()).abs());
        largest = largest.max(b.to_f64().abs());
    }
    error / largest
}

fn block_sparse<T: Scalar>(
    ctx: &Context,
    shape: &Shape,
    [w1, w2]: [&AnySparse<T>; 2],
    x: &Tensor<T>,
    dy: &Tensor<T>,
) -> Result<(Step<T>, Duration)> {
    let (first, second) = (
        LinearOptions { relu: true, ..LinearOptions::default() },
        LinearOptions { relu_input: true, ..LinearOptions::default() },
    );
    let mut first = Linear::new(ctx, w1, shape.tokens, &first)?;
    let mut second = Linear::new(ctx, w2, shape.tokens, &second)?;
    println!("{:?} and {:?}", first.variants(), second.variants());
    let inner = [shape.tokens, shape.inner];
    let (mut h, mut dh) = (ctx.zeros(&inner)?, ctx.zeros(&inner)?);
    let (mut y, mut dx) = (ctx.zeros(dy.shape())?, ctx.zeros(x.shape())?);
    let stream = ctx.stream()?;
    let time = timed(&stream, || {
        first.forward(x, &mut h, &stream)?;
        second.forward(&h, &mut y, &stream)?;
        second.backward(&h, dy, &mut dh, &stream)?;
        first.backward(x, &dh, &mut dx, &stream)
    })?;
    let gradients = [first.gradient().to_host()?, second.gradient().to_host()?];
    let [dw1, dw2] = gradients.map(|g| g.to_dense());
    Ok(([y.to_dense()?, dx.to_dense()?, dw1?, dw2?], time))
}

fn with_dense_weights<T: Scalar>(
    ctx: &Context,
    shape: &Shape,
    [w1, w2]: &[Dense<T>; 2],
    x: &Tensor<T>,
    dy: &Tensor<T>,
) -> Result<(Step<T>, Duration)> {
    let (w1, w2) = (ctx.upload_dense(w1)?, ctx.upload_dense(w2)?);
    let inner = [shape.tokens, shape.inner];
    let (mut h, mut dh) = (ctx.zeros(&inner)?, ctx.zeros(&inner)?);
    let (mut y, mut dx) = (ctx.zeros(dy.shape())?, ctx.zeros(x.shape())?);
    let (mut dw1, mut dw2) = (ctx.zeros(w1.shape())?, ctx.zeros(w2.shape())?);
    let plan = |text: &str, operands: &[(&str, Operand<'_, T>)]| -> Result<Plan<T>> {
        ctx.plan(text).operands(operands).build()
    };
    let forward_1 =
        plan("H[t,f] = relu(X[t,i] * W[f,i])", &[("X", x.into()), ("W", (&w1).into())])?;
    let forward_2 = plan("Y[t,i] = H[t,f] * W[i,f]", &[("H", (&h).into()), ("W", (&w2).into())])?;
    let inner_gradient = plan(
        "dH[t,f] = relu_grad(dY[t,i] * W[i,f], H[t,f])",
        &[("dY", dy.into()), ("W", (&w2).into()), ("H", (&h).into())],
    )?;
    let input_gradient =
        plan("dX[t,i] = dH[t,f] * W[f,i]", &[("dH", (&dh).into()), ("W", (&w1).into())])?;
    let gradient_1 = plan("dW[f,i] = dH[t,f] * X[t,i]", &[("dH", (&dh).into()), ("X", x.into())])?;
    let gradient_2 = plan("dW[i,f] = dY[t,i] * H[t,f]", &[("dY", dy.into()), ("H", (&h).into())])?;
    let stream = ctx.stream()?;
    let time = timed(&stream, || {
        forward_1.run(&[("X", x.into()), ("W", (&w1).into())], &mut h, &stream)?;
        forward_2.run(&[("H", (&h).into()), ("W", (&w2).into())], &mut y, &stream)?;
        let operands = [("dY", dy.into()), ("W", (&w2).into()), ("H", (&h).into())];
        inner_gradient.run(&operands, &mut dh, &stream)?;
        gradient_2.run(&[("dY", dy.into()), ("H", (&h).into())], &mut dw2, &stream)?;
        input_gradient.run(&[("dH", (&dh).into()), ("W", (&w1).into())], &mut dx, &stream)?;
        gradient_1.run(&[("dH", (&dh).into()), ("X", x.into())], &mut dw1, &stream)
    })?;
    let step = [y.to_dense()?, dx.to_dense()?, dw1.to_dense()?, dw2.to_dense()?];
    Ok((step, time))
}
