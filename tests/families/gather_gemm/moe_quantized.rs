//! Experts that multiply e4m3 with e4m3: rows after rounding, layers against the CPU, and hidden rows that exist only
//! in e4m3. `moe_scaled` tests products of integers, which are exact.

use crate::support::assert_error;
use einsparse::dynamic::{GroupedGemm, GroupedOptions, Routing};
use einsparse::formats::{Dense, E4m3, Element, bf16, f16};
use einsparse::nn::{Moe, MoeInputs, MoeOptions};
use einsparse::registry::{Dtype, Row};
use einsparse::{Context, Error, Scalar};
use einsparse_kernels::abi::FP8_MMA;

use super::moe_scaled::{Case, scaled};
use crate::families::discover::routing::{ROUTERS, Router, choices};
use crate::support::dense::{poisoned, upload};
use crate::support::replay::Replay;
use crate::support::rows::kernels_here;
use crate::support::runs::finish;
use crate::support::{Rng, gpu, gpu_alone};

/// Returns options of a product of e4m3 with e4m3.
fn both_sides(k: usize, n: usize) -> GroupedOptions {
    GroupedOptions {
        k,
        n,
        transposed: true,
        scaled: true,
        quantize: true,
        ..GroupedOptions::default()
    }
}

/// Multiplies rows by identity matrices, and so returns what the rows are rounded to.
fn rounded<T: Scalar>(context: &Context, a: &Dense<T>) -> Vec<f64> {
    let &[rows, k] = a.shape() else {
        unreachable!("two axes");
    };
    let mut routing = Routing::new(context, [rows, 1], 1).unwrap();
    let options = GroupedOptions { gather: true, ..both_sides(k, k) };
    let product = GroupedGemm::<T>::new(&routing, &options).unwrap();
    let one = |at: &[usize]| E4m3::from_f64(f64::from(u8::from(at[1] == at[2])));
    let codes = Dense::from_fn(vec![1, k, k], one).unwrap();
    let blocks = k.div_ceil(128);
    let scales = Dense::from_fn(vec![1, blocks, blocks], |_| 1.0f32).unwrap();
    let [a] = upload(context, [a]);
    let ([codes], [scales]) = (upload(context, [&codes]), upload(context, [&scales]));
    let choices = context.zeros::<i32>(&[rows, 1]).unwrap();
    let mut c = poisoned::<T>(context, &[rows, k]);
    finish(context, |stream| routing.run(&choices, stream));
    finish(context, |stream| {
        product.forward(&routing, &a, (&codes, &scales), None, &mut c, stream)
    });
    let found = c.to_dense().unwrap();
    found.values().iter().map(|x| x.to_f64()).collect()
}

/// Numbers of all magnitudes, blocks of zeros, rows that end within a block, rows with NaN and infinity.
fn rows_are_rounded_as_on_the_cpu<T: Scalar>() {
    let Some(gpu) = gpu() else { return };
    for [rows, k] in [[1, 16], [3, 64], [70, 80], [200, 272], [5, 1040], [130, 128]] {
        let mut rng = Rng(31);
        let mut value = |at: &[usize]| {
            let [row, column] = [at[0], at[1]];
            let size = 2f64.powi((row % 25) as i32 - 14);
            match (row % 7, column / 64 % 3) {
                (3, 1) => 0.0,
                (5, _) => size * 2f64.powi(-((column % 16) as i32)),
                _ => size * rng.unit(),
            }
        };
        let values = (0..rows * k).map(|i| T::from_f64(value(&[i / k, i % k])));
        let mut a = Dense::new([rows, k], values.collect()).unwrap();
        if rows > 100 {
            a.values_mut()[17 * k + 3] = T::from_f64(f64::NAN);
            a.values_mut()[18 * k + 9] = T::from_f64(f64::INFINITY);
            // This value is rounded to one that f16 cannot represent.
            a.values_mut()[19 * k] = T::from_f64(65504.0);
            // Scales have a maximum and a minimum.
            a.values_mut()[20 * k] = T::from_f64(2.9e38);
            let small = 21 * k..22 * k;
            a.values_mut()[small].fill(T::from_f64(1e-40));
        }
        let (found, wanted) = (rounded(&gpu, &a), rounded(&Context::unchecked_cpu(), &a));
        let fault =
            (found.iter().zip(&wanted)).position(|(x, y)| x != y && !(x.is_nan() && y.is_nan()));
        assert!(
            fault.is_none(),
            "{} {rows} rows of {k}: at {fault:?}, {:?} for {:?} of {}",
            T::NAME,
            fault.map(|at| found[at]),
            fault.map(|at| wanted[at]),
            fault.map_or(0.0, |at| a.values()[at].to_f64())
        );
    }
}

