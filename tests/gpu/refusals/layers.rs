//! Layers of networks and optimizers.

use einsparse::dynamic::Gate;
use einsparse::nn::{
    Activation, Adam, AdamOptions, BiasGradient, CrossEntropy, Embedding, Encoder, EncoderOptions,
    EncoderWeights, Glu, Greedy, ResidualNorm, ResidualNormGradient, RmsNorm, Rotary,
    RotaryOptions, Router, RouterOptions, Sgd, SgdOptions, WeightGradient,
};
use einsparse::{Precision, Scalar, Tensor};

use crate::gpu::operator_trials::trial::{Outcome, Trial};

type Done = Result<(), Outcome>;

fn zeros<T: Scalar>(t: &mut Trial<'_>, name: &str, shape: &[usize]) -> Tensor<T> {
    t.given::<T>(name, shape, |_, _| 0.0).there
}

fn epsilon(t: &mut Trial<'_>) -> f64 {
    t.one(&[1e-5, 1e-5, 0.0, -1.0, f64::NAN, f64::INFINITY])
}

/// Widths, many of them whole vectors.
fn width(t: &mut Trial<'_>) -> usize {
    t.one(&[8, 16, 64, 128, 256, 7, 1, 0, 12, 24])
}

pub fn rms_norm<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(4);
    let (tokens, width, epsilon) = (t.rows(), width(t), epsilon(t));
    let in_columns = t.once_in(3);
    let made = RmsNorm::<T>::new(t.context, [tokens, width], epsilon, in_columns);
    let norm = t.made(made)?;
    let shape = if in_columns { [width, tokens] } else { [tokens, width] };
    let (mut x, factor) = (zeros::<T>(t, "x", &shape), zeros::<T>(t, "factor", &[width]));
    let (y, mut out) = (zeros::<T>(t, "y", &shape), zeros::<T>(t, "out", &shape));
    t.queue(|stream| norm.forward(&x, &factor, &mut out, stream))?;
    t.queue(|stream| norm.forward_residual([&mut x, &mut out], &y, &factor, stream))
}

pub fn residual_norm<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(5);
    let (tokens, width, epsilon) = (t.rows(), width(t), epsilon(t));
    let made = ResidualNorm::<T>::new(t.context, [tokens, width], epsilon);
    let norm = t.made(made)?;
    let [x, y] = ["x", "y"].map(|name| zeros::<T>(t, name, &[tokens, width]));
    let [a, b] = ["factor", "offset"].map(|name| zeros::<T>(t, name, &[width]));
    let mut out = zeros::<T>(t, "out", &[tokens, width]);
    t.queue(|stream| norm.forward([&x, &y], [&a, &b], &mut out, stream))
}

pub fn norm_gradient<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(5);
    let (tokens, width, epsilon) = (t.rows(), width(t), epsilon(t));
    if t.once_in(3) {
        let made = ResidualNormGradient::<T, T>::new(t.context, [tokens, width], epsilon);
        return t.made(made).map(drop);
    }
    let made = ResidualNormGradient::<T, f32>::new(t.context, [tokens, width], epsilon);
    let norm = t.made(made)?;
    let shape = [tokens, width];
    let [x, y, dy] = ["x", "y", "dy"].map(|name| zeros::<T>(t, name, &shape));
    let (factor, mut dx) = (zeros::<T>(t, "factor", &[width]), zeros::<T>(t, "dx", &shape));
    let mut affine = zeros::<f32>(t, "affine", &[2, width]);
    t.queue(|stream| norm.backward([&x, &y], &factor, &dy, &mut dx, &mut affine, stream))
}

fn gate(t: &mut Trial<'_>) -> Gate {
    t.one(&[Gate::Silu, Gate::Gelu, Gate::Relu])
}

pub fn glu<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(2);
    let (tokens, width, in_columns) = (t.rows(), width(t), t.once_in(3));
    let gate = gate(t);
    let made = Glu::<T>::new(t.context, gate, [tokens, width], in_columns);
    let glu = t.made(made)?;
    let of = |width: usize| {
        if in_columns { [width, tokens] } else { [tokens, width] }
    };
    let (x, mut out) = (zeros::<T>(t, "x", &of(2 * width)), zeros::<T>(t, "out", &of(width)));
    t.queue(|stream| glu.forward(&x, &mut out, stream))
}

pub fn activation<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(4);
    let (shape, gate) = ([t.rows(), width(t)], gate(t));
    let activation = t.made(Activation::<T>::new(t.context, gate, shape))?;
    let [x, dy] = ["x", "dy"].map(|name| zeros::<T>(t, name, &shape));
    let [mut y, mut dx] = ["y", "dx"].map(|name| zeros::<T>(t, name, &shape));
    t.queue(|stream| activation.forward(&x, &mut y, stream))?;
    t.queue(|stream| activation.backward(&x, &dy, &mut dx, stream))
}

