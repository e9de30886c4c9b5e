//! Softmax cross-entropy: the GPU against the CPU, the CPU against explicit sums and finite differences.

use crate::support::assert_error;
use crate::support::bounds::assert_near;
use einsparse::driver::trial;
use einsparse::formats::{Dense, bf16, f16};
use einsparse::nn::CrossEntropy;
use einsparse::{Context, Error, Result, Scalar};

use crate::support::bounds::near_slope;
use crate::support::dense::{poisoned, wide};
use crate::support::replay::Replay;
use crate::support::runs::finish;
use crate::support::{Rng, gpu, gpu_alone};

const GAP: usize = 8;

/// Rows and classes around every width of lanes and vectors.
const EXTENTS: [[usize; 2]; 12] = [
    [1, 1],
    [5, 3],
    [0, 4],
    [130, 8],
    [33, 40],
    [3000, 40],
    [7, 128],
    [9, 129],
    [9, 136],
    [70, 1000],
    [2, 50_257],
    [20_000, 16],
];

/// Every third row has no label: either -1 or the number of classes.
fn labels([rows, classes]: [usize; 2]) -> Dense<i32> {
    let label = |row: usize| match row % 6 {
        2 => -1,
        5 => classes as i32,
        _ => (row * 7919 % classes) as i32,
    };
    Dense::new([rows], (0..rows).map(label).collect()).unwrap()
}

fn logits<T: Scalar>([rows, classes]: [usize; 2]) -> Dense<T> {
    let values = Rng(17).units::<f64>(rows * classes);
    let values = values.iter().map(|x| T::from_f64(6.0 * x));
    Dense::new([rows, classes], values.collect()).unwrap()
}

/// Returns loss and gradient, from rows with gaps. The loss alone and the gradient in place must be equal to them.
fn run<T: Scalar>(ctx: &Context, logits: &Dense<T>, labels: &Dense<i32>) -> (f64, Vec<f64>) {
    let [rows, classes] = [logits.shape()[0], logits.shape()[1]];
    let loss_of = CrossEntropy::<T>::new(ctx, [rows, classes]).unwrap();
    let (nan, leading) = (T::from_f64(f64::NAN), classes + GAP);
    let there = ctx.upload_strided(logits, leading, nan).unwrap();
    let mut in_place = ctx.upload_strided(logits, leading, nan).unwrap();
    let mut gradient = ctx.upload_strided(logits, leading, nan).unwrap();
    let labels = ctx.upload_dense(labels).unwrap();
    let mut losses = [0; 3].map(|_| poisoned::<f32>(ctx, &[1]));
    finish(ctx, |stream| {
        let [all, alone, placed] = &mut losses;
        loss_of.forward_backward(&there, &labels, all, &mut gradient, stream)?;
        loss_of.forward(&there, &labels, alone, stream)?;
        loss_of.forward_backward_in_place(&mut in_place, &labels, placed, stream)
    });
    let [all, alone, placed] = losses.map(|loss| wide(&loss)[0].to_bits());
    assert!(all == alone && all == placed, "{rows} x {classes}: three losses");
    let found = wide(&gradient);
    let bits = |values: &[f64]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&found), bits(&wide(&in_place)), "in place");
    let stored = gradient.to_storage().unwrap();
    for row in stored.chunks(leading).filter(|row| row.len() == leading) {
        assert!(row[classes..].iter().all(|x| x.to_f64().is_nan()), "a gap was written");
    }
    (f64::from_bits(all), found)
}

/// Errors of gradients are relative to the largest possible gradient.
fn agrees<T: Scalar>(gpu: &Context, within: f64) {
    for extents in EXTENTS {
        let (logits, labels) = (logits::<T>(extents), labels(extents));
        let (loss, gradient) = run(gpu, &logits, &labels);
        let (wanted, slopes) = run(&Context::unchecked_cpu(), &logits, &labels);
        assert_near(&format!("loss of {extents:?}"), &[loss], &[wanted], 4e-6);
        let live = labels.values().iter().filter(|l| (0..extents[1] as i32).contains(l));
        let count = live.count().max(1) as f64;
        for (at, (found, wanted)) in gradient.iter().zip(&slopes).enumerate() {
            let what = format!("{} gradient of {extents:?} at {at}", T::NAME);
            assert_near(&what, &[found * count], &[wanted * count], within);
        }
    }
}

