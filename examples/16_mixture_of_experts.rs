//! Layer of gated experts (SwiGLU). A router selects the two largest logits of each token, and the token passes through
//! those two experts, however unevenly the experts are chosen. Compared with the dense layer, in which every token
//! passes through every expert and the router's weights select.

use einsparse::Context;
use einsparse::dynamic::Gate;
use einsparse::formats::{Dense, f16, generate};
use einsparse::nn::{Moe, MoeInputs, MoeOptions, Router, RouterOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ctx = Context::new();
    let (tokens, experts, top_k, model, hidden) = (48, 6, 2, 64, 128);
    let options = MoeOptions {
        tokens,
        experts,
        top_k,
        model,
        hidden,
        gate: Some(Gate::Silu),
        ..MoeOptions::default()
    };
    let random = |shape: Vec<usize>, scale: f32, seed| {
        let values = generate::random_values::<f32>(shape.iter().product(), seed);
        Dense::new(shape, values.iter().map(|v| f16::from_f32(v * scale)).collect())
    };
    let [up_shape, down_shape] = options.shapes().map(|shape| shape.to_vec());
    let x = random(vec![tokens, model], 1.0, 1)?;
    let up = random(up_shape, 0.125, 2)?;
    let down = random(down_shape, 0.125, 3)?;
    // Nearly all tokens choose expert 0 and one other expert.
    let noise = generate::random_values::<f32>(tokens * experts, 4);
    let logits = Dense::from_fn(vec![tokens, experts], |i| {
        noise[i[0] * experts + i[1]] + if i[1] == 0 { 2.0 } else { 0.0 }
    })?;

    let router = Router::new(&ctx, &RouterOptions { tokens, experts, top_k, normalized: true })?;
    let mut layer = Moe::new(&ctx, &options)?;
    let mut choices = ctx.zeros::<i32>(&[tokens, top_k])?;
    let mut weights = ctx.zeros::<f32>(&[tokens, top_k])?;
    let mut out = ctx.zeros::<f16>(&[tokens, model])?;
    let matrices = (ctx.upload_dense(&up)?, ctx.upload_dense(&down)?);
    let (logits, rows) = (ctx.upload_dense(&logits)?, ctx.upload_dense(&x)?);
    let stream = ctx.stream()?;
    router.forward(&logits, &mut choices, &mut weights, &stream)?;
    let inputs = MoeInputs {
        x: &rows,
        choices: &choices,
        weights: &weights,
        up: (&matrices.0).into(),
        down: (&matrices.1).into(),
    };
    layer.forward(&inputs, &mut out, &stream)?;
    stream.synchronize()?;

    // Check: all experts for every token, in f64.
    let (choices, weights) = (choices.to_dense()?, weights.to_dense()?);
    let mut largest = 0.0f64;
    for (t, found) in out.to_dense()?.values().chunks(model).enumerate() {
        let mut wanted = vec![0.0f64; model];
        for e in 0..experts {
            let picked = (t * top_k..(t + 1) * top_k).filter(|&j| choices.values()[j] == e as i32);
            let weight: f32 = picked.map(|j| weights.values()[j]).sum();
            for h in 0..hidden {
                let sum = |column: usize| -> f64 {
                    let term = |i: usize| {
                        x.values()[t * model + i].to_f64()
                            * up.values()[(e * model + i) * 2 * hidden + column].to_f64()
                    };
                    (0..model).map(term).sum()
                };
                let gate = sum(h);
                let scale = f64::from(weight) * gate / (1.0 + (-gate).exp()) * sum(hidden + h);
                for (i, wanted) in wanted.iter_mut().enumerate() {
                    *wanted += scale * down.values()[(e * hidden + h) * model + i].to_f64();
                }
            }
        }
        let errors = found.iter().zip(&wanted);
        let errors = errors.map(|(a, b)| (a.to_f64() - b).abs());
        largest = errors.fold(largest, f64::max);
    }
    let [first, second] = layer.variants();
    println!("{first} and {second}: largest error {largest:.1e}");
    assert!(largest < 2e-2);
    Ok(())
}
