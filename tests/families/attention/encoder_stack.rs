//! Stacks of encoder layers, and batches that are already packed, against layers run one by one.

use super::encoder::{Model, There, options, values};
use crate::support::assert_error;
use crate::support::dense::wide;
use crate::support::replay::Replay;
use crate::support::{Rng, gpu_alone, on_gpu};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::nn::{Encoder, EncoderOptions, EncoderWeights};
use einsparse::registry::Scalar;
use einsparse::{Context, Error, Tensor};

const LENGTHS: [i32; 6] = [90, 3, 40, 0, 77, 1];
const TOKENS: usize = 211;

fn upload<T: Scalar>(context: &Context, shape: &[usize], values: &[T]) -> Tensor<T> {
    let dense = Dense::new(shape, values.to_vec()).unwrap();
    context.upload_dense(&dense).unwrap()
}

/// Three layers in a context.
fn stack<T: Scalar>(context: &Context, options: EncoderOptions) -> Vec<There<T>> {
    let model = |seed| Model::<T>::seeded(options, seed).upload(context);
    [3, 8, 5].map(model).into()
}

/// Returns the rows of a padded batch that hold tokens, at most `most` of them.
fn packed<T: Copy>(padded: &[T], options: &EncoderOptions, most: usize) -> Vec<T> {
    let EncoderOptions { distance, width, .. } = *options;
    let items = LENGTHS.iter().enumerate();
    let rows = items.flat_map(|(item, length)| (0..*length as usize).map(move |row| (item, row)));
    let rows = rows.take(most);
    rows.flat_map(|(item, row)| &padded[(item * distance + row) * width..][..width])
        .copied()
        .collect()
}

fn stacked<T: Scalar>(context: &Context, width: usize) {
    let plain = options(6, 90, width, 2);
    let there = stack::<T>(context, plain);
    let layers: Vec<EncoderWeights<'_, T>> = there.iter().map(There::weights).collect();
    let model = Model::<T>::new(plain);
    let x = model.x(4);
    let lengths = upload(context, &[6], &LENGTHS);
    let stream = context.stream().unwrap();
    // Capacities larger than the tokens, equal to them, and too small, so that tokens are dropped.
    for most in [None, Some(300), Some(TOKENS), Some(130), Some(0)] {
        let what = format!("{width} wide, {most:?}");
        let own = EncoderOptions { most, ..plain };
        let rows = most.unwrap_or(6 * 90);
        let live = rows.min(TOKENS);
        let encoder = Encoder::<T>::new(context, &own).unwrap();
        let mut found = Vec::new();
        for _ in 0..2 {
            let (from, mut out) = (context.upload_dense(&x).unwrap(), model.marked(context));
            encoder.forward(&from, &lengths, &layers, &mut out, &stream).unwrap();
            stream.synchronize().unwrap();
            found.push(wide(&out));
        }
        assert_eq!(found[0], found[1], "{what}: twice");
        let untouched = found[0].iter().filter(|&&x| x == 77.0).count();
        assert_eq!(untouched, (6 * 90 - live) * width, "{what}");

        let mut from = context.upload_dense(&x).unwrap();
        for layer in &layers {
            let mut out = model.marked(context);
            encoder.forward(&from, &lengths, &[*layer], &mut out, &stream).unwrap();
            from = out;
        }
        stream.synchronize().unwrap();
        assert_eq!(wide(&from), found[0], "{what}: one by one");

        // Rows past the last token are not read.
        let mut own = packed(x.values(), &plain, live);
        own.resize(rows * width, T::from_f64(f64::NAN));
        let from = upload(context, &[rows, width], &own);
        let mut out = upload(context, &[rows, width], &vec![T::from_f64(77.0); rows * width]);
        encoder.forward_packed(&from, &lengths, &layers, &mut out, &stream).unwrap();
        stream.synchronize().unwrap();
        let out = wide(&out);
        assert_eq!(out[..live * width], packed(&found[0], &plain, live), "{what}: packed");
        assert!(out[live * width..].iter().all(|&x| x == 77.0), "{what}");
    }
}

#[test]
fn encoder_stacks_are_layers_one_by_one() {
    stacked::<f32>(&Context::unchecked_cpu(), 16);
    on_gpu(&[|context| stacked::<f16>(context, 128), |context| stacked::<bf16>(context, 128)]);
}

/// A run whose tokens are NaN does not affect the next run, which has fewer tokens.
#[test]
fn encoder_stacks_forget_what_ran_before() {
    let Some(gpu) = gpu_alone() else { return };
    let plain = EncoderOptions { most: Some(256), ..options(6, 90, 128, 2) };
    let there = stack::<f16>(&gpu, plain);
    let layers: Vec<_> = there.iter().map(There::weights).collect();
    let encoder = Encoder::<f16>::new(&gpu, &plain).unwrap();
    let good = values::<f16>(&[256, 128], 1.0, 0.0, &mut Rng(2));
    let bad = vec![f16::NAN; 256 * 128];
    let (mut x, mut out) = (gpu.zeros(&[256, 128]).unwrap(), gpu.zeros(&[256, 128]).unwrap());
    let mut lengths = gpu.zeros::<i32>(&[6]).unwrap();
    let stream = gpu.stream().unwrap();
    let run = || encoder.forward_packed(&x, &lengths, &layers, &mut out, &stream);
    let mut graph = Replay::of(&stream, run);
    let mut found = Vec::new();
    for (values, own) in [
        (good.values(), LENGTHS.map(|length| length / 3)),
        (&bad, LENGTHS),
        (good.values(), LENGTHS.map(|length| length / 3)),
    ] {
        x.write(&Dense::new([256, 128], values.to_vec()).unwrap()).unwrap();
        lengths.write(&Dense::new([6], own.to_vec()).unwrap()).unwrap();
        // SAFETY: all memory that the captured run uses is alive until the end of this test.
        unsafe { graph.run() };
        let live = own.iter().sum::<i32>() as usize;
        found.push(wide(&out)[..live * 128].to_vec());
    }
    assert_eq!(found[0], found[2]);
    assert!(found[0].iter().all(|x| x.is_finite()));
    assert!(found[1].iter().any(|x| x.is_nan()));
}

#[test]
fn encoder_stacks_have_layers() {
    let cpu = Context::unchecked_cpu();
    let options = options(6, 90, 16, 2);
    let encoder = Encoder::<f32>::new(&cpu, &options).unwrap();
    let model = Model::<f32>::new(options);
    let x = cpu.upload_dense(&model.x(1)).unwrap();
    let lengths = upload(&cpu, &[6], &LENGTHS);
    let (mut out, stream) = (model.marked(&cpu), cpu.stream().unwrap());
    let error = encoder.forward(&x, &lengths, &[], &mut out, &stream);
    assert_error!(error.unwrap_err(), Error::OutOfRange { name, .. } if name == "layers");
}
