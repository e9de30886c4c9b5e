//! Backward pass of a layer of experts: against differences of its output, and exact on integers against explicit sums.

use einsparse::dynamic::Gate;
use einsparse::formats::{Dense, bf16, f16};
use einsparse::nn::{Moe, MoeGradients, MoeInputs, MoeOptions};
use einsparse::{Context, Error, Scalar, Tensor};

use super::{Operands, gate_of, gated, operands, options, places};
use crate::families::discover::routing::{ROUTERS, Router, choices};
use crate::support::bounds::relative_error;
use crate::support::dense::{assert_equal, poisoned, wide};
use crate::support::replay::Replay;
use crate::support::runs::finish;
use crate::support::{Rng, assert_error, gpu, gpu_alone, on_both};

/// Gradients of x, weights, up and down.
pub type Four = [Vec<f64>; 4];

/// Operands and gradients in a context.
struct There<T> {
    x: Tensor<T>,
    weights: Tensor<f32>,
    up: Tensor<T>,
    down: Tensor<T>,
    out: Tensor<T>,
    dx: Tensor<T>,
    dweights: Tensor<f32>,
    dup: Tensor<T>,
    ddown: Tensor<T>,
    dout: Tensor<T>,
}

impl<T: Scalar> There<T> {
    /// Uploads the operands. Outputs start as NaN.
    fn new(context: &Context, operands: &Operands<T>, dout: &Dense<T>) -> Self {
        let upload = |dense: &Dense<T>| context.upload_dense(dense).unwrap();
        let poison = |like: &Dense<T>| poisoned::<T>(context, like.shape());
        There {
            x: upload(&operands.x),
            weights: context.upload_dense(&operands.weights).unwrap(),
            up: upload(&operands.up),
            down: upload(&operands.down),
            out: poison(&operands.x),
            dx: poison(&operands.x),
            dweights: poisoned(context, operands.weights.shape()),
            dup: poison(&operands.up),
            ddown: poison(&operands.down),
            dout: upload(dout),
        }
    }

    fn run(
        &mut self,
        layer: &mut Moe<T>,
        choices: &Tensor<i32>,
        stream: &einsparse::Stream,
    ) -> einsparse::Result<()> {
        let (up, down) = ((&self.up).into(), (&self.down).into());
        let inputs = MoeInputs { x: &self.x, choices, weights: &self.weights, up, down };
        layer.forward(&inputs, &mut self.out, stream)?;
        let gradients = MoeGradients {
            x: &mut self.dx,
            weights: &mut self.dweights,
            up: &mut self.dup,
            down: &mut self.ddown,
        };
        layer.backward(&inputs, &self.dout, gradients, stream)
    }

    fn gradients(&self) -> Four {
        let all = [&self.dx, &self.dup, &self.ddown].map(wide);
        let [dx, dup, ddown] = all;
        [dx, wide(&self.dweights), dup, ddown]
    }
}

fn run<T: Scalar>(
    context: &Context,
    o: &MoeOptions,
    operands: &Operands<T>,
    choices: &Dense<i32>,
    dout: &Dense<T>,
) -> (Vec<f64>, Four) {
    let mut layer = Moe::<T>::for_training(context, o).unwrap();
    let mut there = There::new(context, operands, dout);
    let choices = context.upload_dense(choices).unwrap();
    finish(context, |stream| there.run(&mut layer, &choices, stream));
    (wide(&there.out), there.gradients())
}

/// Returns small integers, one in `every` of them nonzero.
fn gradient_of_out<T: Scalar>(o: &MoeOptions, every: u64) -> Dense<T> {
    let mut rng = Rng(23);
    let mut value = || match rng.word() % every {
        0 => T::from_f64(rng.integer()),
        _ => T::ZERO,
    };
    let values = (0..o.tokens * o.model).map(|_| value()).collect();
    Dense::new(vec![o.tokens, o.model], values).unwrap()
}

