//! A layer of experts: each token passes through the two that its router chose, however unevenly they are chosen.
//! Against the dense layer, in which every token passes through every expert and the router's weights pick.

use einsparse::Context;
use einsparse::einsum::Activation;
use einsparse::formats::{Dense, f16, generate};
use einsparse::nn::{Moe, MoeOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ctx = Context::new();
    let (tokens, experts, top_k, model, hidden) = (48, 6, 2, 64, 128);
    let options = MoeOptions {
        tokens,
        experts,
        top_k,
        model,
        hidden,
        activation: Activation::Relu,
        ..MoeOptions::default()
    };
    let random = |shape: Vec<usize>, scale: f32, seed| {
        let values = generate::random_values::<f32>(shape.iter().product(), seed);
        Dense::new(
            shape,
            values.iter().map(|v| f16::from_f32(v * scale)).collect(),
        )
    };
    let x = random(vec![tokens, model], 1.0, 1)?;
    let up = random(vec![experts, model, hidden], 0.125, 2)?;
    let down = random(vec![experts, hidden, model], 0.125, 3)?;
    // Nearly all tokens want expert 0, and one of the others.
    let chosen = |i: &[usize]| (i[1] * (1 + i[0] % (experts - 1))) as i32;
    let choices = Dense::from_fn(vec![tokens, top_k], chosen)?;
    let weights = Dense::from_fn(vec![tokens, top_k], |i| [0.75f32, 0.25][i[1]])?;
    let mut layer = Moe::new(&ctx, &options)?;
    let mut out = ctx.zeros::<f16>(&[tokens, model])?;
    let routed = (&ctx.upload_dense(&choices)?, &ctx.upload_dense(&weights)?);
    let matrices = (&ctx.upload_dense(&up)?, &ctx.upload_dense(&down)?);
    let stream = ctx.stream()?;
    layer.forward(&ctx.upload_dense(&x)?, routed, matrices, &mut out, &stream)?;
    stream.synchronize()?;
    // The check: all experts for every token, in f64.
    let mut largest = 0.0f64;
    for (t, found) in out.to_dense()?.values().chunks(model).enumerate() {
        let mut wanted = vec![0.0f64; model];
        for e in 0..experts {
            let picked = (0..top_k).filter(|&j| chosen(&[t, j]) as usize == e);
            let weight: f32 = picked.map(|j| [0.75, 0.25][j]).sum();
            for h in 0..hidden {
                let term = |i: usize| {
                    x.values()[t * model + i].to_f64()
                        * up.values()[(e * model + i) * hidden + h].to_f64()
                };
                let sum: f64 = (0..model).map(term).sum();
                let scale = f64::from(weight) * sum.max(0.0);
                for (i, wanted) in wanted.iter_mut().enumerate() {
                    *wanted += scale * down.values()[(e * hidden + h) * model + i].to_f64();
                }
            }
        }
        let errors = found
            .iter()
            .zip(&wanted)
            .map(|(a, b)| (a.to_f64() - b).abs());
        largest = errors.fold(largest, f64::max);
    }
    println!(
        "{} and {}: largest error {largest:.1e}",
        layer.variants()[0],
        layer.variants()[1]
    );
    assert!(largest < 2e-2);
    Ok(())
}
