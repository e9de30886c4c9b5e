//! Convolutions with channels, images or filters that are empty for one step.

mod data;

use crate::support::assert_error;
use einsparse::dynamic::{ConvolutionAxis, ConvolutionShape, DynamicConvolution};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Error, Scalar};

use crate::support::dense::assert_exact;
use crate::support::dense::{integers, poisoned, upload};
use crate::support::replay::Replay;
use crate::support::rows::is_here;
use crate::support::runs::finish;
use crate::support::{gpu, gpu_alone, on_both, small};

use ConvolutionAxis::{Channels, Filters};
use data::{convolution, shapes};
pub(super) use data::{operands, plain, reference};

/// Runs once into an output of NaN, and compares.
fn exact_once<T: Scalar>(
    context: &Context,
    of: &mut DynamicConvolution<T>,
    s: &ConvolutionShape,
    [a, b]: [&Dense<T>; 2],
    what: &str,
) {
    let [a_there, b_there] = upload(context, [a, b]);
    let mut c = poisoned::<T>(context, &of.shapes()[2]);
    finish(context, |stream| of.forward(&a_there, &b_there, &mut c, stream));
    assert_exact(&c, &reference(s, a, b), what);
}

/// Creates a convolution, runs it once and compares.
fn convolves_once<T: Scalar>(
    context: &Context,
    s: ConvolutionShape,
    axis: ConvolutionAxis,
    per_mille: u64,
) {
    let mut of = convolution::<T>(context, &s, axis).unwrap();
    let [a, b] = operands::<T>(&s, axis, per_mille, 7 + per_mille);
    let what = format!("{} {s:?} {axis:?} {per_mille}", T::NAME);
    exact_once(context, &mut of, &s, [&a, &b], &what);
}

fn convolves<T: Scalar>(context: &Context, s: ConvolutionShape, axis: ConvolutionAxis) {
    let mut of = convolution::<T>(context, &s, axis).unwrap();
    let shapes = of.shapes();
    for per_mille in [1000, 0, 100, 500, 30] {
        let [a, b] = operands::<T>(&s, axis, per_mille, 7 + per_mille);
        let a_there = context.upload_strided(&a, s.channels + 8, T::ONE).unwrap();
        let b_there = context.upload_strided(&b, s.filters + 16, T::ONE).unwrap();
        let mut c = poisoned::<T>(context, &shapes[2]);
        finish(context, |stream| of.forward(&a_there, &b_there, &mut c, stream));
        let what = format!("{} {s:?} {axis:?} {per_mille}", T::NAME);
        assert_exact(&c, &reference(&s, &a, &b), &what);
    }
}

on_both! {
    convolution: cpu [|cpu| {
        for axis in [Channels, Filters] {
            convolves::<f32>(cpu, plain([2, 5, 6, 3], [3, 2], 5), axis);
            convolves::<f16>(cpu, plain([2, 5, 6, 3], [3, 3], 5).same(), axis);
            let strided = ConvolutionShape {
                stride: [2, 1],
                dilation: [1, 2],
                padding: [2, 0],
                ..plain([3, 7, 6, 4], [3, 2], 3)
            };
            convolves::<bf16>(cpu, strided, axis);
        }
    }], gpu [|gpu| {
        let mut cases = vec![
            plain([2, 9, 9, 64], [3, 3], 64).same(),
            plain([3, 7, 7, 72], [3, 3], 264).same(),
            plain([1, 20, 33, 200], [1, 1], 40),
            plain([2, 5, 130, 24], [2, 5], 136),
            plain([5, 1, 1, 16], [1, 1], 8),
            ConvolutionShape { stride: [2, 2], ..plain([2, 15, 17, 40], [3, 3], 72).same() },
            ConvolutionShape {
                stride: [1, 3],
                dilation: [2, 1],
                padding: [3, 5],
                ..plain([2, 12, 11, 136], [2, 4], 24)
            },
        ];
        if !small() {
            cases.push(plain([2, 28, 28, 128], [3, 3], 256).same());
            cases.push(plain([2, 30, 56, 64], [3, 3], 512).same());
        }
        for s in cases {
            for axis in [Channels, Filters] {
                convolves::<f16>(gpu, s, axis);
                convolves::<bf16>(gpu, s, axis);
            }
        }
    }];
}

/// Runs every tile shape, with every number of 64-column chunks that can remain for the last tile.
#[test]
fn convolution_takes_every_tile() {
    let Some(gpu) = gpu() else { return };
    for (size, filters, form) in [
        (64, 456, "128x256"),
        (64, 584, "128x256"),
        (64, 520, "128x256"),
        (64, 128, "128x128"),
        (64, 64, "128x128"),
        (7, 1024, "64x256"),
        (7, 840, "64x256"),
    ] {
        for axis in [Channels, Filters] {
            let s = plain([if small() { 4 } else { 32 }, size, size, 24], [1, 3], filters);
            let s = s.same();
            let of = convolution::<f16>(&gpu, &s, axis).unwrap();
            let taken = of.variants()[2];
            // Without `wgmma` there are only two tile shapes.
            let right = taken.ends_with(form) || !is_here("pit_conv_f16_128x256");
            assert!(small() || right, "{s:?} {axis:?}: {taken}");
            for per_mille in [1000, 100] {
                convolves_once::<f16>(&gpu, s, axis, per_mille);
            }
            convolves_once::<bf16>(&gpu, s, axis, 700);
        }
    }
}