#[test]
fn losses_and_gradients_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    agrees::<f32>(&gpu, 4e-6);
    agrees::<f16>(&gpu, 1e-3);
    agrees::<bf16>(&gpu, 8e-3);
}

#[test]
fn losses_and_gradients_are_those_written_out() {
    let cpu = Context::unchecked_cpu();
    for extents in EXTENTS {
        let (logits, labels) = (logits::<f64>(extents), labels(extents));
        let (loss, gradient) = run(&cpu, &logits, &labels);
        let (mut sum, mut count, mut shares) = (0.0, 0.0f64, Vec::new());
        for (row, label) in logits.values().chunks(extents[1]).zip(labels.values()) {
            let all: f64 = row.iter().map(|x| x.exp()).sum();
            let own = usize::try_from(*label).ok().and_then(|l| row.get(l));
            let share = |(class, x): (usize, &f64)| match own {
                None => 0.0,
                Some(_) => x.exp() / all - f64::from(class == *label as usize),
            };
            shares.extend(row.iter().enumerate().map(share));
            if let Some(own) = own {
                sum += all.ln() - own;
                count += 1.0;
            }
        }
        assert_near(&"loss", &[loss], &[sum / count.max(1.0)], 1e-6);
        for (found, wanted) in gradient.iter().zip(shares) {
            assert_near(&"gradient", &[*found], &[wanted / count.max(1.0)], 1e-12);
        }
    }
}

#[test]
fn the_gradient_is_that_of_differences() {
    const STEP: f64 = 1e-5;
    let (cpu, extents) = (Context::unchecked_cpu(), [5, 4]);
    let (logits, labels) = (logits::<f64>(extents), labels(extents));
    let (_, gradient) = run(&cpu, &logits, &labels);
    // The loss itself is f32, so differences use the exact loss.
    let loss = |values: &[f64]| {
        let rows = values.chunks(4).zip(labels.values());
        let live = rows.filter(|(_, l)| (0..4).contains(*l));
        let each =
            live.map(|(row, l)| row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[*l as usize]);
        let all: Vec<f64> = each.collect();
        all.iter().sum::<f64>() / all.len() as f64
    };
    for (at, found) in gradient.iter().enumerate() {
        let moved = |by: f64| {
            let mut values = logits.values().to_vec();
            values[at] += by;
            loss(&values)
        };
        near_slope("gradient", *found, (moved(STEP) - moved(-STEP)) / (2.0 * STEP));
    }
}

/// Without any label, or without rows, the loss is 0, not -0.
fn unlabelled(ctx: &Context) {
    for rows in [0, 1, 3] {
        let logits = Dense::new([rows, 2], vec![1.0f32; 2 * rows]).unwrap();
        let labels = Dense::new([rows], vec![-1; rows]).unwrap();
        assert_eq!(run(ctx, &logits, &labels).0.to_bits(), 0, "{rows} rows");
    }
}

/// NaN and infinities, also in rows without a label.
fn planted(ctx: &Context) {
    let row = |x: [f32; 3], label: i32| {
        let (loss, gradient) = run(
            ctx,
            &Dense::new([1, 3], x.to_vec()).unwrap(),
            &Dense::new([1], vec![label]).unwrap(),
        );
        (loss, gradient)
    };
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    assert!(row([0.0, nan, 1.0], 0).0.is_nan());
    assert!(row([0.0, inf, 1.0], 0).0.is_nan());
    assert_eq!(row([0.0, nan, inf], -1), (0.0, vec![0.0; 3]));
    assert_eq!(row([0.0, nan, inf], 3), (0.0, vec![0.0; 3]));
    // A class with logit -Inf has probability 0. If it is the label, the loss is infinite.
    let (loss, gradient) = row([-inf, 5.0, -inf], 1);
    assert_eq!((loss, gradient), (0.0, vec![0.0; 3]));
    assert_eq!(row([-inf, 5.0, -inf], 0).0, f64::INFINITY);
}

