//! A layer of experts against the same layer on the CPU, and the CPU against explicit sums; exact on integers.

use crate::support::assert_error;
use crate::support::rows::is_here;
use einsparse::dynamic::Gate;
use einsparse::einsum::Activation;
use einsparse::formats::{Dense, bf16, f16};
use einsparse::nn::{Moe, MoeInputs, MoeOptions};
use einsparse::{Context, Error, Scalar, Tensor};

use crate::families::discover::routing::{ROUTERS, Router, choices};
use crate::support::dense::{poisoned, upload};
use crate::support::replay::Replay;
use crate::support::runs::finish;
use crate::support::{Rng, gpu, gpu_alone};

/// Operands of a layer.
pub struct Operands<T> {
    pub x: Dense<T>,
    pub weights: Dense<f32>,
    pub up: Dense<T>,
    pub down: Dense<T>,
}

pub fn options(
    [tokens, top_k]: [usize; 2],
    experts: usize,
    [model, hidden]: [usize; 2],
) -> MoeOptions {
    MoeOptions {
        tokens,
        experts,
        top_k,
        model,
        hidden,
        activation: Activation::Relu,
        ..MoeOptions::default()
    }
}

/// Returns the options with a gate, for matrices that are not transposed and that are.
pub(super) fn gated(o: MoeOptions, gate: Gate) -> [MoeOptions; 2] {
    [false, true].map(|transposed| MoeOptions {
        activation: Activation::Identity,
        gate: Some(gate),
        transposed,
        ..o
    })
}

/// Return the index of element (expert, row, column) in the first matrices and in the second ones.
pub(super) fn places(o: &MoeOptions) -> [impl Fn(usize, usize, usize) -> usize + use<>; 2] {
    let transposed = o.transposed;
    o.shapes().map(|[_, rows, columns]| {
        move |expert: usize, i: usize, j: usize| {
            let [row, column] = if transposed { [j, i] } else { [i, j] };
            (expert * rows + row) * columns + column
        }
    })
}

/// Returns a gate's value and slope.
pub(super) fn gate_of(gate: Gate, x: f64) -> [f64; 2] {
    match gate {
        Gate::Relu => [x.max(0.0), if x > 0.0 { 1.0 } else { 0.0 }],
        Gate::Silu => {
            let s = 1.0 / (1.0 + (-x).exp());
            [x * s, s + x * s * (1.0 - s)]
        }
        Gate::Gelu => {
            let below = 0.5 * libm::erfc(-x / 2f64.sqrt());
            let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            [x * below, below + x * density]
        }
    }
}

/// Returns integers, mostly zero, so that hidden rows are exact in 8 bits of mantissa; or any values.
pub(super) fn operands<T: Scalar>(o: &MoeOptions, exact: bool) -> Operands<T> {
    let mut rng = Rng(17);
    let mut draw = |shape: Vec<usize>, every: u64| {
        let mut value = || match exact {
            true if rng.word() % every == 0 => rng.integer(),
            true => 0.0,
            false => rng.unit() / (every as f64).sqrt(),
        };
        let values = (0..shape.iter().product()).map(|_| T::from_f64(value()));
        let values = values.collect();
        Dense::new(shape, values).unwrap()
    };
    let x = draw(vec![o.tokens, o.model], 1);
    let [up, down] = o.shapes().map(|shape| shape.to_vec());
    let up = draw(up, o.model.div_ceil(8) as u64);
    let down = draw(down, o.hidden.div_ceil(8) as u64);
    let weights = (0..o.tokens * o.top_k).map(|_| match exact {
        true => [0.5, 1.0, 2.0, -1.0][rng.word() as usize % 4],
        false => rng.unit() as f32,
    });
    let weights = Dense::new(vec![o.tokens, o.top_k], weights.collect()).unwrap();
    Operands { x, weights, up, down }
}

/// Runs a layer over these choices into an output of NaN.
fn run<T: Scalar>(
    context: &Context,
    o: &MoeOptions,
    operands: &Operands<T>,
    choices: &Dense<i32>,
) -> Vec<T> {
    let mut layer = Moe::<T>::new(context, o).unwrap();
    let [x, up, down] = upload(context, [&operands.x, &operands.up, &operands.down]);
    let [weights] = upload(context, [&operands.weights]);
    let [choices] = upload(context, [choices]);
    let mut out = poisoned::<T>(context, &[o.tokens, o.model]);
    let (up, down) = ((&up).into(), (&down).into());
    let inputs = MoeInputs { x: &x, choices: &choices, weights: &weights, up, down };
    finish(context, |stream| layer.forward(&inputs, &mut out, stream));
    out.to_dense().unwrap().values().to_vec()
}

