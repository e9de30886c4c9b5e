//! Sputnik's Transformer: compared with layers written out, gradients compared with finite differences, steps that
//! reduce the loss and repeat.

use super::all::transformer::{self, BLOCK, Training};
use super::all::transformer_net::Transformer;
use super::all::transformer_weights::{Role, Shape};
use einsparse::formats::{Dense, bf16};
use einsparse::ops::AttentionMask;
use einsparse::{Context, Tensor};

const SHAPE: Shape =
    Shape { layers: 2, tokens: 3 * BLOCK, width: 6, heads: 2, hidden: 10, classes: 4 };

type Net = Transformer<f64, f64>;

fn blocks() -> Vec<[usize; 2]> {
    let blocks = transformer::blocks(SHAPE.tokens, 0, 1);
    assert!(blocks.len() < 6, "the mask hides nothing: {blocks:?}");
    blocks
}

fn network() -> Net {
    let mask = AttentionMask::Blocks(blocks());
    transformer::network(&Context::unchecked_cpu(), SHAPE, &mask, true).unwrap()
}

fn values(tensor: &Tensor<f64>) -> Vec<f64> {
    tensor.to_dense().unwrap().into_values()
}

/// Rows of `x` times a matrix.
fn product(x: &[f64], w: &Tensor<f64>) -> Vec<f64> {
    let [inputs, outputs] = [w.shape()[0], w.shape()[1]];
    let w = values(w);
    let row = |x: &[f64]| -> Vec<f64> {
        let sum = |o: usize| (0..inputs).map(|i| x[i] * w[i * outputs + o]).sum();
        (0..outputs).map(sum).collect()
    };
    x.chunks(inputs).flat_map(row).collect()
}

fn attention(qkv: &[f64], blocks: &[[usize; 2]]) -> Vec<f64> {
    let (width, dim) = (SHAPE.width, SHAPE.width / SHAPE.heads);
    let row = |t: usize, part: usize, head: usize| {
        &qkv[t * 3 * width + part * width + head * dim..][..dim]
    };
    let mut out = Vec::new();
    for t in 0..SHAPE.tokens {
        let sees = |&s: &usize| blocks.contains(&[t / BLOCK, s / BLOCK]);
        let keys: Vec<usize> = (0..=t).filter(sees).collect();
        for head in 0..SHAPE.heads {
            let score = |s: &usize| {
                let pairs = row(t, 0, head).iter().zip(row(*s, 1, head));
                pairs.map(|(q, k)| q * k).sum::<f64>() / (dim as f64).sqrt()
            };
            let weights: Vec<f64> = keys.iter().map(|s| score(s).exp()).collect();
            let all: f64 = weights.iter().sum();
            out.extend((0..dim).map(|d| {
                let of = keys.iter().zip(&weights);
                of.map(|(s, w)| w * row(*s, 2, head)[d]).sum::<f64>() / all
            }));
        }
    }
    out
}

fn norm(sums: &[f64], net: &Net, layer: usize, which: usize) -> Vec<f64> {
    let affine = net.parameters.norm(layer, which).unwrap();
    let [factor, summand] = [values(&affine[0]), values(&affine[1])];
    let row = |z: &[f64]| -> Vec<f64> {
        let mean = z.iter().sum::<f64>() / z.len() as f64;
        let squares = z.iter().map(|z| (z - mean).powi(2));
        let root = (squares.sum::<f64>() / z.len() as f64 + 1e-6).sqrt();
        let own = |i: usize| (z[i] - mean) / root * factor[i] + summand[i];
        (0..z.len()).map(own).collect()
    };
    sums.chunks(SHAPE.width).flat_map(row).collect()
}

fn add(x: &[f64], y: &[f64]) -> Vec<f64> {
    let repeated = y.iter().cycle();
    x.iter().zip(repeated).map(|(x, y)| x + y).collect()
}

