//! Experts whose matrices are e4m3 with scales. Each kernel is compared with the CPU on integers. Layers must have the
//! same bits as layers with the same matrices, scaled and rounded.

use crate::support::assert_error;
use crate::support::rows::kernels_here;
use einsparse::dynamic::{Gate, GroupedGemm, GroupedOptions, Routing};
use einsparse::einsum::Activation;
use einsparse::formats::{Dense, E4m3, Element, bf16, f16};
use einsparse::nn::{Moe, MoeInputs, MoeOptions};
use einsparse::registry::Row;
use einsparse::{Context, Error, Scalar, Tensor};
use einsparse_kernels::families::{QUANTIZED_COLUMNS, SCALED_COLUMNS, STEP_GROUPED_GATED};

use super::moe::options;
use crate::families::discover::routing::{ROUTERS, Router, choices};
use crate::support::dense::{poisoned, upload};
use crate::support::replay::Replay;
use crate::support::runs::finish;
use crate::support::{Rng, gpu, gpu_alone};

/// Number of rows and of columns that share a scale.
const BLOCK: usize = 128;

/// Matrices as codes and scales.
pub struct Scaled {
    codes: Dense<E4m3>,
    scales: Dense<f32>,
}

impl Scaled {
    /// Returns integers times powers of two, mostly zero; or any codes with any scales.
    fn draw(shape: [usize; 3], exact: bool, seed: u64) -> Self {
        let mut rng = Rng(seed);
        let [experts, rows, columns] = shape;
        let every = columns.div_ceil(8).max(1) as u64;
        let codes = (0..shape.iter().product()).map(|_| match exact {
            true if rng.word() % every == 0 => E4m3::from_f64(rng.integer()),
            true => E4m3::ZERO,
            // All codes except NaN.
            false => match E4m3::from_bits(rng.word() as u8) {
                code if code.is_nan() => E4m3::MAX,
                code => code,
            },
        });
        let codes = Dense::new(shape, codes.collect()).unwrap();
        let blocks = [experts, rows.div_ceil(BLOCK), columns.div_ceil(BLOCK)];
        let scales = (0..blocks.iter().product()).map(|_| match exact {
            true => [0.5, 1.0, -1.0, 2.0][rng.word() as usize % 4],
            false => 1e-4 + 2e-3 * rng.unit().abs() as f32,
        });
        let scales = Dense::new(blocks, scales.collect()).unwrap();
        Scaled { codes, scales }
    }

    /// Returns the represented values.
    fn rounded<T: Scalar>(&self) -> Dense<T> {
        let &[_, rows, columns] = self.codes.shape() else {
            unreachable!("three axes");
        };
        let &[_, down, across] = self.scales.shape() else {
            unreachable!("three axes");
        };
        Dense::from_fn(self.codes.shape(), |at| {
            let code = self.codes.values()[(at[0] * rows + at[1]) * columns + at[2]];
            let block = (at[0] * down + at[1] / BLOCK) * across + at[2] / BLOCK;
            T::from_f64(f64::from(code.to_acc() * self.scales.values()[block]))
        })
        .unwrap()
    }

    pub fn upload(&self, context: &Context) -> (Tensor<E4m3>, Tensor<f32>) {
        let [codes] = upload(context, [&self.codes]);
        let [scales] = upload(context, [&self.scales]);
        (codes, scales)
    }
}

/// Runs one product in this context; its output starts as NaN.
fn product<T: Scalar>(
    context: &Context,
    choices: &Dense<i32>,
    (options, w): (GroupedOptions, &Scaled),
    variant: Option<&str>,
) -> Vec<f64> {
    let &[tokens, top] = choices.shape() else {
        unreachable!("two axes");
    };
    let experts = w.codes.shape()[0];
    let mut routing = Routing::new(context, [tokens, top], experts).unwrap();
    let [choices] = upload(context, [choices]);
    finish(context, |stream| routing.run(&choices, stream));
    let GroupedOptions { k, n, gather, .. } = options;
    let rows = if gather { tokens } else { tokens * top };
    let a = Rng(5).integers::<T>(rows * k);
    let [a] = upload(context, [&Dense::new([rows, k], a).unwrap()]);
    let weights = Rng(7).integers::<f32>(tokens * top);
    let [weights] = upload(context, [&Dense::new([tokens, top], weights).unwrap()]);
    let (codes, scales) = w.upload(context);
    let mut c = poisoned::<T>(context, &[tokens * top, n]);
    let product = GroupedGemm::<T>::with_variant(&routing, &options, variant).unwrap();
    let w = (&codes, &scales);
    finish(context, |stream| product.forward(&routing, &a, w, Some(&weights), &mut c, stream));
    let found = c.to_dense().unwrap();
    found.values().iter().map(|x| x.to_f64()).collect()
}

