//! Operators that keep device memory between runs, on two streams and from eight threads. Each run must return what it
//! returns alone.

use std::sync::{Mutex, PoisonError};

use einsparse::dynamic::{DetectOptions, Detector, GroupedGemm, GroupedOptions, Routing};
use einsparse::formats::{Dense, f16};
use einsparse::nn::{FeedForward, Moe, MoeInputs};
use einsparse::{Context, Stream, Tensor};

use crate::families::discover::routing::{Router, choices};
use crate::support::dense::integers;
use crate::support::skipping::{LEFT, RIGHT, Skipping, TRANSPOSED, dynamic};
use crate::support::{gpu, small};

/// Number of operand sets of an operator, each with its own result.
const SETS: usize = 3;
const THREADS: usize = 8;
/// Number of runs that are queued before results are compared.
const AHEAD: usize = 8;

/// Number of runs. Under a tool it just covers all operand sets and streams.
fn runs() -> usize {
    if small() { 8 } else { 1000 }
}

type Run<'o> = dyn FnMut(usize, &mut Tensor<f16>, &Stream) -> einsparse::Result<()> + Send + 'o;

/// Checks an operator; `run` runs it with the n-th operand set into an output of this shape.
fn keeps_apart(context: &Context, name: &str, shape: &[usize], run: &mut Run<'_>) {
    let stream = context.stream().unwrap();
    let mut out = context.zeros::<f16>(shape).unwrap();
    let mut alone = Vec::new();
    for set in 0..SETS {
        run(set, &mut out, &stream).unwrap();
        stream.synchronize().unwrap();
        alone.push(out.to_dense().unwrap().into_values());
    }
    assert!(alone[0] != alone[1], "{name}: operands tell nothing");
    let streams = [context.stream().unwrap(), context.stream().unwrap()];
    let outs = || context.zeros::<f16>(shape).unwrap();
    let mut outs: Vec<_> = (0..AHEAD).map(|_| outs()).collect();
    for first in (0..runs()).step_by(AHEAD) {
        for (ahead, out) in outs.iter_mut().enumerate() {
            let number = first + ahead;
            run(number % SETS, out, &streams[number % 2]).unwrap();
        }
        streams.iter().for_each(|s| s.synchronize().unwrap());
        for (ahead, out) in outs.iter().enumerate() {
            let found = out.to_dense().unwrap().into_values();
            assert!(found == alone[(first + ahead) % SETS], "{name}, run {first} + {ahead}");
        }
    }
    let shared = Mutex::new(run);
    std::thread::scope(|threads| {
        for thread in 0..THREADS {
            let (shared, alone) = (&shared, &alone);
            threads.spawn(move || {
                let stream = context.stream().unwrap();
                let mut out = context.zeros::<f16>(shape).unwrap();
                for number in 0..runs() / THREADS {
                    let set = (thread + number) % SETS;
                    let mut run = shared.lock().unwrap_or_else(PoisonError::into_inner);
                    run(set, &mut out, &stream).unwrap();
                    drop(run);
                    stream.synchronize().unwrap();
                    let found = out.to_dense().unwrap().into_values();
                    assert!(found == alone[set], "{name}, thread {thread}, run {number}");
                }
            });
        }
    });
}

fn uploaded(context: &Context, all: impl Iterator<Item = Dense<f16>>) -> Vec<Tensor<f16>> {
    all.map(|d| context.upload_dense(&d).unwrap()).collect()
}

#[test]
fn micro_tiles_on_two_streams() {
    let Some(gpu) = gpu() else { return };
    let [m, k, n] = [256, 512, 256];
    let shares = |seed: u64| [700, 20, 300][seed as usize % SETS];
    let bs = uploaded(&gpu, (0..SETS as u64).map(|s| integers(&[k, n], s + 1)));
    for height in [32, 128] {
        let draw = |s: u64| dynamic([m, k], height, shares(s), s + 5);
        let of = uploaded(&gpu, (0..SETS as u64).map(draw));
        let product = Skipping { height, ..LEFT }.plan(&gpu, [m, k, n]);
        keeps_apart(&gpu, "matmul", &[m, n], &mut |set, c, stream| {
            product.run([&of[set], &bs[set]], c, stream)
        });
    }
    let draw = |s: u64| dynamic([k, m], 1, shares(s), s + 7);
    let turned = uploaded(&gpu, (0..SETS as u64).map(draw));
    let product = TRANSPOSED.plan(&gpu, [m, k, n]);
    keeps_apart(&gpu, "turned", &[m, n], &mut |set, c, stream| {
        product.run([&turned[set], &bs[set]], c, stream)
    });
    let a = uploaded(&gpu, (0..SETS as u64).map(|s| integers(&[m, k], s + 11)));
    let draw = |s: u64| dynamic([k, n], 1, shares(s), s + 13);
    let right = uploaded(&gpu, (0..SETS as u64).map(draw));
    let product = RIGHT.plan(&gpu, [m, k, n]);
    keeps_apart(&gpu, "right", &[m, n], &mut |set, c, stream| {
        product.run([&a[set], &right[set]], c, stream)
    });
}