/// Reference in f64. Hidden rows and parts are rounded as the layer rounds them.
pub fn reference<T: Scalar>(
    o: &MoeOptions,
    operands: &Operands<T>,
    choices: &Dense<i32>,
) -> Vec<f64> {
    let MoeOptions { model, hidden, experts, top_k, .. } = *o;
    let round = |x: f64| T::from_f64(x).to_f64();
    let [up_at, down_at] = places(o);
    let mut out = vec![0.0; o.tokens * model];
    for (number, &expert) in choices.values().iter().enumerate() {
        let Some(expert) = usize::try_from(expert).ok().filter(|&e| e < experts) else {
            continue;
        };
        let token = number / top_k;
        let x = &operands.x.values()[token * model..][..model];
        let sum = |j: usize| {
            let up = |i: usize| operands.up.values()[up_at(expert, i, j)].to_f64();
            let products = x.iter().enumerate().map(|(i, x)| x.to_f64() * up(i));
            products.sum::<f64>()
        };
        let mut y = vec![0.0; model];
        for j in 0..hidden {
            let h = round(match o.gate {
                None => sum(j).max(0.0),
                Some(gate) => gate_of(gate, sum(j))[0] * sum(hidden + j),
            });
            for (i, y) in y.iter_mut().enumerate() {
                *y += h * operands.down.values()[down_at(expert, j, i)].to_f64();
            }
        }
        let weight = f64::from(operands.weights.values()[number]);
        for (out, y) in out[token * model..][..model].iter_mut().zip(y) {
            *out += round(weight * y);
        }
    }
    out
}

fn exact<T: Scalar>(context: &Context, o: &MoeOptions) {
    let operands = operands::<T>(o, true);
    for router in ROUTERS {
        let choices = choices([o.tokens, o.top_k], o.experts, router, 2);
        let found = run(context, o, &operands, &choices);
        let wanted = reference(o, &operands, &choices);
        for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            let wanted = T::from_f64(*wanted).to_f64();
            assert!(
                found.to_f64() == wanted,
                "{} {o:?} {router:?}: row {} column {} is {found}, not {wanted}",
                T::NAME,
                i / o.model,
                i % o.model
            );
        }
    }
}

#[test]
fn a_layer_of_experts_on_the_cpu() {
    let cpu = Context::unchecked_cpu();
    exact::<f32>(&cpu, &options([20, 1], 3, [6, 10]));
    exact::<f16>(&cpu, &options([20, 3], 5, [6, 10]));
    exact::<f64>(&cpu, &options([0, 2], 5, [6, 10]));
    for o in gated(options([20, 3], 5, [6, 10]), Gate::Relu) {
        exact::<f16>(&cpu, &o);
    }
}

#[test]
fn a_layer_of_experts_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for o in [
        options([300, 1], 4, [64, 256]),
        options([200, 2], 7, [72, 200]),
        options([130, 8], 16, [136, 392]),
        options([1, 1], 1, [8, 8]),
        options([700, 5], 64, [128, 64]),
        options([0, 1], 2, [64, 64]),
    ] {
        exact::<f16>(&gpu, &o);
        exact::<bf16>(&gpu, &o);
        for o in gated(o, Gate::Relu) {
            exact::<f16>(&gpu, &o);
            exact::<bf16>(&gpu, &o);
        }
    }
}

/// The second product runs in pairs of thread blocks, which load W before the first product has ended.
#[test]
fn a_layer_of_experts_with_many_tokens() {
    let Some(gpu) = gpu() else { return };
    let [_, o] = gated(options([1700, 2], 4, [1024, 264]), Gate::Relu);
    let layer = Moe::<bf16>::new(&gpu, &o).unwrap();
    let second = layer.variants()[1];
    match is_here("grouped_bf16_256_t") {
        true => assert_eq!(second, "grouped_bf16_256_t"),
        false => assert!(second.ends_with("_t"), "{second}"),
    }
    let operands = operands::<bf16>(&o, true);
    let choices = choices([o.tokens, o.top_k], o.experts, Router::Even, 2);
    let run = |context: &Context| run(context, &o, &operands, &choices);
    let (found, wanted) = (run(&gpu), run(&Context::unchecked_cpu()));
    assert_eq!(found.iter().zip(&wanted).position(|(a, b)| a != b), None);
}