/// Kernels of this type with matrices of e4m3.
fn kernels_of<T: Scalar>() -> impl Iterator<Item = &'static Row> + Clone {
    kernels_here().filter(|row| {
        [SCALED_COLUMNS, QUANTIZED_COLUMNS].contains(&row.order)
            && row.dtype == T::DTYPE
            && row.module == "grouped"
    })
}

fn rows_agree<T: Scalar>() {
    let Some(gpu) = gpu() else { return };
    let cpu = Context::unchecked_cpu();
    let own = kernels_of::<T>();
    let mut tried = Vec::new();
    for gated in [false, true] {
        let own = own.clone().filter(|row| gated == (row.step == STEP_GROUPED_GATED));
        for (shape, experts, [k, n], router) in [
            ([300, 1], 3, [64usize, 256usize], Router::Even),
            ([200, 2], 5, [80, 264], Router::Uneven),
            ([130, 1], 2, [272, 136], Router::One),
            ([40, 3], 4, [16, 8], Router::Holes),
            ([20, 1], 3, [64, 520], Router::Nobody),
            ([1, 1], 1, [400, 64], Router::Even),
            ([3, 8], 24, [1040, 384], Router::Even),
            ([2000, 2], 16, [144, 392], Router::Holes),
            ([0, 1], 2, [64, 64], Router::Even),
            ([64, 1], 2, [0, 64], Router::Even),
        ] {
            let n = if gated { n.next_multiple_of(BLOCK) } else { n };
            let choices = choices(shape, experts, router, 11);
            let wide = if gated { 2 * n } else { n };
            let w = Scaled::draw([experts, wide, k], true, 6);
            for way in 0..4u32 {
                let options = GroupedOptions {
                    k,
                    n,
                    gather: way & 1 != 0,
                    scatter: way & 2 != 0,
                    activation: match gated {
                        true => Activation::Identity,
                        false => Activation::Relu,
                    },
                    gate: gated.then_some(Gate::Relu),
                    transposed: true,
                    scaled: true,
                    quantize: false,
                };
                let wanted = product::<T>(&cpu, &choices, (options, &w), None);
                for row in own.clone() {
                    // These integers are exact after quantization.
                    let options =
                        GroupedOptions { quantize: row.order == QUANTIZED_COLUMNS, ..options };
                    let found = product::<T>(&gpu, &choices, (options, &w), Some(row.name));
                    let fault = (found.iter().zip(&wanted))
                        .position(|(a, b)| a != b && !(a.is_nan() && b.is_nan()));
                    assert!(
                        fault.is_none(),
                        "{} {shape:?} {experts} {options:?} {router:?}: at {fault:?} of rows of {n}",
                        row.name
                    );
                    tried.push(row.name);
                }
            }
        }
    }
    tried.sort_unstable();
    tried.dedup();
    assert_eq!(tried.len(), own.count(), "{tried:?}");
}

#[test]
fn products_of_f16_with_scaled_matrices_are_those_of_the_cpu() {
    rows_agree::<f16>();
}

#[test]
fn products_of_bf16_with_scaled_matrices_are_those_of_the_cpu() {
    rows_agree::<bf16>();
}

