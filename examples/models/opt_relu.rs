//! Feed-forward layer of OPT (arXiv 2205.01068) with ReLU. Few hidden activations are above zero, and only their rows
//! of the second weights are read. Activations above zero are found at the end of the first product.

use einsparse::dynamic::SparsityHint;
use einsparse::formats::{Dense, f16, generate};
use einsparse::nn::{FeedForward, FeedForwardOptions};
use einsparse::{Context, Operand, Plan, Result, Stream, Tensor, einsum};

use super::common::{Measured, Memory, Run, largest_error, wide};

const UP: &str = "H[t,h] = relu(X[t,i] * U[i,h])";
const DOWN: &str = "Y[t,o] = H[t,h] * W[h,o]";

/// One in `EVERY` hidden columns is above zero, for every token: 3 %.
const EVERY: usize = 32;

/// Both weights, seeded. Inputs are positive, so hidden columns are above zero where their first weights are positive.
pub fn weights([inputs, hidden]: [usize; 2]) -> Result<[Dense<f16>; 2]> {
    let scaled = |seed: u64, scale: f32, sign: fn(usize) -> f32| {
        let mut values = generate::random_values::<f16>(inputs * hidden, seed);
        for (at, x) in values.iter_mut().enumerate() {
            let size = x.to_f32() * scale;
            *x = f16::from_f32(match sign(at) {
                0.0 => size,
                sign => sign * size.abs(),
            });
        }
        values
    };
    // Row lengths are multiples of `EVERY`.
    let sign = |at: usize| if at.is_multiple_of(EVERY) { 1.0 } else { -1.0 };
    Ok([
        Dense::new([inputs, hidden], scaled(1, 1.0 / inputs as f32, sign))?,
        Dense::new([hidden, inputs], scaled(2, 1.0, |_| 0.0))?,
    ])
}

pub fn inputs(tokens: usize, width: usize) -> Result<Dense<f16>> {
    let values = generate::random_values::<f16>(tokens * width, 3);
    let values = Dense::new([tokens, width], values)?;
    Ok(values.map(|x| f16::from_f32(x.to_f32().abs())))
}

/// Dense baseline: the layer as two dense products.
pub struct DenseTwin {
    up: Plan<f16>,
    down: Plan<f16>,
    hidden: Tensor<f16>,
}

impl DenseTwin {
    pub fn new(ctx: &Context, [x, u, w]: [&Tensor<f16>; 3]) -> Result<Self> {
        let hidden = ctx.zeros(&[x.shape()[0], u.shape()[1]])?;
        let operands = [("X", x.into()), ("U", u.into())];
        let up = ctx.plan(UP).operands(&operands).build()?;
        let operands = [("H", (&hidden).into()), ("W", w.into())];
        let down = ctx.plan(DOWN).operands(&operands).build()?;
        Ok(DenseTwin { up, down, hidden })
    }

    pub fn forward(
        &mut self,
        [x, u, w]: [&Tensor<f16>; 3],
        y: &mut Tensor<f16>,
        stream: &Stream,
    ) -> Result<()> {
        let operands: [(&str, Operand<'_, f16>); 2] = [("X", x.into()), ("U", u.into())];
        self.up.run(&operands, &mut self.hidden, stream)?;
        let operands: [(&str, Operand<'_, f16>); 2] =
            [("H", (&self.hidden).into()), ("W", w.into())];
        self.down.run(&operands, y, stream)
    }
}

/// The layer in f64, with hidden activations rounded as they are stored.
pub fn reference(x: &Dense<f16>, [u, w]: [&Dense<f16>; 2]) -> Result<Vec<f64>> {
    let cpu = Context::unchecked_cpu();
    let [x, u, w] = [x, u, w].map(|d| d.map(f16::to_f64));
    let hidden = einsum!(cpu, UP, X = &x, U = &u)?.to_dense()?;
    let hidden = hidden.map(|x| f16::from_f64(x).to_f64());
    let y = einsum!(cpu, DOWN, H = &hidden, W = &w)?;
    Ok(y.to_dense()?.into_values())
}

/// Error of the layer, and share of hidden activations above zero. Asserts that two runs give the same bits.
pub fn checked(ctx: &Context, extents: [usize; 2], tokens: usize) -> Result<(f64, f64)> {
    let ([u, w], x) = (weights(extents)?, inputs(tokens, extents[0])?);
    let wanted = reference(&x, [&u, &w])?;
    let (u, w, x) = (ctx.upload_dense(&u)?, ctx.upload_dense(&w)?, ctx.upload_dense(&x)?);
    let mut layer = layer(ctx, tokens, extents)?;
    let mut found = Vec::new();
    for _ in 0..2 {
        let mut y = ctx.zeros::<f16>(&[tokens, extents[0]])?;
        let stream = ctx.stream()?;
        layer.forward([&x, &u, &w], &mut y, &stream)?;
        stream.synchronize()?;
        found.push(wide(&y)?);
    }
    assert_eq!(found[0], found[1], "two runs differ");
    let hidden = layer.hidden().to_dense()?;
    let live = hidden.values().iter().filter(|h| h.to_f32() > 0.0).count();
    let share = live as f64 / hidden.values().len() as f64;
    Ok((largest_error(&found[0], &wanted), share))
}

fn layer(ctx: &Context, tokens: usize, [inputs, hidden]: [usize; 2]) -> Result<FeedForward<f16>> {
    let options = FeedForwardOptions {
        expected: SparsityHint::MicroTiles(1.0 / EVERY as f64),
        ..FeedForwardOptions::default()
    };
    FeedForward::new(ctx, [tokens, inputs, hidden, inputs], &options)
}

pub fn run(run: &Run<'_>) -> Result<()> {
    let ctx = &run.context;
    let (error, share) = checked(ctx, [256, 1024], 32)?;
    println!("256 -> 1024 -> 256: largest error {error:.1e}, {:.1} % above zero", 100.0 * share);
    assert!(error < 2e-3 && (0.01..0.05).contains(&share));
    let extents = if run.toy { [256, 1024] } else { [5120, 20_480] };
    let memory = Memory::before(ctx);
    let [u, w] = weights(extents)?;
    let (u, w) = (ctx.upload_dense(&u)?, ctx.upload_dense(&w)?);
    let batches = run.arguments.batch.clone().unwrap_or(vec![1, 8, 32]);
    for tokens in batches {
        let x = ctx.upload_dense(&inputs(tokens, extents[0])?)?;
        let mut layer = layer(ctx, tokens, extents)?;
        let mut twin = DenseTwin::new(ctx, [&x, &u, &w])?;
        let shape = [tokens, extents[0]];
        let (mut y, mut dense) = (ctx.zeros::<f16>(&shape)?, ctx.zeros::<f16>(&shape)?);
        let times = run.time(|stream| layer.forward([&x, &u, &w], &mut y, stream))?;
        let held = memory.since(ctx);
        let other = run.time(|stream| twin.forward([&x, &u, &w], &mut dense, stream))?;
        let error = largest_error(&wide(&y)?, &wide(&dense)?);
        let [inputs, hidden] = extents;
        run.report(Measured {
            case: format!("opt_relu {inputs} -> {hidden} -> {inputs}, {tokens} tokens"),
            dtype: "f16",
            times,
            work: (tokens as f64, "tokens"),
            twin: Some(("dense".into(), other)),
            held,
            error: Some(error),
            note: layer.variants().join(" "),
        });
        assert!(error < 5e-3);
    }
    Ok(())
}
