//! Convolutions over planes. Values are integers, so that every order of sums gives the same result.

use crate::support::assert_error;
use einsparse::formats::{Dense, bf16, f16};
use einsparse::ops::{Conv2d, Conv2dOptions};
use einsparse::{Context, Error, Scalar};

use crate::support::dense::{strided, upload_values};
use crate::support::runs::finish;
use crate::support::{Rng, gpu, on_both};

/// Input `[channels, batch, height, width]`, weights `[outputs, 1 or channels, rows, columns]`, stride, padding.
type Case = ([usize; 4], [usize; 4], usize, [usize; 2]);

const CASES: [Case; 31] = [
    // Whole vectors.
    ([32, 1, 12, 12], [32, 1, 3, 3], 1, [1, 1]),
    ([5, 3, 28, 28], [5, 1, 3, 3], 1, [1, 1]),
    ([7, 2, 9, 16], [7, 1, 3, 3], 1, [0, 1]),
    ([3, 1, 1, 4], [3, 1, 3, 3], 1, [1, 1]),
    ([64, 2, 16, 16], [64, 1, 3, 3], 2, [1, 1]),
    ([3, 5, 7, 8], [3, 1, 3, 3], 2, [1, 1]),
    ([2, 1, 112, 112], [2, 1, 3, 3], 2, [1, 1]),
    // Other widths and paddings.
    ([9, 1, 14, 14], [9, 1, 3, 3], 1, [1, 1]),
    ([70, 3, 7, 7], [70, 1, 3, 3], 1, [1, 1]),
    ([4, 2, 5, 12], [4, 1, 3, 3], 1, [0, 0]),
    ([4, 2, 5, 12], [4, 1, 3, 3], 1, [2, 2]),
    ([6, 2, 1, 1], [6, 1, 3, 3], 1, [1, 1]),
    ([6, 2, 28, 28], [6, 1, 3, 3], 2, [1, 1]),
    ([6, 16, 14, 14], [6, 1, 3, 3], 2, [1, 1]),
    ([5, 1, 7, 9], [5, 1, 3, 3], 2, [0, 2]),
    // Other windows and strides.
    ([5, 2, 9, 11], [5, 1, 5, 5], 1, [2, 2]),
    ([5, 2, 9, 11], [5, 1, 7, 7], 2, [3, 3]),
    ([5, 2, 9, 11], [5, 1, 2, 4], 3, [1, 0]),
    ([5, 1, 6, 6], [5, 1, 1, 1], 1, [0, 0]),
    ([3, 2, 11, 8], [3, 1, 3, 3], 3, [1, 1]),
    // Windows as large as the plane.
    ([130, 3, 7, 7], [130, 1, 7, 7], 1, [0, 0]),
    ([6, 2, 13, 11], [6, 1, 13, 11], 1, [0, 0]),
    ([6, 1, 3, 3], [6, 1, 3, 3], 2, [0, 0]),
    // Windows over all channels.
    ([3, 2, 15, 17], [32, 3, 3, 3], 2, [1, 1]),
    ([3, 1, 20, 20], [10, 3, 3, 3], 1, [1, 1]),
    ([4, 2, 6, 7], [9, 4, 2, 3], 1, [0, 1]),
    ([1, 3, 9, 9], [3, 1, 3, 3], 1, [1, 1]),
    ([3, 2, 21, 19], [12, 3, 7, 7], 2, [3, 3]),
    ([2, 1, 8, 9], [5, 2, 5, 4], 1, [2, 1]),
    ([56, 1, 5, 5], [3, 56, 3, 3], 1, [1, 1]),
    ([2, 0, 5, 5], [2, 1, 3, 3], 1, [1, 1]),
];

