//! A layer of experts against explicit sums, exact on integers: matrices of the rows' type, e4m3 with scales, and rows
//! rounded to e4m3 too.

pub mod gradient;

use einsparse::dynamic::{Gate, GroupedGemm, GroupedOptions, Matrices};
use einsparse::einsum::Activation;
use einsparse::formats::{Dense, E4m3, bf16, f16};
use einsparse::nn::{Moe, MoeInputs, MoeOptions};
use einsparse::registry::{Dtype, Row};
use einsparse::{Context, Error, Scalar, Tensor};
use einsparse_kernels::abi::FP8_MMA;

use super::grouped_gemm::{Matrix, Scaled, Uploaded, both_sides};
use crate::families::discover::routing::{ROUTERS, Router, choices, routed};
use crate::support::bounds::relative_error;
use crate::support::dense::{assert_equal, poisoned, rounded, upload, wide};
use crate::support::replay::Replay;
use crate::support::rows::{is_here, kernels_here};
use crate::support::runs::finish;
use crate::support::{Rng, assert_error, gpu, gpu_alone, on_both};

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

/// Returns a layer's options with scaled matrices, with a gate or without.
fn scaled(shape: [usize; 2], experts: usize, extents: [usize; 2], gated: bool) -> MoeOptions {
    MoeOptions {
        activation: if gated { Activation::Identity } else { Activation::Relu },
        gate: gated.then_some(Gate::Silu),
        transposed: true,
        scaled: true,
        ..options(shape, experts, extents)
    }
}

fn quantized(shape: [usize; 2], experts: usize, extents: [usize; 2], gated: bool) -> MoeOptions {
    MoeOptions { quantize: true, ..scaled(shape, experts, extents, gated) }
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

/// Inputs of a layer; `up` and `down` are its matrices.
fn inputs<'a, T>(
    x: &'a Tensor<T>,
    choices: &'a Tensor<i32>,
    weights: &'a Tensor<f32>,
    [up, down]: [Matrices<'a, T>; 2],
) -> MoeInputs<'a, T> {
    MoeInputs { x, choices, weights, up, down }
}

/// A layer's operands, except choices.
struct Case<T> {
    x: Dense<T>,
    weights: Dense<f32>,
    matrices: [Matrix<T>; 2],
}

impl<T: Scalar> From<Operands<T>> for Case<T> {
    fn from(operands: Operands<T>) -> Self {
        let Operands { x, weights, up, down } = operands;
        Case { x, weights, matrices: [up, down].map(Matrix::Plain) }
    }
}

impl<T: Scalar> Case<T> {
    /// Draws any values.
    fn new(o: &MoeOptions, seed: u64) -> Self {
        let mut rng = Rng(seed);
        let mut seed = seed;
        let matrices = o.shapes().map(|shape| {
            seed += 1;
            match o.scaled {
                true => Matrix::Scaled(Scaled::draw(shape, false, seed)),
                false => {
                    let values = Rng(seed).units(shape.iter().product());
                    Matrix::Plain(Dense::new(shape, values).unwrap())
                }
            }
        });
        let x = Dense::new([o.tokens, o.model], rng.units(o.tokens * o.model)).unwrap();
        let weights = Dense::new([o.tokens, o.top_k], rng.units(o.tokens * o.top_k)).unwrap();
        Case { x, weights, matrices }
    }

    /// Returns the operands with matrices of the represented values.
    fn rounded(&self) -> Self {
        let matrices = self.matrices.each_ref().map(|matrix| match matrix {
            Matrix::Plain(plain) => Matrix::Plain(plain.clone()),
            Matrix::Scaled(scaled) => Matrix::Plain(scaled.rounded::<T>()),
        });
        Case { x: self.x.clone(), weights: self.weights.clone(), matrices }
    }

