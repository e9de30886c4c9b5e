//! The block-sparse linear layer: forward, both gradients and ReLU on either side against dense sums; gradients against
//! finite differences.

use crate::support::bounds::near_slope;
use crate::support::dense::upload;
use crate::support::runs::finish;
use crate::support::{fill_blocks, gpu, spread};
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, bf16, f16};
use einsparse::nn::{Linear, LinearOptions};
use einsparse::{Context, Scalar};

fn integer(i: usize) -> f64 {
    (i * 7919 % 5) as f64 - 2.0
}

fn blocks() -> CsrPattern {
    spread(&[2, 0, 1, 3], 5)
}

/// Returns weights `[o, i]` in blocks.
fn weights<T: Scalar>(edge: usize) -> AnySparse<T> {
    let pattern = fill_blocks(&blocks(), (edge, edge), 4 * edge, 5 * edge);
    let values = (0..pattern.columns().len()).map(|i| T::from_f64(integer(3 * i + 1)));
    let values = values.collect();
    let format = format!("blockgroupcoo:{edge}x{edge}:2").parse().unwrap();
    AnySparse::from(Csr::new(pattern, values).unwrap()).convert(format).unwrap()
}

fn check<T: Scalar>(context: &Context, edge: usize, tokens: usize, options: LinearOptions) {
    let weight = weights::<T>(edge);
    let w = weight.to_dense().unwrap();
    let (outputs, inputs) = (w.shape()[0], w.shape()[1]);
    let fill = |columns: usize, seed: usize| {
        Dense::from_fn(vec![tokens, columns], |i| {
            T::from_f64(integer(i[0] * columns + i[1] + seed))
        })
        .unwrap()
    };
    let (x, dy) = (fill(inputs, 1), fill(outputs, 7));
    let mut layer = Linear::new(context, weight.clone(), tokens, &options).unwrap();
    let [x_there, dy_there] = upload(context, [&x, &dy]);
    let mut y = context.zeros(&[tokens, outputs]).unwrap();
    let mut dx = context.zeros(&[tokens, inputs]).unwrap();
    finish(context, |stream| {
        layer.forward(&x_there, &mut y, stream)?;
        layer.backward(&x_there, &dy_there, &mut dx, stream)
    });
    let what = (edge, tokens, options, layer.variants());
    let at = |d: &Dense<T>, r: usize, c: usize| d.get(&[r, c]).unwrap().to_f64();
    let (y, dx) = (y.to_dense().unwrap(), dx.to_dense().unwrap());
    for t in 0..tokens {
        for o in 0..outputs {
            let mut sum: f64 = (0..inputs).map(|i| at(&x, t, i) * at(&w, o, i)).sum();
            if options.relu {
                sum = sum.max(0.0);
            }
            assert_eq!(at(&y, t, o), T::from_f64(sum).to_f64(), "y {what:?}");
        }
        for i in 0..inputs {
            let mut sum: f64 = (0..outputs).map(|o| at(&dy, t, o) * at(&w, o, i)).sum();
            if options.relu_input && at(&x, t, i) <= 0.0 {
                sum = 0.0;
            }
            assert_eq!(at(&dx, t, i), T::from_f64(sum).to_f64(), "dx {what:?}");
        }
    }
    let found = layer.gradient().to_host().unwrap().to_dense().unwrap();
    for o in 0..outputs {
        for i in 0..inputs {
            let there = has_block(edge, o, i);
            let sum: f64 = (0..tokens).map(|t| at(&dy, t, o) * at(&x, t, i)).sum();
            let wanted = if there { T::from_f64(sum).to_f64() } else { 0.0 };
            assert_eq!(at(&found, o, i), wanted, "dw {what:?}");
        }
    }
}

/// Whether the weights have a block that contains (o, i).
fn has_block(edge: usize, o: usize, i: usize) -> bool {
    let blocks = blocks();
    let row = &blocks.columns()[blocks.row(o / edge)];
    row.contains(&((i / edge) as u32))
}

const SIDES: [LinearOptions; 3] = [
    LinearOptions { tokens_in_columns: false, relu: false, relu_input: false },
    LinearOptions { tokens_in_columns: false, relu: true, relu_input: false },
    LinearOptions { tokens_in_columns: false, relu: false, relu_input: true },
];

#[test]
fn layers_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for options in SIDES {
        for edge in [16, 32, 64, 128] {
            check::<f16>(&gpu, edge, 72, options);
            check::<bf16>(&gpu, edge, 40, options);
        }
    }
}

#[test]
fn layers_on_the_cpu() {
    for options in SIDES {
        check::<f32>(&Context::unchecked_cpu(), 4, 9, options);
        check::<f16>(&Context::unchecked_cpu(), 3, 5, options);
    }
}

/// The loss is `sum of y^2 / 2` of a layer that follows a ReLU. Its gradient with respect to y is y.
#[test]
fn gradients_agree_with_finite_differences() {
    let context = Context::unchecked_cpu();
    let weight = weights::<f64>(2);
    let shape = weight.shape().to_vec();
    let tokens = 3;
    // All values are nonzero, because the ReLU has no slope at 0.
    let raw: Vec<f64> =
        (0..tokens * shape[1]).map(|i| (i * 7919 % 101) as f64 / 50.0 - 0.995).collect();
    let options = LinearOptions { relu_input: true, ..LinearOptions::default() };
    let stream = context.stream().unwrap();
    // The layer's input is the ReLU of the values that are varied.
    let input = |raw: &[f64]| {
        let values = raw.iter().map(|v| v.max(0.0)).collect();
        let dense = Dense::new([tokens, shape[1]], values).unwrap();
        context.upload_dense(&dense).unwrap()
    };
    let loss = |raw: &[f64], weight: &AnySparse<f64>| {
        let layer = Linear::new(&context, weight.clone(), tokens, &options).unwrap();
        let mut y = context.zeros(&[tokens, shape[0]]).unwrap();
        layer.forward(&input(raw), &mut y, &stream).unwrap();
        let y = y.to_dense().unwrap();
        y.values().iter().map(|v| v * v / 2.0).sum::<f64>()
    };
    let mut layer = Linear::new(&context, weight.clone(), tokens, &options).unwrap();
    let mut y = context.zeros(&[tokens, shape[0]]).unwrap();
    let mut dx = context.zeros(&[tokens, shape[1]]).unwrap();
    let x = input(&raw);
    layer.forward(&x, &mut y, &stream).unwrap();
    layer.backward(&x, &y, &mut dx, &stream).unwrap();
    let step = 1e-5;
    let dx = dx.to_dense().unwrap();
    for i in 0..raw.len() {
        let mut moved = raw.clone();
        moved[i] += step;
        let up = loss(&moved, &weight);
        moved[i] -= 2.0 * step;
        let slope = (up - loss(&moved, &weight)) / (2.0 * step);
        near_slope(&format!("dx[{i}]"), dx.values()[i], slope);
    }
    let gradient = layer.gradient().to_host().unwrap();
    for i in 0..weight.values().len() {
        let mut moved = weight.clone();
        moved.values_mut()[i] += step;
        let up = loss(&raw, &moved);
        moved.values_mut()[i] -= 2.0 * step;
        let slope = (up - loss(&raw, &moved)) / (2.0 * step);
        // Padding of a group has no effect.
        near_slope(&format!("dw[{i}]"), gradient.values()[i], slope);
    }
}
