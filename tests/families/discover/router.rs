//! Choices and weights of a router, and the gradient of its logits. The GPU is compared with the CPU, the CPU with
//! explicit sums and with finite differences.

use crate::support::assert_error;
use crate::support::bounds::assert_near;
use einsparse::formats::{Dense, bf16, f16};
use einsparse::nn::{Router, RouterOptions};
use einsparse::{Context, Error, Scalar};

use crate::support::dense::wide;
use crate::support::runs::finish;
use crate::support::{Rng, gpu};

const NORMALIZED: [bool; 2] = [false, true];

fn options([tokens, experts, top_k]: [usize; 3], normalized: bool) -> RouterOptions {
    RouterOptions { tokens, experts, top_k, normalized }
}

/// Logits: from few distinct values, so that some are equal, or any values.
fn logits<T: Scalar>(o: &RouterOptions, equal: bool) -> Dense<T> {
    let mut rng = Rng(41);
    let mut value = || match equal {
        true => rng.integer(),
        false => 4.0 * rng.unit(),
    };
    let values = (0..o.tokens * o.experts).map(|_| T::from_f64(value()));
    Dense::new(vec![o.tokens, o.experts], values.collect()).unwrap()
}

/// Returns choices, weights, and the gradient of the logits for a gradient of the weights.
fn run<T: Scalar>(
    context: &Context,
    o: &RouterOptions,
    logits: &Dense<T>,
    gradient: &Dense<f32>,
) -> (Vec<i32>, Vec<f64>, Vec<f64>) {
    let router = Router::<T>::new(context, o).unwrap();
    let nan = T::from_f64(f64::NAN);
    let there = context.upload_strided(logits, o.experts + 8, nan).unwrap();
    let mut choices = context.zeros::<i32>(&[o.tokens, o.top_k]).unwrap();
    let mut weights = context.zeros::<f32>(&[o.tokens, o.top_k]).unwrap();
    let of_weights = context.upload_dense(gradient).unwrap();
    let mut of_logits = context.upload_strided(logits, o.experts + 8, nan).unwrap();
    finish(context, |stream| {
        router.forward(&there, &mut choices, &mut weights, stream)?;
        router.backward(&there, &choices, &weights, &of_weights, &mut of_logits, stream)
    });
    let choices = choices.to_dense().unwrap().into_values();
    (choices, wide(&weights), wide(&of_logits))
}

fn gradient(o: &RouterOptions) -> Dense<f32> {
    let values = Rng(3).units::<f32>(o.tokens * o.top_k);
    Dense::new(vec![o.tokens, o.top_k], values).unwrap()
}

fn agrees<T: Scalar>(gpu: &Context, within: f64) {
    for extents in
        [[1, 1, 1], [5, 8, 2], [130, 128, 8], [33, 31, 31], [7, 1024, 32], [9, 300, 6], [0, 4, 1]]
    {
        for normalized in NORMALIZED {
            for equal in [false, true] {
                let o = options(extents, normalized);
                let (logits, gradient) = (logits::<T>(&o, equal), gradient(&o));
                let wanted = run(&Context::unchecked_cpu(), &o, &logits, &gradient);
                let found = run(gpu, &o, &logits, &gradient);
                assert_eq!(found.0, wanted.0, "{o:?}");
                assert_near(&format!("weights of {o:?}"), &found.1, &wanted.1, 1e-5);
                assert_near(&format!("gradient of {o:?}"), &found.2, &wanted.2, within);
                assert_eq!(run(gpu, &o, &logits, &gradient), found, "{o:?}");
            }
        }
    }
}

#[test]
fn routers_choose_as_the_cpu_does() {
    let Some(gpu) = gpu() else { return };
    agrees::<f32>(&gpu, 1e-5);
    agrees::<f16>(&gpu, 1e-3);
    agrees::<bf16>(&gpu, 1e-2);
}

/// Infinities, NaN and zeros of both signs: both sides choose the same experts, and a NaN reaches all weights of its
/// token.
#[test]
fn routers_of_infinities_and_nan() {
    let inf = f32::INFINITY;
    let rows = [
        [0.0, -inf, 1.0, -inf, 2.0],
        [f32::NAN, 3.0, 1.0, 0.0, 9.0],
        [-f32::NAN, 3.0, 1.0, 0.0, 9.0],
        [-0.0, 0.0, -0.0, 0.0, -1.0],
    ];
    let logits = Dense::new([4, 5], rows.concat()).unwrap();
    for normalized in NORMALIZED {
        let o = options([4, 5, 3], normalized);
        let gradient = gradient(&o);
        let (choices, weights, _) = run(&Context::unchecked_cpu(), &o, &logits, &gradient);
        assert_eq!(choices, [4, 2, 0, 0, 4, 1, 0, 4, 1, 0, 1, 2]);
        assert!(weights[3..9].iter().all(|w| w.is_nan()) && weights[..3].iter().all(|w| *w > 0.0));
        if let Some(gpu) = gpu() {
            let found = run(&gpu, &o, &logits, &gradient);
            assert_eq!(found.0, choices);
            assert_near(&"weights", &found.1, &weights, 1e-5);
        }
    }
}

/// The largest logits are chosen, and the first among equals. Weights are a softmax over all experts or over the
/// chosen.
#[test]
fn routers_on_the_cpu() {
    let logits = Dense::new([1, 4], [6.0f64, 2.0, 6.0, 2.0].map(f64::ln).to_vec()).unwrap();
    for (normalized, sum) in NORMALIZED.into_iter().zip([16.0, 14.0]) {
        let o = options([1, 4, 3], normalized);
        let (choices, weights, _) = run(&Context::unchecked_cpu(), &o, &logits, &gradient(&o));
        assert_eq!(choices, [0, 2, 1]);
        assert_near(&"weights", &weights, &[6.0, 6.0, 2.0].map(|w| w / sum), 1e-6);
    }
}

#[test]
fn gradients_of_routers_are_slopes() {
    let cpu = Context::unchecked_cpu();
    for normalized in NORMALIZED {
        let o = options([4, 7, 3], normalized);
        let (logits, gradient) = (logits::<f64>(&o, false), gradient(&o));
        let loss = |logits: &Dense<f64>| -> f64 {
            let (_, weights, _) = run(&cpu, &o, logits, &gradient);
            let terms = weights.iter().zip(gradient.values());
            terms.map(|(w, &g)| w * f64::from(g)).sum()
        };
        let (_, _, found) = run(&cpu, &o, &logits, &gradient);
        for (i, found) in found.iter().enumerate() {
            let moved = |by: f64| {
                let mut there = logits.clone();
                there.values_mut()[i] += by;
                loss(&there)
            };
            // Weights are f32.
            let slope = (moved(1e-2) - moved(-1e-2)) / 2e-2;
            assert!((found - slope).abs() < 1e-4, "{i}: {found}, not {slope}");
        }
    }
}

#[test]
fn routers_refuse_what_they_cannot() {
    let cpu = Context::unchecked_cpu();
    for extents in [[3, 4, 0], [3, 4, 5], [3, 0, 0]] {
        let error = Router::<f32>::new(&cpu, &options(extents, true)).unwrap_err();
        assert_error!(error, Error::OutOfRange { name, .. } if name == "top_k");
    }
    let Some(gpu) = gpu() else { return };
    for extents in [[3, 1025, 2], [3, 64, 33]] {
        let error = Router::<f32>::new(&gpu, &options(extents, true)).unwrap_err();
        assert_error!(error, Error::Overflow { .. });
    }
}