    /// Runs a layer over these choices into an output of NaN. The steps of the layer, called one by one, give the same
    /// bits.
    fn run(&self, context: &Context, o: &MoeOptions, choices: &Dense<i32>) -> Vec<f64> {
        let mut layer = Moe::<T>::new(context, o).unwrap();
        let ([x], [weights]) = (upload(context, [&self.x]), upload(context, [&self.weights]));
        let [choices] = upload(context, [choices]);
        let [up, down] = self.matrices.each_ref().map(|matrix| matrix.upload(context));
        let mut outs = [0, 1].map(|_| poisoned::<T>(context, &[o.tokens, o.model]));
        let [out, parts] = &mut outs;
        let matrices = [up.get(), down.get()];
        let inputs = inputs(&x, &choices, &weights, matrices);
        finish(context, |stream| layer.forward(&inputs, out, stream));
        finish(context, |stream| layer.route(&choices, stream));
        finish(context, |stream| layer.multiply_up(&x, up.get(), stream));
        finish(context, |stream| layer.multiply_down(&weights, down.get(), parts, stream));
        let [found, parts] = outs.each_ref().map(wide);
        assert_equal(&format!("{o:?}, step by step"), &parts, &found);
        found
    }
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
    for router in ROUTERS {
        let operands = operands::<T>(o, true);
        let choices = choices([o.tokens, o.top_k], o.experts, router, 2);
        let wanted = rounded::<T>(&reference(o, &operands, &choices));
        let found = Case::from(operands).run(context, o, &choices);
        assert_equal(&format!("{} {o:?} {router:?}", T::NAME), &found, &wanted);
    }
}

fn all<T: Scalar>(context: &Context) {
    // The last two are steps of a generating model: fewer rows than experts, and boxes of few rows.
    let few = [1, 3, 17, 40];
    for o in [
        options([300, 1], 4, [64, 256]),
        options([200, 2], 7, [72, 200]),
        options([130, 8], 16, [136, 392]),
        options([1, 1], 1, [8, 8]),
        options([700, 5], 64, [128, 64]),
        options([0, 1], 2, [64, 64]),
    ]
    .into_iter()
    .chain(few.map(|tokens| options([tokens, 8], 32, [256, 192])))
    .chain(few.map(|tokens| options([tokens, 2], 32, [192, 256])))
    {
        exact::<T>(context, &o);
        gated(o, Gate::Relu).iter().for_each(|o| exact::<T>(context, o));
    }
}

/// Any values, within the error of rounding hidden rows and parts. The second run returns the same bits.
fn close_to_reference(context: &Context, plain: MoeOptions) {
    let gates = [Gate::Silu, Gate::Gelu].map(|gate| gated(plain, gate));
    for o in gates.into_iter().flatten().chain([plain]) {
        let operands = operands::<bf16>(&o, false);
        let choices = choices([o.tokens, o.top_k], o.experts, Router::Uneven, 8);
        let wanted = reference(&o, &operands, &choices);
        let case = Case::from(operands);
        let found = case.run(context, &o, &choices);
        assert!(found == case.run(context, &o, &choices));
        let off = relative_error(&found, &wanted);
        assert!(off < 0.01, "{o:?}: {off}");
    }
}

/// The kernels multiply the represented values of the matrices, rounded: the same sums in the same order.
fn same_bits<T: Scalar>(context: &Context, o: MoeOptions) {
    let case = Case::<T>::new(&o, 3);
    for router in ROUTERS {
        let choices = choices([o.tokens, o.top_k], o.experts, router, 2);
        let plain = MoeOptions { scaled: false, ..o };
        let wanted = case.rounded().run(context, &plain, &choices);
        let what = format!("{} {o:?} {router:?}", T::NAME);
        assert_equal(&what, &case.run(context, &o, &choices), &wanted);
    }
}

fn scaled_layers<T: Scalar>(context: &Context) {
    for (shape, experts, extents) in [
        ([300, 1], 4, [64, 256]),
        ([200, 2], 7, [144, 384]),
        ([130, 8], 16, [272, 128]),
        ([1, 8], 32, [2048, 768]),
        ([17, 8], 32, [256, 128]),
        ([700, 5], 64, [128, 128]),
        ([0, 1], 2, [64, 128]),
    ] {
        for gated in [false, true] {
            same_bits::<T>(context, scaled(shape, experts, extents, gated));
        }
    }
    // Without a gate no extent has to be a multiple of blocks.
    same_bits::<T>(context, scaled([90, 2], 5, [80, 208], false));
}

