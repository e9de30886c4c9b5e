//! Gradients of dense weights over many rows. Values are integers, so that every order of sums gives the same result.

use crate::support::assert_error;
use std::ops::Range;

use einsparse::formats::{Dense, bf16, f16};
use einsparse::nn::{BiasGradient, WeightGradient};
use einsparse::{Context, Error, Precision, Scalar};

use crate::support::dense::{integers, poisoned, strided, upload, wide};
use crate::support::runs::finish;
use crate::support::{Rng, gpu, on_both};

/// Rows, inputs, outputs: around tiles, stages and split-K parts.
const EXTENTS: [[usize; 3]; 10] = [
    [1, 1, 1],
    [0, 5, 3],
    [7, 128, 64],
    [8, 4, 4],
    [130, 127, 65],
    [1000, 128, 40],
    [5000, 129, 128],
    [4097, 16, 200],
    [20_011, 36, 12],
    [3, 300, 260],
];

/// Returns dW and db for operands whose rows have a gap; after a ReLU also the gradient of its input.
fn run<T: Scalar>(
    ctx: &Context,
    [rows, inputs, outputs]: [usize; 3],
    gap: usize,
    precision: Precision,
) -> [Vec<f64>; 5] {
    let (x, dy) = (integers::<T>(&[rows, inputs], 1), integers::<T>(&[rows, outputs], 2));
    let nan = T::from_f64(f64::NAN);
    let x = ctx.upload_strided(&x, inputs + gap, nan).unwrap();
    let dy = ctx.upload_strided(&dy, outputs + gap, nan).unwrap();
    let extents = [rows, inputs, outputs];
    let gradient = WeightGradient::<T>::with_precision(ctx, extents, precision).unwrap();
    let mut dw = poisoned::<f32>(ctx, &[inputs, outputs]);
    let mut alone = poisoned::<f32>(ctx, &[inputs, outputs]);
    let mut db = poisoned::<f32>(ctx, &[outputs]);
    let mut gated_dw = poisoned::<f32>(ctx, &[inputs, outputs]);
    let mut gated_db = poisoned::<f32>(ctx, &[outputs]);
    let mut output = integers::<T>(&[rows, outputs], 3);
    // NaN is not above zero, so the ReLU masks these elements.
    output.values_mut().iter_mut().step_by(7).for_each(|y| *y = nan);
    let output = ctx.upload_strided(&output, outputs + gap, nan).unwrap();
    let mut slope = strided(ctx, &integers::<T>(&[rows, outputs], 2), outputs + gap, nan);
    finish(ctx, |stream| {
        gradient.backward_weight(&x, &dy, &mut dw, Some(&mut db), stream)?;
        gradient.backward_weight(&x, &dy, &mut alone, None, stream)?;
        let db = Some(&mut gated_db);
        gradient.backward_weight_relu(&x, &output, &mut slope, &mut gated_dw, db, stream)
    });
    assert_eq!(wide(&dw), wide(&alone), "without a bias");
    let stored = slope.to_storage().unwrap();
    for row in stored.chunks(outputs + gap).filter(|row| row.len() > outputs) {
        let gap = &row[outputs..];
        assert!(gap.iter().all(|x| x.to_f64().is_nan()), "a gap was written");
    }
    [wide(&dw), wide(&db), wide(&gated_dw), wide(&gated_db), wide(&slope)]
}

fn agrees<T: Scalar>(gpu: &Context, precision: Precision) {
    for extents in EXTENTS {
        // Whole vectors, and rows that allow none.
        for gap in [0, 8, 3] {
            let (found, wanted) = (
                run::<T>(gpu, extents, gap, precision),
                run::<T>(&Context::unchecked_cpu(), extents, gap, precision),
            );
            assert!(found == wanted, "{} {extents:?}, gap {gap}", T::NAME);
        }
    }
}