/// Numbers of channels on both sides of every limit: half lines, lists that fit a stage, channels of a stage.
#[test]
fn convolution_of_few_and_many_channels_side_by_side() {
    let Some(gpu) = gpu() else { return };
    let counts = [32, 33, 0, 64, 65, 16, 17, 1, 128, 48];
    let s = plain([counts.len(), 10, 9, 128], [3, 3], 136).same();
    let [a, b] = operands::<f16>(&s, Channels, 1000, 21);
    let mut values = a.values().to_vec();
    for (place, line) in values.chunks_mut(128).enumerate() {
        let count = counts[place / 90];
        for (channel, value) in line.iter_mut().enumerate() {
            // `count` of the 128 channels are nonzero, and they are not adjacent.
            if channel * 37 % 128 >= count {
                *value = f16::ZERO;
            }
        }
    }
    let a = Dense::new(a.shape().to_vec(), values).unwrap();
    let mut of = convolution::<f16>(&gpu, &s, Channels).unwrap();
    exact_once(&gpu, &mut of, &s, [&a, &b], "counts side by side");
    let found = of.index().counts().unwrap();
    assert_eq!(found, counts.map(|count| count as u32));
}

/// Empty inputs, empty sums and empty outputs.
fn of_nothing(context: &Context) {
    let around = ConvolutionShape { padding: [2, 1], ..plain([2, 0, 6, 16], [3, 3], 16) };
    for s in [
        plain([0, 6, 6, 16], [3, 3], 16),
        plain([2, 6, 6, 0], [3, 3], 16),
        plain([2, 6, 6, 16], [3, 3], 0),
        around,
    ] {
        for axis in [Channels, Filters] {
            for per_mille in [1000, 0] {
                convolves_once::<f16>(context, s, axis, per_mille);
            }
        }
    }
}

on_both! {
    convolution_of_nothing: cpu [of_nothing], gpu [of_nothing];
}

/// Images whose channels are all empty, between other images. Their results are zeros, independent of their neighbors.
#[test]
fn convolution_of_images_that_are_empty() {
    let Some(gpu) = gpu() else { return };
    let s = plain([6, 10, 10, 64], [3, 3], 64).same();
    let [a, b] = operands::<f16>(&s, Channels, 400, 3);
    let mut values = a.values().to_vec();
    for image in [0, 2, 5] {
        values[image * 6400..(image + 1) * 6400].fill(f16::ZERO);
    }
    let a = Dense::new(a.shape().to_vec(), values).unwrap();
    let mut of = convolution::<f16>(&gpu, &s, Channels).unwrap();
    exact_once(&gpu, &mut of, &s, [&a, &b], "empty images");
    let counts = of.index().counts().unwrap();
    let empty: Vec<bool> = counts.iter().map(|&count| count == 0).collect();
    assert_eq!(empty, [true, false, true, false, false, true]);
}

/// A captured graph reads another pattern at every replay.
#[test]
fn convolution_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    for axis in [Channels, Filters] {
        let s = plain([3, 14, 14, 128], [3, 3], 128).same();
        let mut of = convolution::<f16>(&gpu, &s, axis).unwrap();
        let [a, b] = shapes(&s).map(|shape| gpu.zeros::<f16>(&shape).unwrap());
        let (mut a_there, mut b_there) = (a, b);
        let mut c = gpu.zeros::<f16>(&of.shapes()[2]).unwrap();
        let stream = gpu.stream().unwrap();
        let run = || of.forward(&a_there, &b_there, &mut c, &stream);
        let mut graph = Replay::of(&stream, run);
        for (per_mille, seed) in [(100, 1), (0, 2), (900, 3), (50, 4)] {
            let [a, b] = operands::<f16>(&s, axis, per_mille, seed);
            a_there.write(&a).unwrap();
            b_there.write(&b).unwrap();
            // SAFETY: all memory that the captured run uses is alive until the end of this iteration.
            unsafe { graph.run() };
            assert_exact(&c, &reference(&s, &a, &b), &format!("{axis:?} {per_mille}"));
        }
    }
}