pub fn embedding<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(3);
    let (tokens, words, width) = (t.rows(), t.rows(), width(t));
    let in_columns = t.once_in(3);
    let made = Embedding::<T>::new(t.context, [words, width], tokens, in_columns);
    let embedding = t.made(made)?;
    let shape = if in_columns { [width, tokens] } else { [tokens, width] };
    let (table, ids) = (zeros::<T>(t, "table", &[words, width]), zeros::<i32>(t, "ids", &[tokens]));
    let mut out = zeros::<T>(t, "out", &shape);
    t.queue(|stream| embedding.forward(&table, &ids, &mut out, stream))
}

pub fn greedy<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(3);
    let (tokens, words, in_columns) = (t.rows(), width(t), t.once_in(3));
    let greedy = t.made(Greedy::<T>::new(t.context, [tokens, words], in_columns))?;
    let shape = if in_columns { [words, tokens] } else { [tokens, words] };
    let (logits, mut ids) = (zeros::<T>(t, "logits", &shape), zeros::<i32>(t, "ids", &[tokens]));
    let mut lengths = t.once_in(2).then(|| zeros::<i32>(t, "lengths", &[tokens]));
    t.queue(|stream| greedy.forward(&logits, &mut ids, lengths.as_mut(), stream))
}

pub fn rotary<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(5);
    let options = RotaryOptions {
        tokens: t.rows(),
        heads: t.one(&[1, 2, 4, 0, usize::MAX]),
        key_heads: t.one(&[1, 2, 0]),
        dim: t.one(&[64, 128, 16, 8, 7, 0, 20]),
        base: t.one(&[1e4, 1e4, 0.0, -1.0, f64::NAN]),
        tokens_in_columns: t.once_in(3),
    };
    let rotary = t.made(Rotary::<T>::new(t.context, &options))?;
    let RotaryOptions { tokens, heads, key_heads, dim, tokens_in_columns, .. } = options;
    let width = (heads + 2 * key_heads) * dim;
    let shape = if tokens_in_columns { [width, tokens] } else { [tokens, width] };
    let (x, lengths) = (zeros::<T>(t, "x", &shape), zeros::<i32>(t, "lengths", &[tokens]));
    let [mut q, mut k, mut v] = [("q", heads), ("k", key_heads), ("v", key_heads)]
        .map(|(name, heads)| zeros::<T>(t, name, &[tokens, heads, dim]));
    t.queue(|stream| rotary.forward(&x, &lengths, [&mut q, &mut k, &mut v], stream))
}

pub fn router<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(4);
    let experts = t.one(&[1, 8, 16, 60, 128, 256, 512, 0, 7]);
    let options = RouterOptions {
        tokens: t.rows(),
        experts,
        top_k: t.one(&[1, 2, 8, 0, 9, 33]),
        normalized: t.once_in(2),
    };
    let router = t.made(Router::<T>::new(t.context, &options))?;
    let RouterOptions { tokens, top_k, .. } = options;
    let logits = zeros::<T>(t, "logits", &[tokens, experts]);
    let mut choices = zeros::<i32>(t, "choices", &[tokens, top_k]);
    let mut weights = zeros::<f32>(t, "weights", &[tokens, top_k]);
    t.queue(|stream| router.forward(&logits, &mut choices, &mut weights, stream))?;
    let of_weights = zeros::<f32>(t, "of_weights", &[tokens, top_k]);
    let mut gradient = zeros::<T>(t, "gradient", &[tokens, experts]);
    t.queue(|stream| {
        router.backward(&logits, &choices, &weights, &of_weights, &mut gradient, stream)
    })
}

pub fn cross_entropy<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(4);
    let [rows, classes] = [t.rows(), width(t)];
    let loss = t.made(CrossEntropy::<T>::new(t.context, [rows, classes]))?;
    let mut logits = zeros::<T>(t, "logits", &[rows, classes]);
    let labels = zeros::<i32>(t, "labels", &[rows]);
    let mut out = zeros::<f32>(t, "loss", &[1]);
    let mut gradient = zeros::<T>(t, "gradient", &[rows, classes]);
    t.queue(|stream| loss.forward(&logits, &labels, &mut out, stream))?;
    t.queue(|stream| loss.forward_backward(&logits, &labels, &mut out, &mut gradient, stream))?;
    t.queue(|stream| loss.forward_backward_in_place(&mut logits, &labels, &mut out, stream))
}

pub fn bias_gradient<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(4);
    let shape = [t.rows(), width(t)];
    if t.once_in(4) {
        return t.made(BiasGradient::<T, T>::new(t.context, shape)).map(drop);
    }
    let sum = t.made(BiasGradient::<T, f32>::new(t.context, shape))?;
    let mut dy = zeros::<T>(t, "dy", &shape);
    let mut db = zeros::<f32>(t, "db", &[shape[1]]);
    t.queue(|stream| sum.backward_bias(&dy, &mut db, stream))?;
    let y = zeros::<T>(t, "y", &shape);
    let more = t.once_in(2).then(|| zeros::<T>(t, "more", &shape));
    t.queue(|stream| sum.backward_bias_relu(&y, more.as_ref(), &mut dy, &mut db, stream))
}

