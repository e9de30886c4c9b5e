//! Feed-forward layer of a language model with ReLU, compared with the dense layer. For one or a few tokens hardly any
//! hidden activations are above zero, so hardly any rows of the second weights are read.

use einsparse::dynamic::SparsityHint;
use einsparse::formats::{Dense, f16, generate};
use einsparse::nn::{FeedForward, FeedForwardOptions};
use einsparse::{Context, Result, einsum};

const INPUTS: usize = 256;
const HIDDEN: usize = 1024;

/// Weights that put most hidden activations below zero: inputs are positive, and only one column in sixteen has
/// positive weights.
fn weights() -> Result<[Dense<f16>; 2]> {
    let values = |seed: u64| generate::random_values::<f32>(INPUTS * HIDDEN, seed);
    let random = |shape: [usize; 2], seed: u64| Dense::new(shape, values(seed));
    let (u, w) = (random([INPUTS, HIDDEN], 1)?, random([HIDDEN, INPUTS], 2)?);
    let up = |at: &[usize]| {
        let size = u.get(at).unwrap_or(0.0).abs() / INPUTS as f32;
        f16::from_f32(if at[1] % 16 == 3 { size } else { -size })
    };
    let down = |at: &[usize]| f16::from_f32(w.get(at).unwrap_or(0.0));
    Ok([Dense::from_fn(vec![INPUTS, HIDDEN], up)?, Dense::from_fn(vec![HIDDEN, INPUTS], down)?])
}

fn main() -> Result<()> {
    let ctx = Context::new();
    let [u, w] = weights()?;
    let (u, w) = (ctx.upload_dense(&u)?, ctx.upload_dense(&w)?);
    for tokens in [1, 32, 200] {
        let values = generate::random_values::<f32>(tokens * INPUTS, 3);
        let values = values.iter().map(|x| f16::from_f32(x.abs())).collect();
        let x = ctx.upload_dense(&Dense::new([tokens, INPUTS], values)?)?;
        let options = FeedForwardOptions {
            expected: SparsityHint::MicroTiles(1.0 / 16.0),
            ..FeedForwardOptions::default()
        };
        let extents = [tokens, INPUTS, HIDDEN, INPUTS];
        let mut layer = FeedForward::new(&ctx, extents, &options)?;
        let mut y = ctx.zeros::<f16>(&[tokens, INPUTS])?;
        let stream = ctx.stream()?;
        layer.forward([&x, &u, &w], &mut y, &stream)?;
        stream.synchronize()?;
        println!("{ctx}, {tokens} tokens: {:?}", layer.variants());
        let hidden = einsum!(ctx, "H[t,h] = relu(X[t,i] * U[i,h])", X = &x, U = &u)?;
        let dense = einsum!(ctx, "Y[t,o] = H[t,h] * W[h,o]", H = &hidden, W = &w)?;
        let near = |(a, b): (&f16, &f16)| (a.to_f32() - b.to_f32()).abs() <= 0.01;
        let (y, dense) = (y.to_dense()?, dense.to_dense()?);
        assert!(y.values().iter().zip(dense.values()).all(near));
    }
    Ok(())
}