/// A step of a generating model: fewer rows than experts, and boxes of few rows.
#[test]
fn a_layer_of_experts_with_few_tokens() {
    let Some(gpu) = gpu() else { return };
    for tokens in [1, 3, 17, 40] {
        for o in gated(options([tokens, 8], 32, [256, 192]), Gate::Relu) {
            exact::<bf16>(&gpu, &o);
        }
        exact::<f16>(&gpu, &options([tokens, 2], 32, [192, 256]));
    }
}

/// Any values, within the error of rounding hidden rows and parts. The second run returns the same bits.
#[test]
fn a_layer_of_experts_of_any_values() {
    let Some(gpu) = gpu() else { return };
    let plain = options([500, 4], 12, [256, 512]);
    let gates = [Gate::Silu, Gate::Gelu].map(|gate| gated(plain, gate));
    for o in gates.into_iter().flatten().chain([plain]) {
        close_to_reference(&gpu, &o);
    }
}

fn close_to_reference(context: &Context, o: &MoeOptions) {
    let operands = operands::<bf16>(o, false);
    let choices = choices([o.tokens, o.top_k], o.experts, Router::Uneven, 8);
    let found = run(context, o, &operands, &choices);
    assert!(found == run(context, o, &operands, &choices));
    let wanted = reference(o, &operands, &choices);
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let off = norm(&mut found.iter().zip(&wanted).map(|(a, b)| a.to_f64() - b));
    let size = norm(&mut wanted.iter().copied());
    assert!(off < 0.01 * size, "{o:?}: {off} of {size}");
}

#[test]
fn a_gated_layer_of_experts_on_the_cpu() {
    for gate in [Gate::Silu, Gate::Gelu] {
        for o in gated(options([60, 3], 5, [24, 40]), gate) {
            close_to_reference(&Context::unchecked_cpu(), &o);
        }
    }
}

/// A captured graph reads other choices at every replay.
#[test]
fn a_layer_of_experts_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let o = options([260, 2], 6, [64, 128]);
    let operands = operands::<f16>(&o, true);
    let [x, up, down] = upload(&gpu, [&operands.x, &operands.up, &operands.down]);
    let [weights] = upload(&gpu, [&operands.weights]);
    let mut there: Tensor<i32> = gpu.zeros(&[260, 2]).unwrap();
    let mut out = gpu.zeros::<f16>(&[260, 64]).unwrap();
    let mut layer = Moe::<f16>::new(&gpu, &o).unwrap();
    let stream = gpu.stream().unwrap();
    let run = || {
        layer.forward(
            &MoeInputs {
                x: &x,
                choices: &there,
                weights: &weights,
                up: (&up).into(),
                down: (&down).into(),
            },
            &mut out,
            &stream,
        )
    };
    let mut graph = Replay::of(&stream, run);
    for (seed, router) in ROUTERS.into_iter().chain(ROUTERS).enumerate() {
        let choices = choices([260, 2], 6, router, 100 + seed as u64);
        there.write(&choices).unwrap();
        // SAFETY: all memory that the captured run uses is alive until the end of this test.
        unsafe { graph.run() };
        let wanted = reference(&o, &operands, &choices);
        let wanted: Vec<f16> = wanted.into_iter().map(f16::from_f64).collect();
        assert!(out.to_dense().unwrap().values() == wanted, "{router:?}");
    }
}

#[test]
fn a_layer_of_experts_refuses_what_it_cannot() {
    let cpu = Context::unchecked_cpu();
    let o = options([4, 2], 3, [8, 16]);
    let mut layer = Moe::<f32>::new(&cpu, &o).unwrap();
    let tensor = |shape: &[usize]| cpu.zeros::<f32>(shape).unwrap();
    let (x, up) = (tensor(&[4, 8]), tensor(&[3, 8, 16]));
    let (choices, weights) = (cpu.zeros::<i32>(&[4, 2]).unwrap(), tensor(&[4, 2]));
    let mut out = tensor(&[4, 8]);
    let stream = cpu.stream().unwrap();
    let error = layer
        .forward(
            &MoeInputs {
                x: &x,
                choices: &choices,
                weights: &weights,
                up: (&up).into(),
                down: (&up).into(),
            },
            &mut out,
            &stream,
        )
        .unwrap_err();
    assert!(matches!(&error, Error::Shape { index, .. } if index == "down"), "{error}");
    let both = MoeOptions { gate: Some(Gate::Silu), ..o };
    let error = Moe::<f32>::new(&cpu, &both).unwrap_err();
    assert_error!(error, Error::OutOfRange { name, .. } if name == "activation");
}