/// Reference: sums in f64, rounded where the layer rounds.
pub fn reference<T: Scalar>(
    o: &MoeOptions,
    operands: &Operands<T>,
    choices: &Dense<i32>,
    dout: &Dense<T>,
) -> Four {
    let (d, h, e) = (o.model, o.hidden, o.experts);
    let wide = o.shapes()[0].iter().product::<usize>() / (e * d).max(1);
    let [up_at, down_at] = places(o);
    let round = |x: f64| T::from_f64(x).to_f64();
    let at = |dense: &Dense<T>, i: usize| dense.values()[i].to_f64();
    let [mut dx, mut dweights] = [o.tokens * d, o.tokens * o.top_k].map(|n| vec![0.0; n]);
    let [mut dup, mut ddown] = [e * d * wide, e * d * h].map(|n| vec![0.0; n]);
    for (number, &expert) in choices.values().iter().enumerate() {
        let Some(expert) = usize::try_from(expert).ok().filter(|&x| x < e) else {
            continue;
        };
        let token = number / o.top_k;
        let weight = f64::from(operands.weights.values()[number]);
        let (mut row, mut grad) = (vec![0.0; h], vec![0.0; wide]);
        let x = |i: usize| at(&operands.x, token * d + i);
        let hidden = |j: usize| -> f64 {
            let products = (0..d).map(|i| x(i) * at(&operands.up, up_at(expert, i, j)));
            products.sum()
        };
        for j in 0..h {
            let down = |i: usize| at(&operands.down, down_at(expert, j, i));
            let sum: f64 = (0..d).map(|i| at(dout, token * d + i) * down(i)).sum();
            let sum = round(sum);
            match o.gate {
                None => {
                    row[j] = round(hidden(j).max(0.0));
                    grad[j] = if row[j] > 0.0 { sum } else { 0.0 };
                    dweights[number] += row[j] * grad[j];
                    grad[j] = round(weight * grad[j]);
                }
                Some(gate) => {
                    let [a, b] = [round(hidden(j)), round(hidden(h + j))];
                    let [value, slope] = gate_of(gate, a);
                    row[j] = round(value * b);
                    dweights[number] += row[j] * sum;
                    grad[j] = round(weight * sum * slope * b);
                    grad[h + j] = round(weight * sum * value);
                }
            }
            row[j] = round(weight * row[j]);
            for i in 0..d {
                ddown[down_at(expert, j, i)] += row[j] * at(dout, token * d + i);
            }
        }
        for i in 0..d {
            for (j, grad) in grad.iter().enumerate() {
                dup[up_at(expert, i, j)] += x(i) * grad;
            }
            let up = |j: usize| at(&operands.up, up_at(expert, i, j));
            let sum: f64 = (0..wide).map(|j| grad[j] * up(j)).sum();
            dx[token * d + i] += round(sum);
        }
    }
    let rounded = |all: Vec<f64>| all.into_iter().map(round).collect();
    [rounded(dx), dweights, rounded(dup), rounded(ddown)]
}

fn exact<T: Scalar>(context: &Context, o: &MoeOptions) {
    let operands = operands::<T>(o, true);
    let dout = gradient_of_out::<T>(o, 4);
    for router in ROUTERS {
        let choices = choices([o.tokens, o.top_k], o.experts, router, 2);
        let (_, found) = run(context, o, &operands, &choices, &dout);
        let wanted = reference(o, &operands, &choices, &dout);
        for (which, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            let name = ["x", "weights", "up", "down"][which];
            let what = format!("{} {o:?} {router:?}: gradient of {name}", T::NAME);
            assert_equal(&what, found, wanted);
        }
    }
}

on_both! {
    gradients: cpu [|cpu| {
        exact::<f32>(cpu, &options([20, 1], 3, [6, 10]));
        exact::<f16>(cpu, &options([20, 3], 5, [6, 10]));
        for o in gated(options([20, 3], 5, [6, 10]), Gate::Relu) {
            exact::<f16>(cpu, &o);
        }
    }], gpu [|gpu| {
        for o in [
            options([100, 1], 3, [64, 256]),
            options([90, 2], 5, [72, 200]),
            options([60, 4], 16, [136, 296]),
            options([1, 1], 1, [8, 8]),
            options([300, 3], 4, [128, 64]),
            options([0, 1], 2, [64, 64]),
        ] {
            exact::<f16>(gpu, &o);
            exact::<bf16>(gpu, &o);
            for o in gated(o, Gate::Relu) {
                exact::<f16>(gpu, &o);
                exact::<bf16>(gpu, &o);
            }
        }
    }];
}

