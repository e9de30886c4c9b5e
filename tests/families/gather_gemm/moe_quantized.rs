//! Experts that multiply e4m3 with e4m3: rows as they are rounded, layers against the CPU, and hidden rows that never are
//! anything else. Products of integers, which lose nothing: `moe_scaled`.

use einsparse::dynamic::{Gate, GroupedGemm, GroupedOptions, Routing};
use einsparse::formats::{Dense, E4m3, Element, bf16, f16};
use einsparse::nn::{Moe, MoeOptions};
use einsparse::{Context, Scalar};

use super::moe_scaled::{Case, scaled};
use crate::families::discover::routing::{ROUTERS, Router, choices};
use crate::support::dense::{poisoned, upload};
use crate::support::replay::Replay;
use crate::support::runs::finish;
use crate::support::{Rng, gpu, gpu_alone};

/// Rows through matrices that change nothing: what they are rounded to.
fn rounded<T: Scalar>(context: &Context, a: &Dense<T>) -> Vec<f64> {
    let &[rows, k] = a.shape() else {
        unreachable!("two axes");
    };
    let mut routing = Routing::new(context, [rows, 1], 1).unwrap();
    let options = GroupedOptions {
        k,
        n: k,
        gather: true,
        transposed: true,
        scaled: true,
        quantize: true,
        ..GroupedOptions::default()
    };
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

/// Numbers of all sizes, blocks of zeros, rows that end within a block; rows with NaN and infinity.
fn rows_are_rounded_as_on_the_cpu<T: Scalar>() {
    let Some(gpu) = gpu() else { return };
    for [rows, k] in [
        [1, 16],
        [3, 64],
        [70, 80],
        [200, 272],
        [5, 1040],
        [130, 128],
    ] {
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
            // Rounded to what f16 does not have.
            a.values_mut()[19 * k] = T::from_f64(65504.0);
        }
        let (found, wanted) = (rounded(&gpu, &a), rounded(&Context::cpu(), &a));
        let fault = (found.iter().zip(&wanted))
            .position(|(x, y)| x.to_bits() != y.to_bits() && x != y && !(x.is_nan() && y.is_nan()));
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
    MoeOptions {
        quantize: true,
        ..scaled(shape, experts, extents, gated)
    }
}

/// A layer's output.
fn output<T: Scalar>(context: &Context, case: &Case<T>, options: MoeOptions) -> Vec<f64> {
    let o = options;
    let choices = choices([o.tokens, o.top_k], o.experts, Router::Uneven, 2);
    let [x] = upload(context, [&case.x]);
    let [weights] = upload(context, [&case.weights]);
    let [choices] = upload(context, [&choices]);
    let [up, down] = [0, 1].map(|i| case.matrices[i].upload(context));
    let mut out = poisoned::<T>(context, &[o.tokens, o.model]);
    let mut layer = Moe::<T>::new(context, &options).unwrap();
    let matrices = ((&up.0, &up.1), (&down.0, &down.1));
    finish(context, |stream| {
        layer.forward(&x, (&choices, &weights), matrices, &mut out, stream)
    });
    let found = out.to_dense().unwrap();
    found.values().iter().map(|x| x.to_f64()).collect()
}

/// How far `found` is from `wanted`, in norm.
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
            let wanted = output(&Context::cpu(), &case, options);
            let exact = MoeOptions {
                quantize: false,
                ..options
            };
            let exact = output(&gpu, &case, exact);
            let [near, far] = [&wanted, &exact].map(|other| off(&found, other));
            // Of sums that differ in their last bits some hidden numbers are rounded the other way.
            assert!(near < 0.02, "{} {options:?}: {near}", T::NAME);
            assert!(
                (0.01..0.08).contains(&far),
                "{} {options:?}: {far}",
                T::NAME
            );
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

/// What the first product stores as e4m3 is what would be quantized of its rows.
#[test]
fn hidden_rows_of_quantized_experts_have_the_bits_of_two_products() {
    let Some(gpu) = gpu() else { return };
    for (gated, extents) in [(true, [144, 384]), (false, [144, 208]), (false, [64, 16])] {
        let o = quantized([150, 1], 5, extents, gated);
        let case = Case::<bf16>::new(o);
        let wanted = output(&gpu, &case, o);

        let choices = choices([o.tokens, 1], o.experts, Router::Uneven, 2);
        let mut routing = Routing::new(&gpu, [o.tokens, 1], o.experts).unwrap();
        let up = GroupedOptions {
            k: o.model,
            n: o.hidden,
            gather: true,
            activation: o.activation,
            gate: o.gate,
            transposed: true,
            scaled: true,
            quantize: true,
            ..GroupedOptions::default()
        };
        let down = GroupedOptions {
            k: o.hidden,
            n: o.model,
            scatter: true,
            transposed: true,
            scaled: true,
            quantize: true,
            ..GroupedOptions::default()
        };
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
}

/// A captured graph quantizes anew at every replay, and sees other choices.
#[test]
fn a_layer_of_quantized_experts_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let options = quantized([60, 2], 6, [64, 128], true);
    let mut case = Case::<bf16>::new(options);
    let [mut x] = upload(&gpu, [&case.x]);
    let [weights] = upload(&gpu, [&case.weights]);
    let [up, down] = [0, 1].map(|i| case.matrices[i].upload(&gpu));
    let uneven = choices([60, 2], 6, Router::Uneven, 2);
    let mut there = gpu.zeros::<i32>(&[60, 2]).unwrap();
    let mut out = gpu.zeros::<bf16>(&[60, 64]).unwrap();
    let mut layer = Moe::<bf16>::new(&gpu, &options).unwrap();
    let stream = gpu.stream().unwrap();
    let matrices = ((&up.0, &up.1), (&down.0, &down.1));
    let run = || layer.forward(&x, (&there, &weights), matrices, &mut out, &stream);
    let mut graph = Replay::of(&stream, run);
    for (seed, router) in ROUTERS.into_iter().enumerate() {
        // Other choices first, so that the last ones are not what is there.
        there.write(&choices([60, 2], 6, router, 7)).unwrap();
        // SAFETY: everything that the captured run names is alive until the end of this test.
        unsafe { graph.run() };
        let rows = Rng(300 + seed as u64).units(60 * 64);
        case.x = Dense::new([60, 64], rows).unwrap();
        x.write(&case.x).unwrap();
        there.write(&uneven).unwrap();
        // SAFETY: as above.
        unsafe { graph.run() };
        let found = out.to_dense().unwrap();
        let found: Vec<f64> = found.values().iter().map(|x| x.to_f64()).collect();
        assert!(found == output(&gpu, &case, options), "{router:?}");
    }
}

#[test]
fn quantized_experts_on_the_cpu_are_rounded() {
    let cpu = Context::cpu();
    for gated in [false, true] {
        let options = quantized([40, 2], 3, [144, 128], gated);
        let case = Case::<f32>::new(options);
        let exact = MoeOptions {
            quantize: false,
            ..options
        };
        let far = off(&output(&cpu, &case, options), &output(&cpu, &case, exact));
        assert!((0.01..0.08).contains(&far), "{far}");
    }
}

#[test]
fn rows_are_quantized_for_scaled_matrices_only() {
    let cpu = Context::cpu();
    let options = MoeOptions {
        scaled: false,
        ..quantized([4, 2], 3, [32, 128], true)
    };
    let said = Moe::<f32>::new(&cpu, &options).unwrap_err().to_string();
    assert!(said.contains("`scaled`"), "{said}");
    let gate = Some(Gate::Silu);
    let options = MoeOptions {
        quantize: true,
        gate,
        ..MoeOptions::default()
    };
    assert!(Moe::<f32>::new(&cpu, &options).is_err());
}