/// Random values against f64. The bound is one rounding of the result plus the error of the sum.
#[test]
fn convolution_of_random_values() {
    let Some(gpu) = gpu() else { return };
    for axis in [Channels, Filters] {
        let s = plain([2, 14, 14, 96], [3, 3], 72).same();
        let scaled = |d: &Dense<f16>, by: f64| {
            let mix = |(i, x): (usize, &f16)| {
                let noise = (i as f64 * 0.618).fract() + 0.5;
                f16::from_f64(f64::from(x.to_f32()) * noise * by)
            };
            Dense::new(d.shape().to_vec(), d.values().iter().enumerate().map(mix).collect())
        };
        let [a, b] = operands::<f16>(&s, axis, 300, 11);
        let (a, b) = (scaled(&a, 0.3).unwrap(), scaled(&b, 0.2).unwrap());
        let mut of = convolution::<f16>(&gpu, &s, axis).unwrap();
        let stream = gpu.stream().unwrap();
        let (a_there, b_there) = (gpu.upload_dense(&a).unwrap(), gpu.upload_dense(&b).unwrap());
        let mut both = [0, 1].map(|_| poisoned::<f16>(&gpu, &of.shapes()[2]));
        for c in &mut both {
            of.forward(&a_there, &b_there, c, &stream).unwrap();
        }
        stream.synchronize().unwrap();
        let [first, second] = both.map(|c| c.to_dense().unwrap());
        assert!(first == second, "the same bits, {axis:?}");
        let magnitudes = |d: &Dense<f16>| d.map(|x| f16::from_f32(x.to_f32().abs()));
        let wanted = reference(&s, &a, &b);
        let sums = reference(&s, &magnitudes(&a), &magnitudes(&b));
        for ((found, wanted), sum) in first.values().iter().zip(wanted).zip(sums) {
            let bound = wanted.abs() * 2f64.powi(-11) + sum * 864.0 * 2f64.powi(-24) + 1e-7;
            let error = (f64::from(found.to_f32()) - wanted).abs();
            assert!(error <= bound, "{found}, not {wanted}: {error} > {bound}");
        }
    }
}

/// A weight that is not finite reaches the images that contain its channel, in its own filter, and no others.
#[test]
fn convolution_keeps_nan_where_it_is() {
    let Some(gpu) = gpu() else { return };
    let s = plain([2, 6, 6, 16], [3, 3], 16).same();
    let [a, b] = shapes(&s);
    let mut values = vec![f16::ZERO; a.iter().product()];
    // Channel 3 of the second image.
    values[(36 + 14) * 16 + 3] = f16::ONE;
    let a = Dense::new(a.to_vec(), values).unwrap();
    let mut values = integers::<f16>(&[9 * 16, 16], 3).values().to_vec();
    values[3 * 16 + 5] = f16::NAN;
    values[4 * 16 + 7] = f16::NAN;
    let b = Dense::new(b.to_vec(), values).unwrap();
    let mut of = convolution::<f16>(&gpu, &s, Channels).unwrap();
    let (a, b) = (gpu.upload_dense(&a).unwrap(), gpu.upload_dense(&b).unwrap());
    let mut c = gpu.zeros::<f16>(&of.shapes()[2]).unwrap();
    finish(&gpu, |stream| of.forward(&a, &b, &mut c, stream));
    for (i, x) in c.to_dense().unwrap().values().iter().enumerate() {
        assert_eq!(x.is_nan(), i / 16 >= 36 && i % 16 == 5, "[{i}] is {x}");
    }
}

#[test]
fn convolution_refuses_what_it_cannot() {
    let cpu = Context::unchecked_cpu();
    let of = |context: &Context, s| convolution::<f16>(context, &s, Channels);
    let wide = plain([1, 4, 4, 8], [5, 3], 8);
    let error = of(&cpu, wide).unwrap_err();
    assert_error!(error, Error::Shape { left, right, .. } if [left, right].iter().any(|s| s.contains('5')));
    let still = ConvolutionShape { stride: [1, 0], ..plain([1, 4, 4, 8], [3, 3], 8) };
    let error = of(&cpu, still).unwrap_err();
    assert_error!(error, Error::OutOfRange { name, .. } if name == "stride");
    let Some(gpu) = gpu() else { return };
    let far = ConvolutionShape { stride: [9, 1], ..plain([1, 14, 4, 8], [3, 3], 8) };
    assert_error!(of(&gpu, far).unwrap_err(), Error::OutOfRange { value, .. } if value == "9");
    let odd = plain([1, 4, 4, 8], [3, 3], 8);
    let error = convolution::<f32>(&gpu, &odd, Channels).unwrap_err();
    assert_error!(error, Error::NoKernel { .. });
    let mut odd = of(&gpu, plain([1, 4, 4, 8], [3, 3], 12)).unwrap();
    let [a, b, c] = odd.shapes().map(|shape| gpu.zeros::<f16>(&shape).unwrap());
    let mut c = c;
    let error = odd.forward(&a, &b, &mut c, &gpu.stream().unwrap()).unwrap_err();
    assert_error!(error, Error::Alignment { .. } | Error::OutOfRange { .. });
}
