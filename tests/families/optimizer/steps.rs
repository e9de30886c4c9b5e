//! Steps of SGD and of Adam: the GPU against the CPU, the CPU against PyTorch's formulas in f64; copies, captured
//! steps, rates, refusals.

use crate::support::assert_error;
use crate::support::bounds::assert_near;
use einsparse::formats::{bf16, f16};
use einsparse::nn::{Adam, AdamOptions, Sgd, SgdOptions};
use einsparse::{Context, Error, Tensor};

use crate::support::dense::{poisoned, upload_values, wide};
use crate::support::replay::Replay;
use crate::support::runs::finish;
use crate::support::{Rng, gpu, gpu_alone};

const STEPS: usize = 5;

fn sgd_options() -> [SgdOptions; 4] {
    let plain = SgdOptions::default();
    let decaying = SgdOptions { weight_decay: 0.1, ..plain };
    let momentum = SgdOptions { momentum: 0.9, ..decaying };
    [plain, decaying, momentum, SgdOptions { nesterov: true, ..momentum }]
}

fn adam_options() -> [AdamOptions; 3] {
    let plain = AdamOptions { rate: 0.05, ..AdamOptions::default() };
    let decaying = AdamOptions { weight_decay: 0.1, ..plain };
    [plain, decaying, AdamOptions { decoupled: true, ..decaying }]
}

/// Returns the gradient of a step.
fn gradient(step: usize, len: usize) -> Vec<f32> {
    Rng(100 + step as u64).units(len)
}

/// Returns the parameters after all steps, and their copy.
macro_rules! trained {
    ($optimiser:ident, $copy:ty, $ctx:expr, $len:expr, $options:expr) => {{
        let (ctx, len): (&Context, usize) = ($ctx, $len);
        let mut x = upload_values(ctx, &[len], Rng(7).units::<f32>(len));
        let mut copy: Tensor<$copy> = poisoned(ctx, &[len]);
        let mut optimiser = $optimiser::new(ctx, &[len], $options).unwrap();
        for step in 0..STEPS {
            let g = upload_values(ctx, &[len], gradient(step, len));
            finish(ctx, |stream| match step % 2 {
                1 => optimiser.step(&mut x, &g, stream),
                _ => optimiser.step_with_copy(&mut x, &g, &mut copy, stream),
            });
        }
        assert_eq!(optimiser.steps().unwrap(), STEPS as u64);
        let x = wide(&x);
        // Rounding to nearest: half of the last place, and f16's smallest numbers.
        let half = f64::from(<$copy>::EPSILON.to_f32()) / 2.0;
        for (copied, x) in wide(&copy).iter().zip(&x) {
            let bound = x.abs() * half * 1.0001 + 2f64.powi(-25);
            assert!((copied - x).abs() <= bound, "a copy of {x}: {copied}");
        }
        x
    }};
}

#[test]
fn steps_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let cpu = Context::unchecked_cpu();
    for len in [0, 1, 3, 4, 1023, 4096, 700_001] {
        for o in &sgd_options() {
            let found = trained!(Sgd, f16, &gpu, len, o);
            assert_near(&(o, len), &found, &trained!(Sgd, f16, &cpu, len, o), 2e-6);
            assert!(trained!(Sgd, bf16, &gpu, len, o) == found, "by the copy's type");
        }
        for o in &adam_options() {
            let found = trained!(Adam, bf16, &gpu, len, o);
            assert_near(&(o, len), &found, &trained!(Adam, bf16, &cpu, len, o), 4e-6);
            assert!(trained!(Adam, f16, &gpu, len, o) == found, "by the copy's type");
        }
    }
}

#[test]
fn descent_is_that_of_pytorch() {
    for o in &sgd_options() {
        let found = trained!(Sgd, f16, &Context::unchecked_cpu(), 50, o);
        let start = Rng(7).units::<f32>(50);
        let one = |at: usize| {
            let (mut x, mut momentum) = (f64::from(start[at]), 0.0);
            for step in 0..STEPS {
                let g = f64::from(gradient(step, 50)[at]) + o.weight_decay * x;
                momentum = o.momentum * momentum + g;
                x -= o.rate * if o.nesterov { g + o.momentum * momentum } else { momentum };
            }
            x
        };
        assert_near(&o, &found, &(0..50).map(one).collect::<Vec<_>>(), 1e-6);
    }
}

#[test]
fn adam_is_that_of_pytorch() {
    for o in &adam_options() {
        let found = trained!(Adam, bf16, &Context::unchecked_cpu(), 50, o);
        let start = Rng(7).units::<f32>(50);
        let one = |at: usize| {
            let (mut x, mut m, mut v) = (f64::from(start[at]), 0.0, 0.0);
            for step in 0..STEPS {
                let mut g = f64::from(gradient(step, 50)[at]);
                if o.decoupled {
                    x -= o.rate * o.weight_decay * x;
                } else {
                    g += o.weight_decay * x;
                }
                m = o.betas[0] * m + (1.0 - o.betas[0]) * g;
                v = o.betas[1] * v + (1.0 - o.betas[1]) * g * g;
                let t = step as i32 + 1;
                let corrected = [m / (1.0 - o.betas[0].powi(t)), v / (1.0 - o.betas[1].powi(t))];
                x -= o.rate * corrected[0] / (corrected[1].sqrt() + o.epsilon);
            }
            x
        };
        assert_near(&o, &found, &(0..50).map(one).collect::<Vec<_>>(), 2e-6);
    }
}