#[test]
fn feed_forward_on_two_streams() {
    let Some(gpu) = gpu() else { return };
    let extents = [128, 256, 512, 256];
    let [tokens, inputs, hidden, outputs] = extents;
    let of = |shape: [usize; 2], from: u64| {
        uploaded(&gpu, (0..SETS as u64).map(|s| integers(&shape, s + from)))
    };
    let x = of([tokens, inputs], 1);
    let u = of([inputs, hidden], 21);
    let w = of([hidden, outputs], 41);
    let mut layer = FeedForward::<f16>::new(&gpu, extents, &Default::default()).unwrap();
    keeps_apart(&gpu, "feed forward", &[tokens, outputs], &mut |set, y, stream| {
        layer.forward([&x[set], &u[set], &w[set]], y, stream)
    });
}

#[test]
fn experts_on_two_streams() {
    let Some(gpu) = gpu() else { return };
    let o = super::moe::options([192, 2], 8, [128, 256]);
    let operands = super::moe::operands::<f16>(&o, true);
    let routers = [Router::Even, Router::Uneven, Router::Holes];
    let routed: Vec<_> = routers
        .iter()
        .map(|router| choices([o.tokens, o.top_k], o.experts, *router, 3))
        .map(|choices| gpu.upload_dense(&choices).unwrap())
        .collect();
    let upload = |dense: &Dense<f16>| gpu.upload_dense(dense).unwrap();
    let (x, up) = (upload(&operands.x), upload(&operands.up));
    let down = upload(&operands.down);
    let weights = gpu.upload_dense(&operands.weights).unwrap();
    let mut layer = Moe::<f16>::new(&gpu, &o).unwrap();
    let shape = [o.tokens, o.model];
    keeps_apart(&gpu, "experts", &shape, &mut |set, out, stream| {
        layer.forward(
            &MoeInputs {
                x: &x,
                choices: &routed[set],
                weights: &weights,
                up: (&up).into(),
                down: (&down).into(),
            },
            out,
            stream,
        )
    });
    let mut routing = Routing::new(&gpu, [o.tokens, o.top_k], o.experts).unwrap();
    let options = GroupedOptions {
        k: o.model,
        n: o.hidden,
        gather: true,
        scatter: true,
        ..GroupedOptions::default()
    };
    let product = GroupedGemm::<f16>::new(&routing, &options).unwrap();
    let sort = [gpu.stream().unwrap(), gpu.stream().unwrap()];
    let shape = [o.tokens * o.top_k, o.hidden];
    keeps_apart(&gpu, "grouped", &shape, &mut |set, out, stream| {
        // Rows of choices that name no expert are not stored.
        let clear = Dense::new(shape, vec![f16::ZERO; shape[0] * shape[1]])?;
        out.write(&clear)?;
        routing.run(&routed[set], &sort[set % 2])?;
        product.forward(&routing, &x, &up, None, out, stream)
    });
}

/// An index has the capacity of the detector that created it.
#[test]
fn an_index_of_another_detector_is_refused() {
    let Some(gpu) = gpu() else { return };
    let options = DetectOptions::default();
    let wide = Detector::<f16>::new(&gpu, [32, 1 << 20], (32, 1), &options.clone()).unwrap();
    let a = gpu.zeros::<f16>(&[32, 1 << 20]).unwrap();
    let stream = gpu.stream().unwrap();
    let lengths = Detector::lengths(&gpu, 1 << 10, 1 << 10).unwrap();
    let mut index = lengths.index().unwrap();
    let error = wide.run(&a, &mut index, &stream).unwrap_err();
    assert_eq!(error.name(), Some("index"), "{error}");
    let mut own = wide.index().unwrap();
    wide.run(&a, &mut own, &stream).unwrap();
    stream.synchronize().unwrap();
}