/// A NaN code makes its column NaN in the rows of its matrix, and no other element.
#[test]
fn nan_codes_stay_in_their_columns() {
    let Some(gpu) = gpu() else { return };
    let cpu = Context::unchecked_cpu();
    let nan = E4m3::from_f64(f64::NAN);
    let [k, n, experts] = [144, 128, 2];
    let choices = choices([90, 1], experts, Router::Even, 11);
    for row in kernels_of::<f16>() {
        let gated = row.step == STEP_GROUPED_GATED;
        let wide = if gated { 2 * n } else { n };
        let mut w = Scaled::draw([experts, wide, k], true, 6);
        // Every byte of a word, and the last word of a column.
        for (i, column) in [0, 5, 9, 38, 71, 127].into_iter().enumerate() {
            let deep = if i == 5 { k - 1 } else { 29 * i };
            w.codes.values_mut()[(wide - n + column) * k + deep] = nan;
        }
        let options = GroupedOptions {
            k,
            n,
            gather: true,
            scatter: true,
            gate: gated.then_some(Gate::Relu),
            transposed: true,
            scaled: true,
            ..GroupedOptions::default()
        };
        let wanted = product::<f16>(&cpu, &choices, (options, &w), None);
        let options = GroupedOptions { quantize: row.order == QUANTIZED_COLUMNS, ..options };
        let found = product::<f16>(&gpu, &choices, (options, &w), Some(row.name));
        let count = wanted.iter().filter(|x| x.is_nan()).count();
        assert!(count > 0 && count < wanted.len() / 8, "{}: {count}", row.name);
        let fault =
            found.iter().zip(&wanted).position(|(a, b)| a != b && !(a.is_nan() && b.is_nan()));
        assert!(fault.is_none(), "{}: at {fault:?} of rows of {n}", row.name);
    }
}

/// Returns a layer's options, scaled, with a gate or without.
pub fn scaled(shape: [usize; 2], experts: usize, extents: [usize; 2], gated: bool) -> MoeOptions {
    MoeOptions {
        activation: match gated {
            true => Activation::Identity,
            false => Activation::Relu,
        },
        gate: gated.then_some(Gate::Silu),
        transposed: true,
        scaled: true,
        ..options(shape, experts, extents)
    }
}

/// A layer, and its operands except choices.
pub struct Case<T> {
    options: MoeOptions,
    pub matrices: [Scaled; 2],
    pub x: Dense<T>,
    pub weights: Dense<f32>,
}

impl<T: Scalar> Case<T> {
    pub fn new(options: MoeOptions) -> Self {
        let [up, down] = options.shapes();
        let MoeOptions { tokens, top_k, model, .. } = options;
        let mut rng = Rng(23);
        let x = (0..tokens * model).map(|_| T::from_f64(rng.unit())).collect();
        let weights = (0..tokens * top_k).map(|_| rng.unit() as f32).collect();
        Case {
            options,
            matrices: [Scaled::draw(up, false, 3), Scaled::draw(down, false, 4)],
            x: Dense::new([tokens, model], x).unwrap(),
            weights: Dense::new([tokens, top_k], weights).unwrap(),
        }
    }

    /// Returns the layer's rows, and those of the layer with rounded matrices.
    fn both(&self, context: &Context, choices: &Dense<i32>) -> [Vec<T>; 2] {
        let [x] = upload(context, [&self.x]);
        let [weights] = upload(context, [&self.weights]);
        let [choices] = upload(context, [choices]);
        let shape = [self.options.tokens, self.options.model];
        let [up, down] = [0, 1].map(|i| self.matrices[i].upload(context));
        let mut own = poisoned::<T>(context, &shape);
        let mut layer = Moe::<T>::new(context, &self.options).unwrap();
        let (up, down) = ((&up.0, &up.1).into(), (&down.0, &down.1).into());
        let inputs = MoeInputs { x: &x, choices: &choices, weights: &weights, up, down };
        finish(context, |stream| layer.forward(&inputs, &mut own, stream));

        let plain = MoeOptions { scaled: false, ..self.options };
        let [up, down] = [0, 1].map(|i| self.matrices[i].rounded::<T>());
        let [up, down] = upload(context, [&up, &down]);
        let mut other = poisoned::<T>(context, &shape);
        let mut layer = Moe::<T>::new(context, &plain).unwrap();
        let inputs = MoeInputs { up: (&up).into(), down: (&down).into(), ..inputs };
        finish(context, |stream| layer.forward(&inputs, &mut other, stream));
        [own, other].map(|out| out.to_dense().unwrap().into_values())
    }
}

fn same_bits<T: Scalar>(context: &Context, options: MoeOptions) {
    let case = Case::<T>::new(options);
    for router in ROUTERS {
        let choices = choices([options.tokens, options.top_k], options.experts, router, 2);
        let [own, other] = case.both(context, &choices);
        let fault = own.iter().zip(&other).position(|(a, b)| a != b);
        assert!(
            fault.is_none(),
            "{} {options:?} {router:?}: at {fault:?} of rows of {}",
            T::NAME,
            options.model
        );
    }
}