#[test]
fn nan_and_rows_without_a_label() {
    planted(&Context::unchecked_cpu());
    unlabelled(&Context::unchecked_cpu());
    if let Some(gpu) = gpu() {
        planted(&gpu);
        unlabelled(&gpu);
    }
}

#[test]
fn a_captured_loss_serves_other_labels() {
    let Some(gpu) = gpu_alone() else { return };
    let extents = [3000, 40];
    let logits = logits::<f32>(extents);
    let loss_of = CrossEntropy::<f32>::new(&gpu, extents).unwrap();
    let there = gpu.upload_dense(&logits).unwrap();
    let mut of = gpu.upload_dense(&labels(extents)).unwrap();
    let (mut loss, mut gradient) = (gpu.zeros(&[1]).unwrap(), gpu.zeros(&extents).unwrap());
    let stream = gpu.stream().unwrap();
    let mut graph = Replay::of(&stream, || {
        loss_of.forward_backward(&there, &of, &mut loss, &mut gradient, &stream)
    });
    let other = Dense::new([3000], vec![3; 3000]).unwrap();
    of.write(&other).unwrap();
    // SAFETY: all operands are alive.
    unsafe { graph.run() };
    let (wanted, slopes) = run(&Context::unchecked_cpu(), &logits, &other);
    assert_near(&"loss", &[wide(&loss)[0]], &[wanted], 4e-6);
    for (found, wanted) in wide(&gradient).iter().zip(slopes) {
        assert_near(&"gradient", &[found * 3000.0], &[wanted * 3000.0], 4e-6);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let cpu = Context::unchecked_cpu();
    let error = CrossEntropy::<f32>::new(&cpu, [7, 0]).unwrap_err();
    assert_error!(error, Error::OutOfRange { name, .. } if name == "classes");
    let loss_of = CrossEntropy::<f32>::new(&cpu, [2, 3]).unwrap();
    let logits = cpu.zeros::<f32>(&[2, 3]).unwrap();
    let (short, labels) = (cpu.zeros::<i32>(&[1]).unwrap(), cpu.zeros::<i32>(&[2]).unwrap());
    let (mut loss, mut wide) =
        (cpu.zeros::<f32>(&[1]).unwrap(), cpu.zeros::<f32>(&[2, 4]).unwrap());
    let stream = cpu.stream().unwrap();
    let wrong = loss_of.forward(&logits, &short, &mut loss, &stream);
    assert_error!(wrong, Err(Error::Shape { .. }));
    let wrong = loss_of.forward_backward(&logits, &labels, &mut loss, &mut wide, &stream);
    assert_error!(wrong, Err(Error::Shape { .. }));
}

/// The first launch of a run counts labels and the second resets the count. If the driver refuses the second launch,
/// the next run must start from zero nevertheless.
#[test]
fn a_run_that_stops_halfway_leaves_no_count() {
    let Some(gpu) = gpu_alone() else { return };
    let extents = [300, 40];
    let loss_of = CrossEntropy::<f32>::new(&gpu, extents).unwrap();
    let logits = gpu.upload_dense(&logits::<f32>(extents)).unwrap();
    let labels = gpu.upload_dense(&labels(extents)).unwrap();
    let stream = gpu.stream().unwrap();
    let loss = || -> Result<u64> {
        let mut loss = gpu.zeros(&[1])?;
        loss_of.forward(&logits, &labels, &mut loss, &stream)?;
        stream.synchronize()?;
        Ok(wide(&loss)[0].to_bits())
    };
    let wanted = loss().unwrap();
    trial::refuse_launch(2);
    let error = loss().unwrap_err();
    assert_error!(error, Error::Cuda { call, .. } if call.contains("cuLaunchKernel"));
    assert_eq!(loss().unwrap(), wanted);
    assert_eq!(loss().unwrap(), wanted);
}
