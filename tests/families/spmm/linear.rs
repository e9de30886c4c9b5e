//! The linear layer with unstructured nonzeros: forward, both gradients, bias and ReLU against dense sums; gradients
//! against finite differences.

use crate::support::bounds::near_slope;
use crate::support::dense::upload;
use crate::support::runs::finish;
use crate::support::{on_both, on_cpu, on_gpu, spread, stored};
use einsparse::formats::{AnySparse, Csr, Dense, bf16, f16};
use einsparse::nn::{Linear, LinearOptions};
use einsparse::{Context, Scalar};

const FORMATS: [&str; 4] = ["csr", "coo", "ell", "groupcoo:4"];

fn integer(i: usize) -> f64 {
    (i * 7919 % 5) as f64 - 2.0
}

/// Returns weights `[6, 9]`.
fn weights<T: Scalar>() -> Csr<T> {
    let pattern = spread(&[2, 0, 9, 3, 1, 5], 9);
    let nnz = pattern.columns().len();
    let values = (0..nnz).map(|i| T::from_f64(integer(3 * i + 1)));
    Csr::new(pattern, values.collect()).unwrap()
}

fn matrix<T: Scalar>(rows: usize, columns: usize, seed: usize) -> Dense<T> {
    let at = |i: &[usize]| T::from_f64(integer(i[0] * columns + i[1] + seed));
    Dense::from_fn(vec![rows, columns], at).unwrap()
}

const OPTIONS: LinearOptions =
    LinearOptions { tokens_in_columns: true, relu: false, relu_input: false };

fn check<T: Scalar>(context: &Context, format: &str, tokens: usize, biased: bool) {
    let csr = weights::<T>();
    let w = AnySparse::from(csr.clone()).to_dense().unwrap();
    let weight = stored(csr.clone(), format);
    let (outputs, inputs) = (w.shape()[0], w.shape()[1]);
    let x = matrix::<T>(inputs, tokens, 1);
    let dy = matrix::<T>(outputs, tokens, 7);
    let bias = Dense::from_fn(vec![outputs], |i| T::from_f64(integer(i[0]))).unwrap();
    let mut layer = if biased {
        let bias = context.upload_dense(&bias).unwrap();
        let options = LinearOptions { relu: true, ..OPTIONS };
        Linear::with_bias(context, weight, tokens, bias, &options).unwrap()
    } else {
        Linear::new(context, weight, tokens, &OPTIONS).unwrap()
    };
    let [x_there, dy_there] = upload(context, [&x, &dy]);
    let mut y = context.zeros(&[outputs, tokens]).unwrap();
    let mut dx = context.zeros(&[inputs, tokens]).unwrap();
    finish(context, |stream| {
        layer.forward(&x_there, &mut y, stream)?;
        layer.backward(&x_there, &dy_there, &mut dx, stream)
    });
    let what = (format, tokens, biased, layer.variants());
    let at = |d: &Dense<T>, r: usize, c: usize| d.get(&[r, c]).unwrap().to_f64();
    let (y, dx) = (y.to_dense().unwrap(), dx.to_dense().unwrap());
    for t in 0..tokens {
        for o in 0..outputs {
            let mut sum: f64 = (0..inputs).map(|i| at(&w, o, i) * at(&x, i, t)).sum();
            if biased {
                sum = (sum + integer(o)).max(0.0);
            }
            assert_eq!(at(&y, o, t), sum, "y {what:?}");
        }
        for i in 0..inputs {
            let sum: f64 = (0..outputs).map(|o| at(&w, o, i) * at(&dy, o, t)).sum();
            assert_eq!(at(&dx, i, t), sum, "dx {what:?}");
        }
    }
    let found = layer.gradient().to_host().unwrap().to_dense().unwrap();
    for o in 0..outputs {
        let own = &csr.pattern().columns()[csr.pattern().row(o)];
        for i in 0..inputs {
            let sum: f64 = (0..tokens).map(|t| at(&dy, o, t) * at(&x, i, t)).sum();
            let wanted = if own.contains(&(i as u32)) { T::from_f64(sum).to_f64() } else { 0.0 };
            assert_eq!(at(&found, o, i), wanted, "dw {what:?}");
        }
    }
}

fn layers<T: Scalar>(context: &Context) {
    for format in FORMATS {
        for tokens in [1, 7, 64] {
            check::<T>(context, format, tokens, false);
            check::<T>(context, format, tokens, true);
        }
    }
}

#[test]
fn layers_on_the_gpu() {
    on_gpu(&[layers::<f32>, layers::<f64>, layers::<f16>, layers::<bf16>]);
}

#[test]
fn layers_on_the_cpu() {
    on_cpu(&[layers::<f32>, layers::<f64>]);
}

/// The loss is `sum of y^2 / 2`. Its gradient with respect to y is y.
fn differences(context: &Context) {
    let csr = weights::<f64>();
    let (outputs, inputs, tokens) = (6, 9, 4);
    let x = matrix::<f64>(inputs, tokens, 2);
    let run = |layer: &Linear<f64>, x: &Dense<f64>| {
        let x = context.upload_dense(x).unwrap();
        let mut y = context.zeros(&[outputs, tokens]).unwrap();
        finish(context, |stream| layer.forward(&x, &mut y, stream));
        y
    };
    let loss = |layer: &Linear<f64>, x: &Dense<f64>| {
        let y = run(layer, x).to_dense().unwrap();
        y.values().iter().map(|v| v * v / 2.0).sum::<f64>()
    };
    let mut layer = Linear::new(context, csr.clone(), tokens, &OPTIONS).unwrap();
    let y = run(&layer, &x);
    let x_there = context.upload_dense(&x).unwrap();
    let mut dx = context.zeros(&[inputs, tokens]).unwrap();
    finish(context, |stream| layer.backward(&x_there, &y, &mut dx, stream));
    let (dx, dw) = (dx.to_dense().unwrap(), layer.gradient().to_host().unwrap());
    let step = 1e-5;
    for i in 0..inputs * tokens {
        let moved = |by: f64| {
            let mut values = x.values().to_vec();
            values[i] += by;
            Dense::new([inputs, tokens], values).unwrap()
        };
        let slope = (loss(&layer, &moved(step)) - loss(&layer, &moved(-step))) / (2.0 * step);
        near_slope(&format!("dx[{i}]"), dx.values()[i], slope);
    }
    for i in 0..csr.values().len() {
        let mut at = |by: f64| {
            let mut values = csr.values().to_vec();
            values[i] += by;
            layer.weight_mut().set_values(&values).unwrap();
            loss(&layer, &x)
        };
        let slope = (at(step) - at(-step)) / (2.0 * step);
        near_slope(&format!("dw[{i}]"), dw.values()[i], slope);
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    on_both(&[differences]);
}