/// Reference: plain loops over a case.
fn reference(case: Case, relu: bool, [x, w, b]: [&[f64]; 3]) -> Vec<f64> {
    let ([channels, batch, height, width], [outputs, each, rows, columns], stride, padding) = case;
    let of = |extent: usize, window: usize, pad: usize| (extent + 2 * pad - window) / stride + 1;
    let (down, across) = (of(height, rows, padding[0]), of(width, columns, padding[1]));
    let mut all = Vec::new();
    for m in 0..outputs {
        for n in 0..batch {
            for (y, x0) in (0..down).flat_map(|y| (0..across).map(move |x| (y, x))) {
                let mut sum = b[m];
                for c in 0..each {
                    let channel = if each == 1 && outputs == channels { m } else { c };
                    for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
                        let (py, px) = (y * stride + i, x0 * stride + j);
                        let inside = (padding[0]..height + padding[0]).contains(&py)
                            && (padding[1]..width + padding[1]).contains(&px);
                        if inside {
                            let plane = (channel * batch + n) * height;
                            let at = (plane + py - padding[0]) * width + px - padding[1];
                            sum += x[at] * w[((m * each + c) * rows + i) * columns + j];
                        }
                    }
                }
                all.push(if relu { sum.max(0.0) } else { sum });
            }
        }
    }
    all
}

fn integers<T: Scalar>(len: usize, seed: u64) -> Vec<T> {
    Rng(seed).integers::<T>(len)
}

/// Returns the output, and whether memory past its rows was left unchanged. Rows of input and output are `gap` elements
/// longer than needed, and the row stride is `apart` larger than that.
fn run<T: Scalar>(
    ctx: &Context,
    case: Case,
    relu: bool,
    [gap, apart]: [usize; 2],
) -> (Vec<f64>, bool) {
    let ([channels, batch, height, width], weights, stride, padding) = case;
    let options = Conv2dOptions { stride, padding, relu };
    let conv = Conv2d::<T>::new(ctx, case.0, weights, &options).unwrap();
    let [outputs, _, down, across] = conv.out_shape();
    let nan = T::from_f64(f64::NAN);
    let places = batch * height * width;
    let values = integers::<T>(channels * places, 1);
    let x = Dense::from_fn([channels, places + gap], |i| {
        if i[1] < places { values[i[0] * places + i[1]] } else { nan }
    });
    let x = strided(ctx, &x.unwrap(), places + gap + apart, nan);
    let w = upload_values(ctx, &weights, integers::<T>(weights.iter().product(), 2));
    let b = upload_values(ctx, &[outputs], integers::<T>(outputs, 3));
    let of_out = batch * down * across;
    let out = Dense::from_fn([outputs, of_out + gap], |_| nan).unwrap();
    let mut out = ctx.upload_strided(&out, of_out + gap + apart, nan).unwrap();
    finish(ctx, |stream| conv.forward(&x, &w, Some(&b), &mut out, stream));
    let stored = out.to_storage().unwrap();
    let rows = || stored.chunks((of_out + gap + apart).max(1));
    let alone = rows().all(|row| row[of_out.min(row.len())..].iter().all(|x| x.to_f64().is_nan()));
    let found = rows().flat_map(|row| row[..of_out].iter().map(|x| x.to_f64()));
    (found.collect(), alone)
}

fn wanted<T: Scalar>(case: Case, relu: bool) -> Vec<f64> {
    let wide = |values: Vec<T>| values.iter().map(|x| x.to_f64()).collect::<Vec<f64>>();
    let x = wide(integers::<T>(case.0.iter().product(), 1));
    let w = wide(integers::<T>(case.1.iter().product(), 2));
    let b = wide(integers::<T>(case.1[0], 3));
    let sums = reference(case, relu, [&x, &w, &b]);
    sums.iter().map(|sum| T::from_f64(*sum).to_f64()).collect()
}

fn agrees<T: Scalar>(ctx: &Context) {
    for case in CASES {
        for relu in [false, true] {
            let wanted = wanted::<T>(case, relu);
            // Whole vectors, unaligned rows, and a row stride larger than the row.
            for gap in [[0, 0], [3, 0], [0, 8], [4, 1]] {
                let (found, alone) = run::<T>(ctx, case, relu, gap);
                assert!(found == wanted, "{} {case:?}, relu {relu}, {gap:?}", T::NAME);
                assert!(alone, "{} {case:?}, {gap:?}: written behind the places", T::NAME);
            }
        }
    }
}