on_both! {
    weights: cpu [|cpu| {
        for [rows, inputs, outputs] in EXTENTS {
            let [x, dy] = [integers::<f64>(&[rows, inputs], 1), integers::<f64>(&[rows, outputs], 2)];
            let [dw, db, gated_dw, gated_db, slope] =
                run::<f32>(cpu, [rows, inputs, outputs], 3, Precision::Full);
            let at =
                |d: &Dense<f64>, row: usize, column: usize| d.values()[row * d.shape()[1] + column];
            for place in [0, inputs * outputs / 2, inputs * outputs - 1] {
                let (i, o) = (place / outputs, place % outputs);
                let sum: f64 = (0..rows).map(|n| at(&x, n, i) * at(&dy, n, o)).sum();
                assert_eq!(dw[place], sum);
            }
            let last = outputs - 1;
            let y = integers::<f64>(&[rows, outputs], 3);
            for (at, slope) in slope.iter().enumerate() {
                let open = at % 7 != 0 && y.values()[at] > 0.0;
                assert_eq!(*slope, if open { dy.values()[at] } else { 0.0 });
            }
            let gated: f64 = (0..rows).map(|n| slope[n * outputs + last]).sum();
            assert_eq!(gated_db[last], gated);
            let products = (0..rows).map(|n| at(&x, n, 0) * slope[n * outputs + last]);
            assert_eq!(gated_dw[last], products.sum::<f64>());
            assert_eq!(db[last], (0..rows).map(|n| at(&dy, n, last)).sum::<f64>());
        }
    }], gpu [|gpu| {
        agrees::<f32>(gpu, Precision::Full);
        agrees::<f32>(gpu, Precision::Tf32);
        agrees::<f16>(gpu, Precision::Full);
        agrees::<bf16>(gpu, Precision::Full);
    }];
}

/// Random values: equal bits in every run, and within the error of products and sums in f32 or in TF32.
#[test]
fn parts_are_added_in_order() {
    let Some(gpu) = gpu() else { return };
    // In TF32 a product of factors below one has two errors of 2^-11, and such errors of 50,000 products cancel.
    in_order::<f32>(&gpu, Precision::Full, 0.0..2e-3);
    in_order::<f32>(&gpu, Precision::Tf32, 5e-3..0.3);
    in_order::<f16>(&gpu, Precision::Full, 0.0..2e-3);
    in_order::<bf16>(&gpu, Precision::Full, 0.0..2e-3);
}

fn in_order<T: Scalar>(gpu: &Context, precision: Precision, off: Range<f64>) {
    const EXTENTS: [usize; 3] = [50_000, 96, 40];
    let [rows, inputs, outputs] = EXTENTS;
    let random = |columns: usize, seed| {
        let values = Rng(seed).units::<T>(rows * columns);
        Dense::new([rows, columns], values).unwrap()
    };
    let (x, dy) = (random(inputs, 1), random(outputs, 2));
    let run = |ctx: &Context, times: usize| {
        let operands = upload(ctx, [&x, &dy]);
        let gradient = WeightGradient::<T>::with_precision(ctx, EXTENTS, precision).unwrap();
        let once = |_| {
            let mut dw = poisoned::<f32>(ctx, &[inputs, outputs]);
            finish(ctx, |stream| {
                gradient.backward_weight(&operands[0], &operands[1], &mut dw, None, stream)
            });
            wide(&dw)
        };
        (0..times).map(once).collect::<Vec<_>>()
    };
    let (found, wanted) = (run(gpu, 6), run(&Context::unchecked_cpu(), 1));
    assert!(found.iter().all(|one| one == &found[0]), "{precision:?}");
    let far = found[0].iter().zip(&wanted[0]).map(|(a, b)| (a - b).abs());
    let far = far.fold(0.0, f64::max);
    assert!(off.contains(&far), "{} {precision:?}: off by {far}", T::NAME);
}

