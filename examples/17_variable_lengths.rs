//! Transformer layer over a batch of sequences of different lengths, which computes only their tokens. Compared with
//! the layer made of dense products over the padded batch. Uses f16 and a GPU if one is available; otherwise the
//! layer is smaller and runs on the CPU in f32.

use einsparse::formats::{Dense, f16, generate};
use einsparse::nn::{Encoder, EncoderOptions, EncoderWeights, ResidualNorm};
use einsparse::ops::{AttentionMask, AttentionOptions, SparseAttention};
use einsparse::{Context, Operand, Result, Scalar, Tensor};

fn uploaded<T: Scalar>(ctx: &Context, shape: &[usize], size: f64, seed: u64) -> Result<Tensor<T>> {
    let values = generate::random_values::<f32>(shape.iter().product(), seed);
    let values = values.iter().map(|&x| T::from_f64(f64::from(x) * size));
    ctx.upload_dense(&Dense::new(shape.to_vec(), values.collect())?)
}

/// Plans and runs `text`: a product with a bias, without `relu`, and with a GELU if `text` contains one.
fn product<T: Scalar>(
    ctx: &Context,
    text: &str,
    a: &Tensor<T>,
    [w, bias]: [&Tensor<T>; 2],
) -> Result<Tensor<T>> {
    let operands: [(&str, Operand<'_, T>); 3] =
        [("A", a.into()), ("W", w.into()), ("b", bias.into())];
    let plan = ctx.plan(text).operands(&operands).build()?;
    let mut out = ctx.zeros(&[a.shape()[0], w.shape()[1]])?;
    plan.run(&operands, &mut out, &ctx.stream()?)?;
    Ok(out)
}

/// The layer over all rows, padding included. Only the attention uses the lengths.
fn padded<T: Scalar>(
    ctx: &Context,
    o: &EncoderOptions,
    x: &Dense<T>,
    lengths: &[i32],
    w: &EncoderWeights<'_, T>,
) -> Result<Dense<T>> {
    let (rows, d) = (o.items * o.distance, o.width / o.heads);
    let x = ctx.upload_dense(&Dense::new(vec![rows, o.width], x.values().to_vec())?)?;
    let qkv = product(ctx, "C[m,n] = A[m,k] * W[k,n] + b[n]", &x, w.qkv)?.to_dense()?;
    // `[items * heads, tokens, dim]` for each of q, k and v.
    let split = |part: usize| {
        let shape = vec![o.items * o.heads, o.distance, d];
        ctx.upload_dense(&Dense::from_fn(shape, |i| {
            let row = i[0] / o.heads * o.distance + i[1];
            qkv.values()[row * 3 * o.width + part * o.width + i[0] % o.heads * d + i[2]]
        })?)
    };
    let options = AttentionOptions {
        heads: o.items * o.heads,
        dim: d,
        lengths: Some(lengths.iter().map(|&l| l as usize).collect()),
        ..AttentionOptions::default()
    };
    let all = AttentionMask::Window { before: o.distance, after: o.distance };
    let attention = SparseAttention::structured(ctx, [o.distance; 2], &[all], &options)?;
    let mut seen = ctx.zeros(&[o.items * o.heads, o.distance, d])?;
    let stream = ctx.stream()?;
    attention.forward([&split(0)?, &split(1)?, &split(2)?], &mut seen, None, &stream)?;
    let seen = seen.to_dense()?;
    let joined = ctx.upload_dense(&Dense::from_fn(vec![rows, o.width], |i| {
        let head = i[0] / o.distance * o.heads + i[1] / d;
        seen.values()[(head * o.distance + i[0] % o.distance) * d + i[1] % d]
    })?)?;
    let norm = ResidualNorm::new(ctx, [rows, o.width], o.epsilon)?;
    let (mut h, mut out) = (ctx.zeros(&[rows, o.width])?, ctx.zeros(&[rows, o.width])?);
    let projected = product(ctx, "C[m,n] = A[m,k] * W[k,n] + b[n]", &joined, w.out)?;
    norm.forward([&x, &projected], w.first_norm, &mut h, &stream)?;
    stream.synchronize()?;
    let hidden = product(ctx, "C[m,n] = gelu(A[m,k] * W[k,n] + b[n])", &h, w.up)?;
    let down = product(ctx, "C[m,n] = A[m,k] * W[k,n] + b[n]", &hidden, w.down)?;
    norm.forward([&h, &down], w.second_norm, &mut out, &stream)?;
    out.to_dense()
}

fn compared<T: Scalar>(ctx: &Context, o: &EncoderOptions, bound: f64) -> Result<()> {
    let (d, f) = (o.width, o.hidden);
    let root = |inputs: usize| 1.0 / (inputs as f64).sqrt();
    let matrix = |inputs: usize, outputs: usize| {
        uploaded::<T>(ctx, &[inputs, outputs], root(inputs), outputs as u64)
    };
    let vector = |count: usize, seed: u64| uploaded::<T>(ctx, &[count], 0.1, seed);
    let ones = ctx.upload_dense(&Dense::from_fn(vec![d], |_| T::ONE)?)?;
    let (qkv, long) = (matrix(d, 3 * d)?, vector(3 * d, 1)?);
    let (square, short) = (matrix(d, d)?, vector(d, 2)?);
    let (up, middle, down) = (matrix(d, f)?, vector(f, 3)?, matrix(f, d)?);
    let weights = EncoderWeights {
        qkv: [&qkv, &long],
        out: [&square, &short],
        up: [&up, &middle],
        down: [&down, &short],
        first_norm: [&ones, &short],
        second_norm: [&ones, &short],
    };
    let lengths: Vec<i32> =
        (0..o.items).map(|i| ((i * 23 + 5) % (o.distance * 5 / 8)) as i32 + 1).collect();
    let values = generate::random_values::<f32>(o.items * o.distance * d, 9);
    let values = values.iter().map(|&x| T::from_f64(f64::from(x))).collect();
    let x = Dense::new(vec![o.items, o.distance, d], values)?;
    let lengths_there = ctx.upload_dense(&Dense::new([o.items], lengths.clone())?)?;
    let layer = Encoder::<T>::new(ctx, o)?;
    let mut out = ctx.zeros(&[o.items, o.distance, d])?;
    let stream = ctx.stream()?;
    layer.forward(&ctx.upload_dense(&x)?, &lengths_there, &[weights], &mut out, &stream)?;
    stream.synchronize()?;
    let (out, wanted) = (out.to_dense()?, padded(ctx, o, &x, &lengths, &weights)?);
    for (item, &length) in lengths.iter().enumerate() {
        let first = item * o.distance * d;
        for i in first..first + length as usize * d {
            let (found, wanted) = (out.values()[i].to_f64(), wanted.values()[i].to_f64());
            assert!((found - wanted).abs() <= bound, "{found} for {wanted}");
        }
    }
    let tokens: i32 = lengths.iter().sum();
    let rows = o.items * o.distance;
    println!("{ctx}: {tokens} tokens of {rows} rows, by {:?}", layer.variants());
    Ok(())
}

fn main() -> Result<()> {
    let ctx = Context::new();
    let options = EncoderOptions {
        items: 32,
        distance: 128,
        width: 768,
        heads: 12,
        hidden: 3072,
        epsilon: 1e-5,
        most: None,
        expected: Some(32 * 40),
    };
    let small =
        EncoderOptions { items: 4, distance: 16, width: 128, heads: 2, hidden: 256, ..options };
    let options = if ctx.is_cuda() { options } else { small };
    compared::<f16>(&ctx, &options, 0.05)
}