#[test]
fn rows_of_f16_are_quantized_as_on_the_cpu() {
    rows_are_rounded_as_on_the_cpu::<f16>();
}

#[test]
fn rows_of_bf16_are_quantized_as_on_the_cpu() {
    rows_are_rounded_as_on_the_cpu::<bf16>();
}

fn quantized(shape: [usize; 2], experts: usize, extents: [usize; 2], gated: bool) -> MoeOptions {
    MoeOptions { quantize: true, ..scaled(shape, experts, extents, gated) }
}

/// Returns a layer's output.
fn output<T: Scalar>(context: &Context, case: &Case<T>, options: MoeOptions) -> Vec<f64> {
    routed(context, case, options, Router::Uneven)
}

fn routed<T: Scalar>(
    context: &Context,
    case: &Case<T>,
    options: MoeOptions,
    router: Router,
) -> Vec<f64> {
    let o = options;
    let choices = choices([o.tokens, o.top_k], o.experts, router, 2);
    let [x] = upload(context, [&case.x]);
    let [weights] = upload(context, [&case.weights]);
    let [choices] = upload(context, [&choices]);
    let [up, down] = [0, 1].map(|i| case.matrices[i].upload(context));
    let mut out = poisoned::<T>(context, &[o.tokens, o.model]);
    let mut layer = Moe::<T>::new(context, &options).unwrap();
    let (up, down) = ((&up.0, &up.1).into(), (&down.0, &down.1).into());
    let inputs = MoeInputs { x: &x, choices: &choices, weights: &weights, up, down };
    finish(context, |stream| layer.forward(&inputs, &mut out, stream));
    let found = out.to_dense().unwrap();
    // The steps of the layer, called one by one, give the same result.
    let mut parts = poisoned::<T>(context, &[o.tokens, o.model]);
    finish(context, |stream| layer.route(&choices, stream));
    finish(context, |stream| layer.multiply_up(&x, up, stream));
    finish(context, |stream| layer.multiply_down(&weights, down, &mut parts, stream));
    assert!(parts.to_dense().unwrap().values() == found.values());
    found.values().iter().map(|x| x.to_f64()).collect()
}

/// Returns the relative distance of `found` from `wanted` in the 2-norm.
fn off(found: &[f64], wanted: &[f64]) -> f64 {
    let norm = |x: f64| x * x;
    let all: f64 = wanted.iter().map(|&x| norm(x)).sum();
    let apart: f64 = (found.iter().zip(wanted)).map(|(x, y)| norm(x - y)).sum();
    (apart / all).sqrt()
}

fn a_layer_agrees<T: Scalar>() {
    let Some(gpu) = gpu() else { return };
    for (shape, experts, extents) in [
        ([300, 1], 4, [64, 256]),
        ([200, 2], 7, [144, 384]),
        ([130, 8], 16, [272, 128]),
        ([1, 8], 12, [1024, 384]),
        ([700, 5], 64, [128, 128]),
    ] {
        for gated in [false, true] {
            let options = quantized(shape, experts, extents, gated);
            let case = Case::<T>::new(options);
            let found = output(&gpu, &case, options);
            let wanted = output(&Context::unchecked_cpu(), &case, options);
            let exact = MoeOptions { quantize: false, ..options };
            let exact = output(&gpu, &case, exact);
            let [near, far] = [&wanted, &exact].map(|other| off(&found, other));
            // If sums differ in their last bits, some hidden values are rounded the other way.
            assert!(near < 0.02, "{} {options:?}: {near}", T::NAME);
            assert!((0.01..0.08).contains(&far), "{} {options:?}: {far}", T::NAME);
            assert!(near < far / 2.0, "{} {options:?}: {near}, {far}", T::NAME);
        }
    }
}

