//! The linear layer with unstructured nonzeros and with blocks: forward, both gradients, bias and ReLU on either side
//! against dense sums; gradients against finite differences.

use crate::support::bounds::near_slope;
use crate::support::dense::{assert_exact, poisoned, transposed, upload};
use crate::support::runs::finish;
use crate::support::skipping::dense_product;
use crate::support::{fill_blocks, on_both, spread, stored};
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, bf16, f16};
use einsparse::nn::{Linear, LinearOptions};
use einsparse::{Context, Scalar};

const FORMATS: [&str; 4] = ["csr", "coo", "ell", "groupcoo:4"];

fn integer(i: usize) -> f64 {
    (i * 7919 % 5) as f64 - 2.0
}

fn weights<T: Scalar>(pattern: CsrPattern, format: &str) -> AnySparse<T> {
    let values = (0..pattern.columns().len()).map(|i| T::from_f64(integer(3 * i + 1)));
    let values = values.collect();
    stored(Csr::new(pattern, values).unwrap(), format)
}

/// Returns weights `[6, 9]`.
fn entries<T: Scalar>(format: &str) -> AnySparse<T> {
    weights(spread(&[2, 0, 9, 3, 1, 5], 9), format)
}

/// Returns weights of four by five blocks.
fn blocks<T: Scalar>(edge: usize) -> AnySparse<T> {
    let pattern = fill_blocks(&spread(&[2, 0, 1, 3], 5), (edge, edge), 4 * edge, 5 * edge);
    weights(pattern, &format!("blockgroupcoo:{edge}x{edge}:2"))
}

const PLAIN: LinearOptions =
    LinearOptions { tokens_in_columns: false, relu: false, relu_input: false };
const IN_COLUMNS: LinearOptions = LinearOptions { tokens_in_columns: true, ..PLAIN };
const SIDES: [LinearOptions; 3] =
    [PLAIN, LinearOptions { relu: true, ..PLAIN }, LinearOptions { relu_input: true, ..PLAIN }];

fn check<T: Scalar>(
    context: &Context,
    weight: &AnySparse<T>,
    tokens: usize,
    options: LinearOptions,
    biased: bool,
) {
    let w = weight.to_dense().unwrap();
    let [outputs, inputs] = [w.shape()[0], w.shape()[1]];
    // Columns are tokens.
    let matrix = |rows: usize, seed: usize| {
        let at = |i: &[usize]| T::from_f64(integer(i[0] * tokens + i[1] + seed));
        Dense::from_fn([rows, tokens], at).unwrap()
    };
    let (x, dy) = (matrix(inputs, 1), matrix(outputs, 7));
    let bias = Dense::from_fn([outputs], |i| T::from_f64(integer(i[0]))).unwrap();
    let mut layer = match biased {
        true => {
            let bias = context.upload_dense(&bias).unwrap();
            Linear::with_bias(context, weight.clone(), tokens, bias, &options).unwrap()
        }
        false => Linear::new(context, weight.clone(), tokens, &options).unwrap(),
    };
    let side = |d: &Dense<T>| if options.tokens_in_columns { d.clone() } else { transposed(d) };
    let [x_there, dy_there] = upload(context, [&side(&x), &side(&dy)]);
    let mut y = poisoned::<T>(context, side(&dy).shape());
    let mut dx = poisoned::<T>(context, side(&x).shape());
    finish(context, |stream| {
        layer.forward(&x_there, &mut y, stream)?;
        layer.backward(&x_there, &dy_there, &mut dx, stream)
    });
    let what = (weight.format(), tokens, options, biased, layer.variants());
    let in_order = |rows: usize, values: Vec<f64>| {
        let values = Dense::new([rows, tokens], values).unwrap();
        if options.tokens_in_columns { values } else { transposed(&values) }.into_values()
    };
    let mut wanted = dense_product(&w, &x);
    for (at, y) in wanted.iter_mut().enumerate() {
        *y += if biased { integer(at / tokens) } else { 0.0 };
        *y = if options.relu { y.max(0.0) } else { *y };
    }
    assert_exact(&y, &in_order(outputs, wanted), &format!("y {what:?}"));
    let mut wanted = dense_product(&transposed(&w), &dy);
    for (dx, x) in wanted.iter_mut().zip(x.values()) {
        *dx = if options.relu_input && x.to_f64() <= 0.0 { 0.0 } else { *dx };
    }
    assert_exact(&dx, &in_order(inputs, wanted), &format!("dx {what:?}"));
    let found = layer.gradient().to_host().unwrap().to_dense().unwrap();
    let stored = weight.map_values(|_| T::ONE).to_dense().unwrap();
    let wanted = dense_product(&dy, &transposed(&x));
    for ((found, wanted), stored) in found.values().iter().zip(wanted).zip(stored.values()) {
        let wanted = if *stored == T::ONE { T::from_f64(wanted) } else { T::ZERO };
        assert_eq!(*found, wanted, "dw {what:?}");
    }
}