#[test]
fn a_layer_of_scaled_experts_on_the_cpu() {
    let cpu = Context::unchecked_cpu();
    for gated in [false, true] {
        same_bits::<f32>(&cpu, scaled([12, 2], 3, [48, 128], gated));
        same_bits::<bf16>(&cpu, scaled([5, 1], 4, [144, 128], gated));
    }
}

/// The kernels multiply the represented values of the matrices, rounded: the same sums in the same order.
#[test]
fn a_layer_of_scaled_experts_has_the_bits_of_rounded_ones() {
    let Some(gpu) = gpu() else { return };
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
            same_bits::<f16>(&gpu, scaled(shape, experts, extents, gated));
            same_bits::<bf16>(&gpu, scaled(shape, experts, extents, gated));
        }
    }
    // Without a gate no extent has to be a multiple of blocks.
    same_bits::<bf16>(&gpu, scaled([90, 2], 5, [80, 208], false));
}

/// A captured graph reads other matrices, scales and choices at every replay.
#[test]
fn a_layer_of_scaled_experts_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let options = scaled([60, 2], 6, [64, 128], true);
    let mut case = Case::<bf16>::new(options);
    let [x] = upload(&gpu, [&case.x]);
    let [weights] = upload(&gpu, [&case.weights]);
    let [(mut codes, mut scales), down] = [0, 1].map(|i| case.matrices[i].upload(&gpu));
    let mut there: Tensor<i32> = gpu.zeros(&[60, 2]).unwrap();
    let mut out = gpu.zeros::<bf16>(&[60, 64]).unwrap();
    let mut layer = Moe::<bf16>::new(&gpu, &options).unwrap();
    let stream = gpu.stream().unwrap();
    let (up, down) = ((&codes, &scales).into(), (&down.0, &down.1).into());
    let inputs = MoeInputs { x: &x, choices: &there, weights: &weights, up, down };
    let run = || layer.forward(&inputs, &mut out, &stream);
    let mut graph = Replay::of(&stream, run);
    for (seed, router) in ROUTERS.into_iter().enumerate() {
        let choices = choices([60, 2], 6, router, 100 + seed as u64);
        let up = Scaled::draw(options.shapes()[0], false, 200 + seed as u64);
        codes.write(&up.codes).unwrap();
        scales.write(&up.scales).unwrap();
        there.write(&choices).unwrap();
        case.matrices[0] = up;
        // SAFETY: all memory that the captured run uses is alive until the end of this test.
        unsafe { graph.run() };
        let [own, other] = case.both(&gpu, &choices);
        assert!(own == other && out.to_dense().unwrap().values() == own, "{router:?}");
    }
}

#[test]
fn scaled_experts_refuse_what_they_cannot() {
    let cpu = Context::unchecked_cpu();
    let fits = scaled([4, 2], 3, [32, 128], true);
    for (option, found, options) in [
        ("transposed", "false", MoeOptions { transposed: false, ..fits }),
        ("k", "40", MoeOptions { model: 40, ..fits }),
        ("n", "160", MoeOptions { hidden: 160, ..fits }),
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
    let (up, down) = ((&codes[0], &scales[0]).into(), (&codes[1], &scales[1]).into());
    let inputs = MoeInputs { x: &x, choices: &choices, weights: &weights, up, down };
    let mut layer = Moe::<f32>::new(&cpu, &fits).unwrap();
    layer.forward(&inputs, &mut out, &stream).unwrap();
    let swapped = MoeInputs { up: (&codes[0], &scales[1]).into(), ..inputs };
    let error = layer.forward(&swapped, &mut out, &stream).unwrap_err();
    assert!(matches!(&error, Error::Shape { index, .. } if index == "scales of up"), "{error}");
    let plain = tensor(&[3, 32, 128]);
    let plain = MoeInputs { down: (&plain).into(), ..inputs };
    let error = layer.forward(&plain, &mut out, &stream).unwrap_err();
    assert_error!(error, Error::OperandKind { found, .. } if found == "a tensor without scales");
    let options = MoeOptions { scaled: false, ..fits };
    let mut layer = Moe::<f32>::new(&cpu, &options).unwrap();
    let error = layer.forward(&inputs, &mut out, &stream).unwrap_err();
    assert_error!(error, Error::OperandKind { found, .. } if found == "e4m3 with scales");
}