#[test]
fn a_layer_of_quantized_experts_in_f16() {
    a_layer_agrees::<f16>();
}

#[test]
fn a_layer_of_quantized_experts_in_bf16() {
    a_layer_agrees::<bf16>();
}

/// The e4m3 rows that the first product stores equal the quantized rows of an unfused product.
#[test]
fn hidden_rows_of_quantized_experts_have_the_bits_of_two_products() {
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
        let case = Case::<bf16>::new(o);
        let wanted = output(&gpu, &case, o);
        first.push(Moe::<bf16>::new(&gpu, &o).unwrap().variants()[0]);

        let choices = choices([o.tokens, 1], o.experts, Router::Uneven, 2);
        let mut routing = Routing::new(&gpu, [o.tokens, 1], o.experts).unwrap();
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
        let [choices] = upload(&gpu, [&choices]);
        let [up, down] = [0, 1].map(|i| case.matrices[i].upload(&gpu));
        let mut hidden = gpu.zeros::<bf16>(&[o.tokens, o.hidden]).unwrap();
        let mut out = poisoned::<bf16>(&gpu, &[o.tokens, o.model]);
        finish(&gpu, |stream| routing.run(&choices, stream));
        finish(&gpu, |stream| {
            let w = (&up.0, &up.1);
            products[0].forward(&routing, &x, w, None, &mut hidden, stream)
        });
        finish(&gpu, |stream| {
            let w = (&down.0, &down.1);
            products[1].forward(&routing, &hidden, w, Some(&weights), &mut out, stream)
        });
        let found = out.to_dense().unwrap();
        let found: Vec<f64> = found.values().iter().map(|x| x.to_f64()).collect();
        let fault = found.iter().zip(&wanted).position(|(x, y)| x != y);
        assert!(fault.is_none(), "{o:?}: at {fault:?}");
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

/// One product with two routings, each on its own stream. The runs share the memory of quantized rows.
#[test]
fn a_quantized_product_in_two_streams() {
    let Some(gpu) = gpu() else { return };
    let [tokens, k, n, experts] = [4000, 1024, 256, 2];
    let options = GroupedOptions { gather: true, ..both_sides(k, n) };
    let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
    let mut routings = [0, 1].map(|_| Routing::new(&gpu, [tokens, 1], experts).unwrap());
    let chosen = choices([tokens, 1], experts, Router::Even, 3);
    let [chosen] = upload(&gpu, [&chosen]);
    for routing in &mut routings {
        finish(&gpu, |stream| routing.run(&chosen, stream));
    }
    let product = GroupedGemm::<bf16>::new(&routings[0], &options).unwrap();
    let codes = Dense::from_fn(vec![experts, n, k], |_| E4m3::from_f64(1.0)).unwrap();
    let scales = Dense::from_fn(vec![experts, n / 128, k / 128], |_| 1.0f32).unwrap();
    let ([codes], [scales]) = (upload(&gpu, [&codes]), upload(&gpu, [&scales]));
    let rows = [1.0, -2.0].map(|x| Dense::from_fn(vec![tokens, k], |_| bf16::from_f64(x)).unwrap());
    let rows = upload(&gpu, [&rows[0], &rows[1]]);
    let mut outs = [0, 1].map(|_| poisoned::<bf16>(&gpu, &[tokens, n]));
    for _ in 0..20 {
        for (i, out) in outs.iter_mut().enumerate() {
            let w = (&codes, &scales);
            product.forward(&routings[i], &rows[i], w, None, out, &streams[i]).unwrap();
        }
    }
    for (stream, (out, sum)) in streams.iter().zip(outs.iter().zip([1024.0, -2048.0])) {
        stream.synchronize().unwrap();
        let out = out.to_dense().unwrap();
        assert!(out.values().iter().all(|x| x.to_f64() == sum));
    }
}

/// A captured graph quantizes at every replay, and reads other choices.
#[test]
fn a_layer_of_quantized_experts_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let options = quantized([60, 2], 6, [64, 128], true);
    let mut case = Case::<bf16>::new(options);
    let [mut x] = upload(&gpu, [&case.x]);
    let [weights] = upload(&gpu, [&case.weights]);
    let [up, down] = [0, 1].map(|i| case.matrices[i].upload(&gpu));
    let mut there = gpu.zeros::<i32>(&[60, 2]).unwrap();
    let mut out = gpu.zeros::<bf16>(&[60, 64]).unwrap();
    let mut layer = Moe::<bf16>::new(&gpu, &options).unwrap();
    let stream = gpu.stream().unwrap();
    let (up, down) = ((&up.0, &up.1).into(), (&down.0, &down.1).into());
    let inputs = MoeInputs { x: &x, choices: &there, weights: &weights, up, down };
    let run = || layer.forward(&inputs, &mut out, &stream);
    let mut graph = Replay::of(&stream, run);
    for (seed, router) in ROUTERS.into_iter().enumerate() {
        let rows = Rng(300 + seed as u64).units(60 * 64);
        case.x = Dense::new([60, 64], rows).unwrap();
        x.write(&case.x).unwrap();
        there.write(&choices([60, 2], 6, router, 2)).unwrap();
        // SAFETY: all memory that the captured run uses is alive until the end of this test.
        unsafe { graph.run() };
        let found = out.to_dense().unwrap();
        let found: Vec<f64> = found.values().iter().map(|x| x.to_f64()).collect();
        assert!(found == routed(&gpu, &case, options, router), "{router:?}");
    }
}