pub fn weight_gradient<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(5);
    let extents = [t.rows(), width(t), width(t)];
    let precision = t.one(&[Precision::Full, Precision::Full, Precision::Tf32]);
    if t.once_in(4) {
        let made = WeightGradient::<T, T>::with_precision(t.context, extents, precision);
        return t.made(made).map(drop);
    }
    let made = WeightGradient::<T, f32>::with_precision(t.context, extents, precision);
    let sum = t.made(made)?;
    let [rows, inputs, outputs] = extents;
    let x = zeros::<T>(t, "x", &[rows, inputs]);
    let mut dy = zeros::<T>(t, "dy", &[rows, outputs]);
    let mut dw = zeros::<f32>(t, "dw", &[inputs, outputs]);
    let mut db = t.once_in(2).then(|| zeros::<f32>(t, "db", &[outputs]));
    t.queue(|stream| sum.backward_weight(&x, &dy, &mut dw, db.as_mut(), stream))?;
    let y = zeros::<T>(t, "y", &[rows, outputs]);
    t.queue(|stream| sum.backward_weight_relu(&x, &y, &mut dy, &mut dw, db.as_mut(), stream))
}

/// A shape of parameters.
fn parameters(t: &mut Trial<'_>) -> Vec<usize> {
    match t.below(4) {
        0 => vec![t.rows()],
        1 => vec![2, 3, 4],
        2 => vec![t.one(&[0, usize::MAX]), 2],
        _ => vec![t.rows(), width(t)],
    }
}

pub fn sgd<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(3);
    let shape = parameters(t);
    let options = SgdOptions {
        rate: t.one(&[0.1, 0.0, -1.0, f64::NAN]),
        momentum: t.one(&[0.9, 0.0, 1.0, -0.5]),
        nesterov: t.once_in(2),
        weight_decay: t.one(&[0.0, 0.1, -1.0]),
    };
    let mut sgd = t.made(Sgd::new(t.context, &shape, &options))?;
    let mut own = zeros::<f32>(t, "parameters", &shape);
    let gradient = zeros::<T>(t, "gradient", &shape);
    let mut copy = zeros::<T>(t, "copy", &shape);
    t.queue(|stream| sgd.step_with_copy(&mut own, &gradient, &mut copy, stream))?;
    let rate = t.one(&[0.1, f64::INFINITY, -1.0]);
    t.made(sgd.set_rate(rate))
}

pub fn adam<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(3);
    let shape = parameters(t);
    let options = AdamOptions {
        rate: t.one(&[0.1, 0.0, -1.0, f64::NAN]),
        betas: t.one(&[[0.9, 0.999], [0.0, 0.0], [1.0, 0.5], [0.5, -1.0]]),
        epsilon: t.one(&[1e-8, 0.0, -1.0]),
        weight_decay: t.one(&[0.0, 0.1, -1.0]),
        decoupled: t.once_in(2),
    };
    let mut adam = t.made(Adam::new(t.context, &shape, &options))?;
    let mut own = zeros::<f32>(t, "parameters", &shape);
    let gradient = zeros::<f32>(t, "gradient", &shape);
    t.queue(|stream| adam.step(&mut own, &gradient, stream))?;
    let gradient = zeros::<T>(t, "gradient", &shape);
    let mut copy = zeros::<T>(t, "copy", &shape);
    t.queue(|stream| adam.step_with_copy(&mut own, &gradient, &mut copy, stream))
}

pub fn encoder<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(16);
    let (items, distance) = (t.one(&[1, 2, 0]), t.one(&[8, 16, 3, 0]));
    let (width, hidden) = (t.one(&[64, 128, 96, 7]), t.one(&[64, 128, 24, 9]));
    let options = EncoderOptions {
        items,
        distance,
        width,
        heads: t.one(&[1, 2, 0, 3]),
        hidden,
        epsilon: epsilon(t),
        most: t.one(&[None, None, Some(5)]),
        expected: None,
    };
    let encoder = t.made(Encoder::<T>::new(t.context, &options))?;
    let x = zeros::<T>(t, "x", &[items, distance, width]);
    let lengths = zeros::<i32>(t, "lengths", &[items]);
    let of = |t: &mut Trial<'_>, i: usize, o: usize| {
        [zeros::<T>(t, "weights", &[i, o]), zeros::<T>(t, "bias", &[o])]
    };
    let (qkv, proj) = (of(t, width, 3 * width), of(t, width, width));
    let (up, down) = (of(t, width, hidden), of(t, hidden, width));
    let [first, second] =
        [(); 2].map(|()| ["factor", "offset"].map(|name| zeros::<T>(t, name, &[width])));
    let weights = EncoderWeights {
        qkv: qkv.each_ref(),
        out: proj.each_ref(),
        up: up.each_ref(),
        down: down.each_ref(),
        first_norm: first.each_ref(),
        second_norm: second.each_ref(),
    };
    let mut out = zeros::<T>(t, "out", &[items, distance, width]);
    t.queue(|stream| encoder.forward(&x, &lengths, &[weights], &mut out, stream))
}