#[test]
fn layers_are_those_written_out() {
    let mut net = network();
    let stream = Context::unchecked_cpu().stream().unwrap();
    net.forward(&stream).unwrap();
    let mut x = values(&net.tokens[0]);
    for layer in 0..SHAPE.layers {
        let matrix = |role| net.parameters.matrix(layer, role).unwrap();
        let bias = |role| values(&net.parameters.bias(layer, role).unwrap());
        let seen = attention(&product(&x, &matrix(Role::Qkv)), &blocks());
        let sums = add(&x, &product(&seen, &matrix(Role::Out)));
        let between = norm(&sums, &net, layer, 0);
        let mut hidden = add(&product(&between, &matrix(Role::Up)), &bias(Role::Up));
        hidden.iter_mut().for_each(|h| *h = h.max(0.0));
        let down = add(&product(&hidden, &matrix(Role::Down)), &bias(Role::Down));
        x = norm(&add(&between, &down), &net, layer, 1);
    }
    let head = net.parameters.matrix(SHAPE.layers, Role::Head).unwrap();
    for (found, wanted) in values(&net.logits).iter().zip(product(&x, &head)) {
        assert!((found - wanted).abs() < 1e-12, "{found}, not {wanted}");
    }
}

/// Loss of the current output of the network, in f64.
fn loss(net: &mut Net) -> f64 {
    let stream = Context::unchecked_cpu().stream().unwrap();
    net.forward(&stream).unwrap();
    let (logits, labels) = (values(&net.logits), net.labels.to_dense().unwrap());
    let rows = logits.chunks(SHAPE.classes).zip(labels.values());
    let of = |(row, label): (&[f64], &i32)| {
        row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[*label as usize]
    };
    rows.map(of).sum::<f64>() / SHAPE.tokens as f64
}

#[test]
fn gradients_are_those_of_differences() {
    const STEP: f64 = 1e-6;
    let mut net = network();
    let stream = Context::unchecked_cpu().stream().unwrap();
    net.forward(&stream).unwrap();
    net.backward(&stream).unwrap();
    let found = [
        values(&net.gradients.matrices),
        values(&net.gradients.vectors),
        values(net.input_gradient().unwrap()),
    ];
    fn of(net: &mut Net, which: usize) -> &mut Tensor<f64> {
        match which {
            0 => &mut net.parameters.matrices,
            1 => &mut net.parameters.vectors,
            _ => &mut net.tokens[0],
        }
    }
    for (which, gradient) in found.iter().enumerate() {
        // A sample of the elements, with some of every matrix.
        for (at, found) in gradient.iter().enumerate().step_by([11, 3, 53][which]) {
            let kept = of(&mut net, which).to_dense().unwrap();
            let mut moved = |by: f64| {
                let mut values = kept.values().to_vec();
                values[at] += by;
                let other = Dense::new(kept.shape(), values).unwrap();
                of(&mut net, which).write(&other).unwrap();
                loss(&mut net)
            };
            let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            of(&mut net, which).write(&kept).unwrap();
            let near = (found - slope).abs() <= 1e-8 + 1e-6 * slope.abs();
            assert!(near, "{which}, {at}: {found}, not {slope}");
        }
    }
}

#[test]
fn steps_learn_and_repeat() {
    let cpu = Context::unchecked_cpu();
    let shape = Shape { layers: 1, width: 16, hidden: 32, ..SHAPE };
    let mask = AttentionMask::Blocks(blocks());
    let errors = transformer::errors(&cpu, shape, &mask).unwrap();
    assert!(errors[0] < 0.02 && errors.iter().all(|e| *e < 0.1), "{errors:?}");
    let train = || {
        let mut training = Training::new(&cpu, shape, &mask).unwrap();
        let losses = training.losses(&cpu, 10).unwrap();
        let parameters = &training.net.parameters.matrices;
        (losses, parameters.to_dense().unwrap().into_values())
    };
    let (losses, parameters): (Vec<f32>, Vec<bf16>) = train();
    assert!(losses[9] < losses[0], "{losses:?}");
    assert!(train() == (losses, parameters), "two runs differ");
}