#[test]
fn quantized_experts_on_the_cpu_are_rounded() {
    let cpu = Context::unchecked_cpu();
    for gated in [false, true] {
        let options = quantized([40, 2], 3, [144, 128], gated);
        let case = Case::<f32>::new(options);
        let exact = MoeOptions { quantize: false, ..options };
        let far = off(&output(&cpu, &case, options), &output(&cpu, &case, exact));
        assert!((0.01..0.08).contains(&far), "{far}");
    }
}

#[test]
fn rows_are_quantized_for_scaled_matrices_only() {
    let cpu = Context::unchecked_cpu();
    let options = MoeOptions { scaled: false, ..quantized([4, 2], 3, [32, 128], true) };
    let error = Moe::<f32>::new(&cpu, &options).unwrap_err();
    assert_error!(error, Error::OutOfRange { name, .. } if name == "quantize");
    let Some(gpu) = gpu() else { return };
    // Rows in another context are refused, not copied.
    let mut routing = Routing::new(&cpu, [2, 1], 1).unwrap();
    let stream = cpu.stream().unwrap();
    routing.run(&cpu.zeros::<i32>(&[2, 1]).unwrap(), &stream).unwrap();
    let options = GroupedOptions { gather: true, ..both_sides(16, 16) };
    let product = GroupedGemm::<bf16>::new(&routing, &options).unwrap();
    let a = gpu.zeros::<bf16>(&[2, 16]).unwrap();
    let codes = cpu.zeros::<E4m3>(&[1, 16, 16]).unwrap();
    let scales = cpu.zeros::<f32>(&[1, 1, 1]).unwrap();
    let mut c = cpu.zeros::<bf16>(&[2, 16]).unwrap();
    let said = product.forward(&routing, &a, (&codes, &scales), None, &mut c, &stream).unwrap_err();
    assert_error!(said, Error::OtherContext { name, .. } if name == "A");
}