fn of_entries<T: Scalar>(context: &Context) {
    for (format, tokens) in FORMATS.into_iter().flat_map(|f| [1, 7, 64].map(|tokens| (f, tokens))) {
        let weight = entries::<T>(format);
        check(context, &weight, tokens, IN_COLUMNS, false);
        check(context, &weight, tokens, LinearOptions { relu: true, ..IN_COLUMNS }, true);
    }
}

fn of_blocks<T: Scalar>(context: &Context, edges: &[usize], tokens: usize) {
    for (options, &edge) in SIDES.into_iter().flat_map(|o| edges.iter().map(move |e| (o, e))) {
        check::<T>(context, &blocks(edge), tokens, options, false);
    }
}

/// The loss is `sum of y^2 / 2`. Its gradient with respect to y is y. The input of `relu_input` is the ReLU of the
/// values that are varied.
fn differences(context: &Context, weight: &AnySparse<f64>, options: &LinearOptions) {
    let ([outputs, inputs], tokens) = ([weight.shape()[0], weight.shape()[1]], 4);
    let shape = |rows| if options.tokens_in_columns { [rows, tokens] } else { [tokens, rows] };
    // All values are nonzero, because the ReLU has no slope at 0.
    let raw: Vec<f64> =
        (0..inputs * tokens).map(|i| (i * 7919 % 101) as f64 / 50.0 - 0.995).collect();
    let input = |raw: &[f64]| {
        let relu = |v: &f64| if options.relu_input { v.max(0.0) } else { *v };
        let dense = Dense::new(shape(inputs), raw.iter().map(relu).collect()).unwrap();
        context.upload_dense(&dense).unwrap()
    };
    let run = |layer: &Linear<f64>, raw: &[f64]| {
        let mut y = context.zeros(&shape(outputs)).unwrap();
        finish(context, |stream| layer.forward(&input(raw), &mut y, stream));
        y
    };
    let loss = |layer: &Linear<f64>, raw: &[f64]| {
        let y = run(layer, raw).to_dense().unwrap();
        y.values().iter().map(|v| v * v / 2.0).sum::<f64>()
    };
    let mut layer = Linear::new(context, weight.clone(), tokens, options).unwrap();
    let y = run(&layer, &raw);
    let mut dx = context.zeros(&shape(inputs)).unwrap();
    finish(context, |stream| layer.backward(&input(&raw), &y, &mut dx, stream));
    let (dx, dw) = (dx.to_dense().unwrap(), layer.gradient().to_host().unwrap());
    let step = 1e-5;
    let slope_at = |i: usize, values: &[f64], loss: &mut dyn FnMut(&[f64]) -> f64| {
        let mut moved = |by: f64| {
            let mut values = values.to_vec();
            values[i] += by;
            loss(&values)
        };
        (moved(step) - moved(-step)) / (2.0 * step)
    };
    for i in 0..raw.len() {
        let slope = slope_at(i, &raw, &mut |raw| loss(&layer, raw));
        near_slope(&format!("dx[{i}]"), dx.values()[i], slope);
    }
    for i in 0..weight.values().len() {
        let slope = slope_at(i, weight.values(), &mut |values| {
            layer.weight_mut().set_values(values).unwrap();
            loss(&layer, &raw)
        });
        // Padding of a group has no effect.
        near_slope(&format!("dw[{i}]"), dw.values()[i], slope);
    }
}

fn gradients(context: &Context) {
    differences(context, &entries("csr"), &IN_COLUMNS);
}

on_both! {
    layers: cpu [
        of_entries::<f32>,
        of_entries::<f64>,
        |cpu| of_blocks::<f32>(cpu, &[4], 9),
        |cpu| of_blocks::<f16>(cpu, &[3], 5),
    ], gpu [of_entries::<f32>, of_entries::<f64>, of_entries::<f16>, of_entries::<bf16>];
    gradients_are_slopes: cpu [
        gradients,
        |cpu| differences(cpu, &blocks(2), &LinearOptions { relu_input: true, ..PLAIN }),
    ], gpu [gradients];
}

#[test]
fn layers_of_blocks() {
    crate::support::on_gpu(&[
        |gpu| of_blocks::<f16>(gpu, &[16, 32, 64, 128], 72),
        |gpu| of_blocks::<bf16>(gpu, &[16, 32, 64, 128], 40),
    ]);
}