on_both! {
    layers: cpu [
        |cpu| exact::<f32>(cpu, &options([20, 1], 3, [6, 10])),
        |cpu| exact::<f16>(cpu, &options([20, 3], 5, [6, 10])),
        |cpu| exact::<f64>(cpu, &options([0, 2], 5, [6, 10])),
        |cpu| {
            for o in gated(options([20, 3], 5, [6, 10]), Gate::Relu) {
                exact::<f16>(cpu, &o);
            }
        },
    ], gpu [all::<f16>, all::<bf16>];
    layers_of_any_values: cpu [
        |cpu| close_to_reference(cpu, options([60, 3], 5, [24, 40])),
    ], gpu [|gpu| close_to_reference(gpu, options([500, 4], 12, [256, 512]))];
    layers_with_scaled_matrices: cpu [|cpu| {
        for gated in [false, true] {
            same_bits::<f32>(cpu, scaled([12, 2], 3, [48, 128], gated));
            same_bits::<bf16>(cpu, scaled([5, 1], 4, [144, 128], gated));
        }
    }], gpu [scaled_layers::<f16>, scaled_layers::<bf16>];
}

/// The second product runs in pairs of thread blocks, which load W before the first product has ended.
#[test]
fn layers_with_many_tokens() {
    let Some(gpu) = gpu() else { return };
    let [_, o] = gated(options([1700, 2], 4, [1024, 264]), Gate::Relu);
    let layer = Moe::<bf16>::new(&gpu, &o).unwrap();
    let second = layer.variants()[1];
    match is_here("grouped_bf16_256_t") {
        true => assert_eq!(second, "grouped_bf16_256_t"),
        false => assert!(second.ends_with("_t"), "{second}"),
    }
    let case = Case::from(operands::<bf16>(&o, true));
    let choices = choices([o.tokens, o.top_k], o.experts, Router::Even, 2);
    let wanted = case.run(&Context::unchecked_cpu(), &o, &choices);
    assert_equal("many tokens", &case.run(&gpu, &o, &choices), &wanted);
}

/// The relative error of rounding rows to e4m3, of the CPU's layer and of this one.
fn off_exact<T: Scalar>(context: &Context, o: MoeOptions) -> [f64; 2] {
    let case = Case::<T>::new(&o, 3);
    let choices = choices([o.tokens, o.top_k], o.experts, Router::Uneven, 2);
    let found = case.run(context, &o, &choices);
    let exact = case.run(context, &MoeOptions { quantize: false, ..o }, &choices);
    let wanted = case.run(&Context::unchecked_cpu(), &o, &choices);
    [wanted, exact].map(|other| relative_error(&found, &other))
}

fn quantized_layers<T: Scalar>(context: &Context) {
    for (shape, experts, extents) in [
        ([300, 1], 4, [64, 256]),
        ([200, 2], 7, [144, 384]),
        ([130, 8], 16, [272, 128]),
        ([1, 8], 12, [1024, 384]),
        ([700, 5], 64, [128, 128]),
    ] {
        for gated in [false, true] {
            let o = quantized(shape, experts, extents, gated);
            let [near, far] = off_exact::<T>(context, o);
            // If sums differ in their last bits, some hidden values are rounded the other way.
            let right = near < 0.02 && (0.01..0.08).contains(&far) && near < far / 2.0;
            assert!(right, "{} {o:?}: {near}, {far}", T::NAME);
        }
    }
}

on_both! {
    quantized_rows: cpu [|cpu| {
        for gated in [false, true] {
            let [_, far] = off_exact::<f32>(cpu, quantized([40, 2], 3, [144, 128], gated));
            assert!((0.01..0.08).contains(&far), "{far}");
        }
    }], gpu [quantized_layers::<f16>, quantized_layers::<bf16>];
}