/// Gates whose values are not integers, within the error of rounding to bf16.
#[test]
fn gradients_of_any_values() {
    let Some(gpu) = gpu() else { return };
    let gates = [Gate::Silu, Gate::Gelu].map(|gate| gated(options([300, 2], 5, [128, 256]), gate));
    for o in gates.into_iter().flatten() {
        let operands = operands::<bf16>(&o, false);
        let dout = Dense::new(vec![300, 128], Rng(5).units::<bf16>(300 * 128)).unwrap();
        let choices = choices([300, 2], 5, Router::Uneven, 8);
        let (_, found) = run(&gpu, &o, &operands, &choices, &dout);
        let wanted = reference(&o, &operands, &choices, &dout);
        for (which, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            let off = relative_error(found, wanted);
            assert!(off < 0.01, "{o:?} {which}: {off}");
        }
    }
}

/// Every gradient is the slope of `out . dout` along its operand.
#[test]
fn gradients_are_slopes() {
    let plain = options([7, 2], 3, [4, 5]);
    let gates = [Gate::Silu, Gate::Gelu].map(|gate| gated(plain, gate));
    for o in gates.into_iter().flatten().chain([plain]) {
        slopes(&o);
    }
}

fn slopes(o: &MoeOptions) {
    let cpu = Context::unchecked_cpu();
    let operands = operands::<f64>(o, false);
    let choices = choices([7, 2], 3, Router::Holes, 9);
    let dout = Dense::new(vec![7, 4], Rng(3).units::<f64>(28)).unwrap();
    let loss = |operands: &Operands<f64>| -> f64 {
        let (out, _) = run(&cpu, o, operands, &choices, &dout);
        out.iter().zip(dout.values()).map(|(x, y)| x * y).sum()
    };
    let (_, gradients) = run(&cpu, o, &operands, &choices, &dout);
    let step = f64::powi(2.0, -16);
    for (which, gradient) in gradients.iter().enumerate() {
        for (i, found) in gradient.iter().enumerate() {
            let moved = |by: f64| {
                let mut there = Operands {
                    x: operands.x.clone(),
                    weights: operands.weights.clone(),
                    up: operands.up.clone(),
                    down: operands.down.clone(),
                };
                match which {
                    0 => there.x.values_mut()[i] += by,
                    1 => there.weights.values_mut()[i] += by as f32,
                    2 => there.up.values_mut()[i] += by,
                    _ => there.down.values_mut()[i] += by,
                }
                loss(&there)
            };
            // Steps of f32 weights are not exact.
            let (step, close) = if which == 1 { (0.25, 1e-5) } else { (step, 1e-7) };
            let slope = (moved(step) - moved(-step)) / (2.0 * step);
            assert!((found - slope).abs() < close, "{which} {i}: {found}, not {slope}");
        }
    }
}

/// A captured step of forward and backward reads other choices at every replay. Equal choices give equal bits.
#[test]
fn gradients_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let o = options([130, 2], 5, [64, 128]);
    let operands = operands::<bf16>(&o, false);
    let dout = Dense::new(vec![130, 64], Rng(5).units::<bf16>(130 * 64)).unwrap();
    let mut layer = Moe::<bf16>::for_training(&gpu, &o).unwrap();
    let mut there = There::new(&gpu, &operands, &dout);
    let mut chosen: Tensor<i32> = gpu.zeros(&[130, 2]).unwrap();
    let stream = gpu.stream().unwrap();
    let mut graph = Replay::of(&stream, || there.run(&mut layer, &chosen, &stream));
    for router in ROUTERS {
        let choices = choices([130, 2], 5, router, 31);
        chosen.write(&choices).unwrap();
        let mut replay = || {
            // SAFETY: all memory that the captured run uses is alive until the end of this test.
            unsafe { graph.run() };
            there.gradients()
        };
        let found = replay();
        let plain = found == run(&gpu, &o, &operands, &choices, &dout).1;
        assert!(plain && found == replay(), "{router:?}");
    }
}

#[test]
fn refusals() {
    let cpu = Context::unchecked_cpu();
    let o = options([4, 1], 3, [8, 16]);
    let operands = operands::<f32>(&o, true);
    let dout = gradient_of_out::<f32>(&o, 1);
    let mut layer = Moe::<f32>::new(&cpu, &o).unwrap();
    let mut there = There::new(&cpu, &operands, &dout);
    let choices = cpu.zeros::<i32>(&[4, 1]).unwrap();
    let stream = cpu.stream().unwrap();
    let error = there.run(&mut layer, &choices, &stream).unwrap_err();
    assert_error!(error, Error::NotPlanned { name, .. } if name == "layer");
}