on_both! {
    planes: cpu [|cpu| {
        agrees::<f64>(cpu);
        agrees::<f16>(cpu);
    }], gpu [|gpu| {
        agrees::<f32>(gpu);
        agrees::<f16>(gpu);
        agrees::<bf16>(gpu);
    }];
}

/// The bias is optional, and without ReLU NaN and both infinities pass.
fn no_bias_and_no_numbers(ctx: &Context) {
    for width in [8, 7] {
        let options = Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() };
        let conv = Conv2d::<f32>::new(ctx, [1, 1, 3, width], [1, 1, 3, 3], &options).unwrap();
        let mut values = vec![1.0f32; 3 * width];
        (values[0], values[width - 1]) = (f32::NAN, f32::NEG_INFINITY);
        let x = upload_values(ctx, &[1, 3 * width], values);
        let w = upload_values(ctx, &[1, 1, 3, 3], vec![1.0f32; 9]);
        let mut out = ctx.zeros(&[1, 3 * width]).unwrap();
        finish(ctx, |stream| conv.forward(&x, &w, None, &mut out, stream));
        for (at, sum) in out.to_dense().unwrap().values().iter().enumerate() {
            let (y, x) = (at / width, at % width);
            let edge = x == 0 || x + 1 == width;
            match (y, x) {
                (0 | 1, 0 | 1) => assert!(sum.is_nan(), "{at}: {sum}"),
                (0 | 1, x) if x + 2 >= width => assert_eq!(*sum, f32::NEG_INFINITY, "{at}"),
                (1, _) => assert_eq!(*sum, 9.0, "{at}"),
                _ => assert_eq!(*sum, if edge { 4.0 } else { 6.0 }, "{at}"),
            }
        }
    }
}

on_both! {
    not_numbers_pass: cpu [no_bias_and_no_numbers], gpu [no_bias_and_no_numbers];
}

#[test]
fn other_shapes_are_refused() {
    let cpu = Context::unchecked_cpu();
    let options = Conv2dOptions::default();
    let told = |input: [usize; 4], weights: [usize; 4], options: &Conv2dOptions| {
        let made = Conv2d::<f32>::new(&cpu, input, weights, options);
        made.unwrap_err()
    };
    let error = told([4, 1, 5, 5], [8, 2, 3, 3], &options);
    assert_error!(error, Error::Shape { index, .. } if index == "weights");
    let error = told([4, 1, 2, 5], [4, 1, 3, 3], &options);
    assert_error!(error, Error::Shape { index, .. } if index == "convolution");
    let error = told([4, 1, 5, 5], [4, 1, 3, 3], &Conv2dOptions { stride: 0, ..options });
    assert_error!(error, Error::OutOfRange { value, .. } if value.ends_with("stride 0"));
    let conv = Conv2d::<f32>::new(&cpu, [4, 1, 5, 5], [4, 1, 3, 3], &options).unwrap();
    let (x, w) = (cpu.zeros(&[4, 24]).unwrap(), cpu.zeros(&[4, 1, 3, 3]).unwrap());
    let mut out = cpu.zeros(&[4, 9]).unwrap();
    let short = conv.forward(&x, &w, None, &mut out, &cpu.stream().unwrap());
    assert_error!(short, Err(Error::Shape { .. }));
}

/// Windows without a kernel are refused.
#[test]
fn large_windows_are_refused_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let options = Conv2dOptions::default();
    for (input, weights) in [([4, 1, 20, 20], [4, 1, 9, 3]), ([64, 1, 8, 8], [8, 64, 3, 3])] {
        let error = Conv2d::<f32>::new(&gpu, input, weights, &options).unwrap_err();
        assert_error!(error, Error::NoKernel { .. });
    }
    let double = Conv2d::<f64>::new(&gpu, [4, 1, 8, 8], [4, 1, 3, 3], &options).unwrap_err();
    assert_error!(double, Error::NoKernel { .. });
}