/// Each replay of a captured step is the next step, also with another rate, bit for bit.
#[test]
fn captured_steps_go_on() {
    let Some(gpu) = gpu_alone() else { return };
    let (len, options) = (10_000, adam_options()[2]);
    let g = upload_values(&gpu, &[len], gradient(0, len));
    let run = |captured: bool| {
        let mut x = upload_values(&gpu, &[len], Rng(7).units::<f32>(len));
        let mut adam = Adam::new(&gpu, &[len], &options).unwrap();
        let stream = gpu.stream().unwrap();
        let mut graph = captured.then(|| Replay::of(&stream, || adam.step(&mut x, &g, &stream)));
        // The graph ran once before its capture.
        let first = usize::from(captured);
        for step in first..STEPS {
            match &mut graph {
                // SAFETY: parameters, gradient and optimizer are alive.
                Some(graph) => unsafe { graph.run() },
                None => adam.step(&mut x, &g, &stream).unwrap(),
            }
            stream.synchronize().unwrap();
            if step == 2 {
                adam.set_rate(0.5).unwrap();
            }
        }
        assert_eq!(adam.steps().unwrap(), STEPS as u64);
        let bits = wide(&x);
        bits.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    };
    assert!(run(true) == run(false), "replays are not steps");
}

/// A gradient in the copy's type gives the same bits as the gradient in f32.
#[test]
fn gradients_of_the_copys_type() {
    let train = |ctx: &Context, len: usize, narrow: bool| {
        let mut x = upload_values(ctx, &[len], Rng(7).units::<f32>(len));
        let mut copy: Tensor<f16> = poisoned(ctx, &[len]);
        let mut sgd = Sgd::new(ctx, &[len], &sgd_options()[3]).unwrap();
        let mut adam = Adam::new(ctx, &[len], &adam_options()[2]).unwrap();
        for step in 0..STEPS {
            let own: Vec<f16> = gradient(step, len).into_iter().map(f16::from_f32).collect();
            let wide = own.iter().map(|g| g.to_f32()).collect();
            let own = upload_values(ctx, &[len], own);
            let wide = upload_values(ctx, &[len], wide);
            finish(ctx, |stream| match (step % 2, narrow) {
                (0, true) => sgd.step_with_copy(&mut x, &own, &mut copy, stream),
                (0, false) => sgd.step_with_copy(&mut x, &wide, &mut copy, stream),
                (_, true) => adam.step_with_copy(&mut x, &own, &mut copy, stream),
                (_, false) => adam.step_with_copy(&mut x, &wide, &mut copy, stream),
            });
        }
        (x.to_dense().unwrap(), copy.to_dense().unwrap())
    };
    let (cpu, gpu) = (Context::unchecked_cpu(), gpu());
    for ctx in [Some(&cpu), gpu.as_deref()].into_iter().flatten() {
        for len in [0, 1, 3, 4, 1023, 70_001] {
            assert!(train(ctx, len, true) == train(ctx, len, false), "{len}");
        }
    }
}

#[test]
fn rates_and_moments_are_kept() {
    let cpu = Context::unchecked_cpu();
    let mut x = upload_values(&cpu, &[1], vec![1.0f32]);
    let g = upload_values(&cpu, &[1], vec![1.0f32]);
    let mut sgd = Sgd::new(&cpu, &[1], &SgdOptions::default()).unwrap();
    sgd.set_rate(0.5).unwrap();
    finish(&cpu, |stream| sgd.step(&mut x, &g, stream));
    assert_eq!(wide(&x), [0.5]);
}

#[test]
fn wrong_constants_and_operands_are_refused() {
    let cpu = Context::unchecked_cpu();
    let plain = AdamOptions::default();
    for (option, found, options) in [
        ("rate", "-0.5", AdamOptions { rate: -0.5, ..plain }),
        ("second beta", "1", AdamOptions { betas: [0.9, 1.0], ..plain }),
        ("epsilon", "NaN", AdamOptions { epsilon: f64::NAN, ..plain }),
    ] {
        let error = Adam::new(&cpu, &[2], &options).unwrap_err();
        assert_error!(
            error,
            Error::OutOfRange { name, value, .. } if name == option && value == found
        );
    }
    let mut adam = Adam::new(&cpu, &[2, 2], &plain).unwrap();
    let mut x = cpu.zeros::<f32>(&[2, 2]).unwrap();
    let stream = cpu.stream().unwrap();
    let other = cpu.zeros::<f32>(&[4]).unwrap();
    assert!(adam.step(&mut x, &other, &stream).is_err());
    let dense = einsparse::formats::Dense::zeros([2, 2]).unwrap();
    let gaps = cpu.upload_strided(&dense, 3, 0.0f32).unwrap();
    let error = adam.step(&mut x, &gaps, &stream).unwrap_err();
    assert_error!(error, Error::RowStride { name, found: 3, .. } if name == "gradient");
    let mut copy = cpu.zeros::<f32>(&[2, 2]).unwrap();
    let g = cpu.zeros::<f32>(&[2, 2]).unwrap();
    let error = adam.step_with_copy(&mut x, &g, &mut copy, &stream).unwrap_err();
    assert_error!(error, Error::ElementType { name, .. } if name == "copy");
    let mut copy = cpu.zeros::<f16>(&[2, 2]).unwrap();
    let g = cpu.zeros::<bf16>(&[2, 2]).unwrap();
    let error = adam.step_with_copy(&mut x, &g, &mut copy, &stream).unwrap_err();
    assert_error!(error, Error::ElementType { name, .. } if name == "gradient");
    assert_eq!(adam.steps().unwrap(), 0);
}
