//! The feed-forward layer with ReLU against plain loops, exact on integers.

use crate::support::assert_error;
use crate::support::rows::as_on_hopper;
use einsparse::dynamic::SparsityHint;
use einsparse::formats::{Dense, bf16, f16};
use einsparse::nn::{FeedForward, FeedForwardOptions};
use einsparse::{Context, Error, Scalar};

use crate::support::dense::{integers, poisoned, upload};
use crate::support::replay::Replay;
use crate::support::runs::finish;
use crate::support::skipping::dense_product;
use crate::support::{gpu, gpu_alone, on_both};

/// Returns weights of the first product. Most of their columns never give values above zero for nonnegative inputs.
fn first_weights<T: Scalar>([inputs, hidden]: [usize; 2], seed: u64) -> Dense<T> {
    let base = integers::<T>(&[inputs, hidden], seed);
    let used = |column: usize| (column as u64 * 7 + seed).is_multiple_of(13);
    let value = |i: usize, x: &T| match used(i % hidden) {
        true => *x,
        false => T::from_f64(-x.to_f64().abs()),
    };
    let values = base.values().iter().enumerate();
    let values = values.map(|(i, x)| value(i, x)).collect();
    Dense::new(vec![inputs, hidden], values).unwrap()
}

/// Returns inputs from 0 to 2.
fn inputs<T: Scalar>(shape: [usize; 2], seed: u64) -> Dense<T> {
    let base = integers::<T>(&shape, seed);
    let values = base.values().iter().map(|x| T::from_f64(x.to_f64().abs()));
    Dense::new(shape.to_vec(), values.collect()).unwrap()
}

/// Reference of the layer in f64 with rounded hidden activations: `[hidden, outputs]`.
fn reference<T: Scalar>(x: &Dense<T>, u: &Dense<T>, w: &Dense<T>) -> [Vec<T>; 2] {
    let hidden = dense_product(x, u).into_iter().map(|x| T::from_f64(x.max(0.0)));
    let hidden: Vec<T> = hidden.collect();
    let shape = vec![x.shape()[0], u.shape()[1]];
    let there = Dense::new(shape, hidden.clone()).unwrap();
    let out = dense_product(&there, w).into_iter().map(T::from_f64).collect();
    [hidden, out]
}

fn layers<T: Scalar>(context: &Context) {
    let [d, h, o] = [40, 1000, 272];
    let u = first_weights::<T>([d, h], 3);
    let w = integers::<T>(&[h, o], 4);
    let [u_there, w_there] = upload(context, [&u, &w]);
    for tokens in [0, 1, 5, 32, 64, 65, 300] {
        for share in [0.02, 0.1, 1.0] {
            let options = FeedForwardOptions {
                expected: SparsityHint::MicroTiles(share),
                ..FeedForwardOptions::default()
            };
            let mut layer = FeedForward::<T>::new(context, [tokens, d, h, o], &options).unwrap();
            for seed in [1, 2] {
                let x = inputs::<T>([tokens, d], seed);
                let [x_there] = upload(context, [&x]);
                let mut y = poisoned(context, &[tokens, o]);
                finish(context, |stream| {
                    layer.forward([&x_there, &u_there, &w_there], &mut y, stream)
                });
                let [hidden, out] = reference(&x, &u, &w);
                let what = (T::NAME, tokens, share, layer.variants());
                assert!(layer.hidden().to_dense().unwrap().values() == hidden, "{what:?}");
                assert!(y.to_dense().unwrap().values() == out, "{what:?}");
            }
        }
    }
}

on_both! {
    relu_layers: cpu [layers::<f32>, layers::<bf16>],
        gpu [layers::<f16>, layers::<bf16>, layers::<f32>];
}

/// A captured layer reads other activations at every replay.
#[test]
fn relu_layers_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    for tokens in [3, 128] {
        let [d, h, o] = [64, 512, 256];
        let (u, w) = (first_weights::<f16>([d, h], 5), integers::<f16>(&[h, o], 6));
        let [u_there, w_there] = upload(&gpu, [&u, &w]);
        let mut x_there = gpu.zeros::<f16>(&[tokens, d]).unwrap();
        let mut y = gpu.zeros::<f16>(&[tokens, o]).unwrap();
        let extents = [tokens, d, h, o];
        let mut layer = FeedForward::<f16>::new(&gpu, extents, &Default::default()).unwrap();
        let stream = gpu.stream().unwrap();
        let run = || layer.forward([&x_there, &u_there, &w_there], &mut y, &stream);
        let mut graph = Replay::of(&stream, run);
        for seed in 1..5 {
            let x = inputs::<f16>([tokens, d], seed);
            x_there.write(&x).unwrap();
            // SAFETY: all memory that the captured run uses is alive until the end of this test.
            unsafe { graph.run() };
            let [_, out] = reference(&x, &u, &w);
            assert!(y.to_dense().unwrap().values() == out, "{tokens} {seed}");
        }
    }
}

#[test]
fn relu_layers_name_what_does_not_fit() {
    let cpu = Context::unchecked_cpu();
    let mut layer = FeedForward::<f32>::new(&cpu, [2, 3, 4, 5], &Default::default()).unwrap();
    let zeros = |shape: [usize; 2]| cpu.zeros::<f32>(&shape).unwrap();
    let (x, u, w, wrong) = (zeros([2, 3]), zeros([3, 4]), zeros([4, 5]), zeros([5, 5]));
    let stream = cpu.stream().unwrap();
    let mut y = zeros([2, 5]);
    layer.forward([&x, &u, &w], &mut y, &stream).unwrap();
    let error = layer.forward([&x, &u, &wrong], &mut y, &stream).unwrap_err();
    assert_error!(error, Error::Shape { .. });
}

/// With many tokens, the second product skips the columns that are empty for all tokens of a micro-tile.
#[test]
fn relu_layers_of_many_tokens_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let [tokens, d, h, o] = [2048, 64, 4096, 2048];
    let (u, w) = (first_weights::<f16>([d, h], 3), integers::<f16>(&[h, o], 4));
    let [u_there, w_there] = upload(&gpu, [&u, &w]);
    let options = FeedForwardOptions {
        expected: SparsityHint::MicroTiles(0.08),
        ..FeedForwardOptions::default()
    };
    let mut layer = FeedForward::<f16>::new(&gpu, [tokens, d, h, o], &options).unwrap();
    let variants = layer.variants();
    assert!(as_on_hopper(variants[1]).starts_with("pit_f16"), "{variants:?}");
    let stream = gpu.stream().unwrap();
    for seed in [1, 2] {
        let x = inputs::<f16>([tokens, d], seed);
        let mut y = poisoned::<f16>(&gpu, &[tokens, o]);
        let operands = [&gpu.upload_dense(&x).unwrap(), &u_there, &w_there];
        layer.forward(operands, &mut y, &stream).unwrap();
        stream.synchronize().unwrap();
        let [hidden, out] = reference(&x, &u, &w);
        assert!(layer.hidden().to_dense().unwrap().values() == hidden, "{seed}");
        assert!(y.to_dense().unwrap().values() == out, "{seed}");
        // The layer was planned for rows without gaps.
        let strided = gpu.upload_strided(&x, d + 8, f16::NAN).unwrap();
        let error = layer.forward([&strided, &u_there, &w_there], &mut y, &stream);
        let error = error.unwrap_err();
        assert_error!(error, Error::RowStride { .. } | Error::Operand { .. });
    }
}