/// The e4m3 rows that the first product stores equal the quantized rows of an unfused product.
#[test]
fn hidden_rows_have_the_bits_of_two_products() {
    let Some(gpu) = gpu() else { return };
    let mut first = Vec::new();
    for (gated, tokens, experts, extents) in [
        (true, 150, 5, [144, 384]),
        (false, 150, 5, [144, 208]),
        (false, 150, 5, [64, 16]),
        // A tile has 256 columns; the last 128 are past the columns of C.
        (false, 5700, 1, [16, 384]),
        (true, 16_000, 1, [16, 384]),
    ] {
        let o = quantized([tokens, 1], experts, extents, gated);
        let case = Case::<bf16>::new(&o, 3);
        let choices = choices([o.tokens, 1], o.experts, Router::Uneven, 2);
        let wanted = case.run(&gpu, &o, &choices);
        first.push(Moe::<bf16>::new(&gpu, &o).unwrap().variants()[0]);

        let routing = routed(&gpu, &choices, o.experts);
        let up = GroupedOptions {
            gather: true,
            activation: o.activation,
            gate: o.gate,
            ..both_sides(o.model, o.hidden)
        };
        let down = GroupedOptions { scatter: true, ..both_sides(o.hidden, o.model) };
        let products =
            [up, down].map(|options| GroupedGemm::<bf16>::new(&routing, &options).unwrap());
        let [x] = upload(&gpu, [&case.x]);
        let [weights] = upload(&gpu, [&case.weights]);
        let [up, down] = case.matrices.each_ref().map(|matrix| matrix.upload(&gpu));
        let mut hidden = gpu.zeros::<bf16>(&[o.tokens, o.hidden]).unwrap();
        let mut out = poisoned::<bf16>(&gpu, &[o.tokens, o.model]);
        finish(&gpu, |stream| {
            products[0].forward(&routing, &x, up.get(), None, &mut hidden, stream)
        });
        finish(&gpu, |stream| {
            products[1].forward(&routing, &hidden, down.get(), Some(&weights), &mut out, stream)
        });
        assert_equal(&format!("{o:?}"), &wide(&out), &wanted);
    }
    let of_bf16 = |row: &&Row| row.module == "grouped" && row.dtype == Dtype::Bf16;
    let rows = kernels_here().filter(of_bf16).filter(|row| row.name.contains("quantized"));
    assert!(rows.clone().next().is_some());
    // A GPU that multiplies fp8 uses the kernels that do.
    let fp8 = rows.clone().any(|row| row.needs & FP8_MMA != 0);
    for row in rows.filter(|row| !fp8 || row.needs & FP8_MMA != 0) {
        assert!(first.contains(&row.name), "{} of {first:?}", row.name);
    }
}

/// A captured graph reads other rows, matrices, scales and choices at every replay.
fn in_a_graph<T: Scalar>(gpu: &Context, o: MoeOptions) {
    let case = Case::<T>::new(&o, 3);
    let ([mut x], [mut weights]) = (upload(gpu, [&case.x]), upload(gpu, [&case.weights]));
    let mut matrices: [Uploaded<T>; 2] = case.matrices.each_ref().map(|m| m.upload(gpu));
    let mut there = gpu.zeros::<i32>(&[o.tokens, o.top_k]).unwrap();
    let mut out = gpu.zeros::<T>(&[o.tokens, o.model]).unwrap();
    let mut layer = Moe::<T>::new(gpu, &o).unwrap();
    let stream = gpu.stream().unwrap();
    let mut graph = Replay::of(&stream, || {
        let matrices = matrices.each_ref().map(Uploaded::get);
        layer.forward(&inputs(&x, &there, &weights, matrices), &mut out, &stream)
    });
    for (seed, router) in (100..).zip(ROUTERS.into_iter().chain(ROUTERS)) {
        let case = Case::<T>::new(&o, seed);
        let choices = choices([o.tokens, o.top_k], o.experts, router, seed);
        x.write(&case.x).unwrap();
        weights.write(&case.weights).unwrap();
        matrices.iter_mut().zip(&case.matrices).for_each(|(there, new)| there.write(new));
        there.write(&choices).unwrap();
        // SAFETY: all memory that the captured run uses is alive until the end of this function.
        unsafe { graph.run() };
        assert_equal(&format!("{o:?} {router:?}"), &wide(&out), &case.run(gpu, &o, &choices));
    }
}