#[test]
fn other_shapes_are_refused() {
    let cpu = Context::unchecked_cpu();
    let error = WeightGradient::<f32>::new(&cpu, [4, 0, 3]).unwrap_err();
    assert_error!(error, Error::OutOfRange { value, .. } if value == "0 x 3");
    let gradient = WeightGradient::<f32>::new(&cpu, [4, 2, 3]).unwrap();
    let [x, dy] = [[4, 2], [5, 3]].map(|shape| cpu.zeros::<f32>(&shape).unwrap());
    let mut dw = cpu.zeros::<f32>(&[2, 3]).unwrap();
    let wrong = gradient.backward_weight(&x, &dy, &mut dw, None, &cpu.stream().unwrap());
    assert_error!(wrong, Err(Error::Shape { .. }));
}

/// Returns db, db after a ReLU without a second gradient, the gradient of its input, and the last two with a second
/// gradient added.
fn biases<T: Scalar>(ctx: &Context, [rows, outputs]: [usize; 2], gap: usize) -> [Vec<f64>; 5] {
    let nan = T::from_f64(f64::NAN);
    let place = |dense: &Dense<T>| ctx.upload_strided(dense, outputs + gap, nan).unwrap();
    let mut output = integers::<T>(&[rows, outputs], 3);
    // NaN is not above zero, so the ReLU masks these elements.
    let gates = output.values_mut().iter_mut().step_by(7);
    gates.for_each(|y| *y = nan);
    let output = place(&output);
    let dy = || place(&integers::<T>(&[rows, outputs], 2));
    let more = place(&integers::<T>(&[rows, outputs], 4));
    let gradient = BiasGradient::<T>::new(ctx, [rows, outputs]).unwrap();
    let [mut db, mut gated, mut both] = [0; 3].map(|_| poisoned::<f32>(ctx, &[outputs]));
    let (given, mut slope, mut sum) = (dy(), dy(), dy());
    finish(ctx, |stream| {
        gradient.backward_bias(&given, &mut db, stream)?;
        gradient.backward_bias_relu(&output, None, &mut slope, &mut gated, stream)?;
        gradient.backward_bias_relu(&output, Some(&more), &mut sum, &mut both, stream)
    });
    assert_eq!(wide(&given), wide(&dy()), "without a ReLU nothing is written");
    for written in [&slope, &sum] {
        let stored = written.to_storage().unwrap();
        let rows = stored.chunks(outputs + gap);
        let mut gaps = rows.flat_map(|row| row.iter().skip(outputs));
        assert!(gaps.all(|x| x.to_f64().is_nan()), "a gap was written");
    }
    [wide(&db), wide(&gated), wide(&slope), wide(&both), wide(&sum)]
}

on_both! {
    biases: cpu [|cpu| {
        for [rows, _, outputs] in EXTENTS {
            let [dy, y, more] = [2, 3, 4].map(|seed| integers::<f64>(&[rows, outputs], seed));
            let [db, gated, slope, both, sum] =
                biases::<f32>(cpu, [rows, outputs], 3);
            for at in 0..rows * outputs {
                let open = at % 7 != 0 && y.values()[at] > 0.0;
                let own = [dy.values()[at], dy.values()[at] + more.values()[at]];
                let wanted = if open { own } else { [0.0; 2] };
                assert_eq!([slope[at], sum[at]], wanted);
            }
            for (of, sums) in [(dy.values(), db), (&slope, gated), (&sum, both)] {
                for (o, found) in sums.iter().enumerate() {
                    assert_eq!(*found, (0..rows).map(|n| of[n * outputs + o]).sum::<f64>());
                }
            }
        }
    }], gpu [|gpu| {
        fn agree<T: Scalar>(gpu: &Context) {
            for [rows, _, outputs] in EXTENTS {
                // Whole vectors, and rows that allow none.
                for gap in [0, 8, 3] {
                    let [found, wanted] = [gpu, &Context::unchecked_cpu()]
                        .map(|ctx| biases::<T>(ctx, [rows, outputs], gap));
                    assert!(found == wanted, "{} {rows} {outputs}, gap {gap}", T::NAME);
                }
            }
        }
        agree::<f32>(gpu);
        agree::<f16>(gpu);
        agree::<bf16>(gpu);
    }];
}