#[test]
fn layers_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    in_a_graph::<f16>(&gpu, options([260, 2], 6, [64, 128]));
    in_a_graph::<bf16>(&gpu, scaled([60, 2], 6, [64, 128], true));
    in_a_graph::<bf16>(&gpu, quantized([60, 2], 6, [64, 128], true));
}

#[test]
fn refusals() {
    let cpu = Context::unchecked_cpu();
    let o = options([4, 2], 3, [8, 16]);
    let mut layer = Moe::<f32>::new(&cpu, &o).unwrap();
    let tensor = |shape: &[usize]| cpu.zeros::<f32>(shape).unwrap();
    let (x, up) = (tensor(&[4, 8]), tensor(&[3, 8, 16]));
    let (choices, weights) = (cpu.zeros::<i32>(&[4, 2]).unwrap(), tensor(&[4, 2]));
    let mut out = tensor(&[4, 8]);
    let stream = cpu.stream().unwrap();
    let inputs = inputs(&x, &choices, &weights, [(&up).into(); 2]);
    let error = layer.forward(&inputs, &mut out, &stream).unwrap_err();
    assert_error!(error, Error::Shape { index, .. } if index == "down");
    let both = MoeOptions { gate: Some(Gate::Silu), ..o };
    let error = Moe::<f32>::new(&cpu, &both).unwrap_err();
    assert_error!(error, Error::OutOfRange { name, .. } if name == "activation");
}

#[test]
fn refusals_of_scaled_matrices() {
    let cpu = Context::unchecked_cpu();
    let fits = scaled([4, 2], 3, [32, 128], true);
    for (option, found, options) in [
        ("transposed", "false", MoeOptions { transposed: false, ..fits }),
        ("k", "40", MoeOptions { model: 40, ..fits }),
        ("n", "160", MoeOptions { hidden: 160, ..fits }),
        ("quantize", "true", MoeOptions { scaled: false, quantize: true, ..fits }),
    ] {
        let error = Moe::<f32>::new(&cpu, &options).unwrap_err();
        assert_error!(
            error,
            Error::OutOfRange { name, value, .. } if name == option && value == found
        );
    }
    let error = Moe::<f32>::for_training(&cpu, &fits).unwrap_err();
    assert_error!(error, Error::OutOfRange { name, .. } if name == "scaled");

    let stream = cpu.stream().unwrap();
    let tensor = |shape: &[usize]| cpu.zeros::<f32>(shape).unwrap();
    let [up, down] = fits.shapes();
    let codes = [up, down].map(|shape| cpu.zeros::<E4m3>(&shape).unwrap());
    let scales = [tensor(&[3, 2, 1]), tensor(&[3, 1, 1])];
    let (x, weights) = (tensor(&[4, 32]), tensor(&[4, 2]));
    let choices = cpu.zeros::<i32>(&[4, 2]).unwrap();
    let mut out = tensor(&[4, 32]);
    let given = |matrices| inputs(&x, &choices, &weights, matrices);
    let [up, down]: [Matrices<'_, f32>; 2] = [0, 1].map(|i| (&codes[i], &scales[i]).into());
    let mut layer = Moe::<f32>::new(&cpu, &fits).unwrap();
    layer.forward(&given([up, down]), &mut out, &stream).unwrap();
    let swapped = (&codes[0], &scales[1]).into();
    let error = layer.forward(&given([swapped, down]), &mut out, &stream).unwrap_err();
    assert_error!(error, Error::Shape { index, .. } if index == "scales of up");
    let plain = tensor(&[3, 32, 128]);
    let error = layer.forward(&given([up, (&plain).into()]), &mut out, &stream).unwrap_err();
    assert_error!(error, Error::OperandKind { found, .. } if found == "a tensor without scales");
    let options = MoeOptions { scaled: false, ..fits };
    let mut layer = Moe::<f32>::new(&cpu, &options).unwrap();
    let error = layer.forward(&given([up, down]), &mut out, &stream).unwrap_err();
    assert_error!(error, Error::OperandKind { found, .. } if found == "e4m3 with scales");
}
