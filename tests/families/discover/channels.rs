//! Nonzero columns of items, their lists and their values, against a plain loop over every element.

use crate::support::assert_error;
use einsparse::dynamic::ChannelDetector;
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Error, Scalar, Tensor};

use crate::support::replay::Replay;
use crate::support::runs::finish;
use crate::support::{Rng, gpu, gpu_alone, on_both, on_gpu};

/// Items, rows, columns; and the row stride in elements on a GPU. Column tiles have up to 64 vectors of 8 columns, with
/// widths that divide a warp and that do not, one tile and several. Some rows fit into shared memory at once, some do
/// not.
const SHAPES: [([usize; 3], usize); 20] = [
    ([1, 1, 64], 64),
    ([1, 7, 24], 24),
    ([3, 1, 1], 8),
    ([2, 3, 8], 16),
    ([1, 100, 13], 16),
    ([32, 49, 72], 72),
    ([3, 300, 200], 208),
    ([2, 56 * 56, 64], 64),
    ([32, 7, 128], 128),
    ([32, 49, 512], 512),
    ([1, 2304, 256], 256),
    ([1, 4608, 512], 520),
    ([5, 33, 1000], 1000),
    ([3, 20, 529], 536),
    ([2, 70, 2048], 2048),
    ([1, 5, 8192], 8192),
    ([2, 3, 8191], 8192),
    ([1, 40_000, 40], 40),
    ([0, 5, 16], 16),
    ([2, 0, 16], 16),
];
/// Patterns that run one after the other over the same lists. A run must not affect the next one.
const PATTERNS: [Pattern; 9] = [
    Pattern::Full,
    Pattern::One,
    Pattern::Share(95),
    Pattern::EachItem,
    Pattern::Share(50),
    Pattern::Zero,
    Pattern::Share(90),
    Pattern::Runs,
    Pattern::Zero,
];

#[derive(Clone, Copy, Debug)]
enum Pattern {
    Zero,
    /// Every element is nonzero.
    Full,
    /// Only the last element of all is nonzero.
    One,
    /// One column of each item is nonzero, a different one in each.
    EachItem,
    /// This percentage of the columns is empty. In the others an eighth of the elements is nonzero, at least one.
    Share(u64),
    /// Eight and more adjacent nonzero columns: vectors that are copied whole.
    Runs,
}

/// Returns nonzero elements, among them NaN and the smallest ones, or zeros of both signs.
fn element<T: Scalar>(full: bool, word: u64) -> T {
    let value = match (full, word % 16) {
        (false, n) => [0.0, -0.0][n as usize % 2],
        (true, 0) => f64::NAN,
        (true, 1) => f64::NEG_INFINITY,
        (true, 2) => 1.0 / f64::from(1 << 24),
        (true, n) => n as f64 - 9.5,
    };
    T::from_f64(value)
}

impl Pattern {
    fn values<T: Scalar>(self, [items, rows, columns]: [usize; 3], seed: u64) -> Vec<T> {
        let mut rng = Rng(seed | 1);
        let mut values = Vec::with_capacity(items * rows * columns);
        for item in 0..items {
            let live: Vec<(bool, u64)> = (0..columns)
                .map(|column| {
                    let word = rng.word() >> 8;
                    let live = match self {
                        Pattern::Zero => false,
                        Pattern::Full => true,
                        Pattern::One => false,
                        Pattern::EachItem => column == (item * 37 + seed as usize) % columns,
                        Pattern::Share(empty) => word % 100 >= empty,
                        Pattern::Runs => column % 48 < 8 || column % 80 >= 59,
                    };
                    (live, (word >> 8) % rows.max(1) as u64)
                })
                .collect();
            for row in 0..rows {
                for (column, &(live, sure)) in live.iter().enumerate() {
                    let word = rng.word() >> 8;
                    let last = (item + 1, row + 1, column + 1) == (items, rows, columns);
                    let full = match self {
                        Pattern::Full => true,
                        Pattern::One => last,
                        _ => live && (word.is_multiple_of(8) || sure == row as u64),
                    };
                    values.push(element(full, word >> 4));
                }
            }
        }
        values
    }
}

/// Returns the lists by definition.
fn wanted<T: Scalar>(
    [items, rows, columns]: [usize; 3],
    values: &[T],
    threshold: f64,
) -> Vec<Vec<u32>> {
    let of = |item: usize| {
        let full = |&column: &u32| {
            (0..rows).any(|row| {
                let value = values[(item * rows + row) * columns + column as usize].to_f64();
                value.is_nan() || value.abs() > threshold
            })
        };
        (0..columns as u32).filter(full).collect()
    };
    (0..items).map(of).collect()
}

/// Compares lists, counts and every defined element of the packed rows, bit by bit.
fn check<T: Scalar>(
    detector: &ChannelDetector<T>,
    shape @ [items, rows, columns]: [usize; 3],
    values: &[T],
    threshold: f64,
    what: &str,
) {
    let what = format!("{} {shape:?} above {threshold}: {what}", T::NAME);
    let lists = wanted(shape, values, threshold);
    let found = detector.index().to_lists().unwrap();
    assert!(found == lists, "{what}: lists");
    let counts: Vec<u32> = lists.iter().map(|list| list.len() as u32).collect();
    assert!(detector.index().counts().unwrap() == counts, "{what}");
    let stride = detector.index().stride();
    assert_eq!(stride, columns.next_multiple_of(64));
    let packed = detector.packed().unwrap();
    assert_eq!(packed.len(), items * rows * stride);
    for (row, place) in packed.chunks(stride.max(1)).enumerate() {
        let list = &lists[row / rows];
        for (i, found) in place[..list.len().next_multiple_of(64)].iter().enumerate() {
            let wanted = match list.get(i) {
                Some(&column) => values[row * columns + column as usize],
                None => T::ZERO,
            };
            assert!(
                bytemuck::bytes_of(found) == bytemuck::bytes_of(&wanted),
                "{what}: row {row}, place {i} is {found}, not {wanted}"
            );
        }
    }
}

/// Uploads rows with NaN between them.
fn upload<T: Scalar>(
    context: &Context,
    shape: &[usize],
    values: &[T],
    leading: usize,
) -> Tensor<T> {
    let dense = Dense::new(shape.to_vec(), values.to_vec()).unwrap();
    let nan = T::from_f64(f64::NAN);
    context.upload_strided(&dense, leading, nan).unwrap()
}

fn detects<T: Scalar>(context: &Context) {
    for (shape, leading) in SHAPES {
        let [items, rows, columns] = shape;
        let mut detector = ChannelDetector::<T>::new(context, shape, 0.0).unwrap();
        for (seed, pattern) in PATTERNS.into_iter().enumerate() {
            let values = pattern.values::<T>(shape, seed as u64 + 3);
            let a = upload(context, &[items * rows, columns], &values, leading);
            finish(context, |stream| detector.run(&a, stream));
            check(&detector, shape, &values, 0.0, &format!("{pattern:?}"));
        }
    }
}

/// Thresholds that the type represents exactly, and that it does not. NaN is above all of them.
fn detects_above<T: Scalar>(context: &Context) {
    let shape @ [items, rows, columns] = [3, 3, 200];
    let mut rng = Rng(11);
    let mut values: Vec<T> = (0..items * rows * columns)
        .map(|_| T::from_f64((rng.word() % 2001) as f64 / 1000.0 - 1.0))
        .collect();
    values[columns + 17] = T::from_f64(f64::NAN);
    let a = upload(context, &[items, rows, columns], &values, columns);
    for threshold in [0.0, 0.5, 0.999, 0.996_1, 1e-30, 7.0, f64::INFINITY] {
        let mut detector = ChannelDetector::<T>::new(context, shape, threshold).unwrap();
        for run in 0..2 {
            finish(context, |stream| detector.run(&a, stream));
            check(&detector, shape, &values, threshold, &format!("run {run}"));
        }
    }
}

/// Activations and weights in their native layout of four axes.
fn four_axes<T: Scalar>(context: &Context) {
    for (axes, shape) in
        [([4, 7, 5, 40], [4, 35, 40]), ([3, 3, 16, 72], [1, 144, 72]), ([1, 1, 1, 8], [1, 1, 8])]
    {
        let values = Pattern::Share(60).values::<T>(shape, 9);
        let a = upload(context, &axes, &values, axes[3]);
        let mut detector = ChannelDetector::<T>::new(context, shape, 0.0).unwrap();
        finish(context, |stream| detector.run(&a, stream));
        check(&detector, shape, &values, 0.0, &format!("{axes:?}"));
    }
}

on_both! {
    channels: cpu [detects::<f16>, detects_above::<f64>, detects_above::<bf16>, four_axes::<f32>],
        gpu [detects::<f16>, detects::<bf16>];
}

#[test]
fn channels_above_thresholds_on_the_gpu() {
    on_gpu(&[detects_above::<f16>, detects_above::<bf16>, four_axes::<f16>]);
}

/// Queued runs without synchronization between them. Each must clear the lists and counts of the run before.
#[test]
fn channels_of_many_runs_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let shape @ [items, rows, columns] = [32, 196, 256];
    let all: Vec<_> = PATTERNS
        .into_iter()
        .map(|pattern| {
            let values = pattern.values::<f16>(shape, 5);
            let a = upload(&gpu, &[items, rows, columns], &values, columns);
            (pattern, values, a)
        })
        .collect();
    let mut detector = ChannelDetector::<f16>::new(&gpu, shape, 0.0).unwrap();
    for (pattern, values, own) in &all {
        for (_, _, a) in &all {
            detector.run(a, &stream).unwrap();
        }
        detector.run(own, &stream).unwrap();
        stream.synchronize().unwrap();
        check(&detector, shape, values, 0.0, &format!("{pattern:?}"));
    }
}

/// A captured graph finds another pattern at each replay.
#[test]
fn channels_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    for shape in [[32, 49, 512], [1, 1152, 128]] {
        let [items, rows, columns] = shape;
        let mut a = gpu.zeros::<f16>(&[items, rows, columns]).unwrap();
        let mut detector = ChannelDetector::<f16>::new(&gpu, shape, 0.0).unwrap();
        let stream = gpu.stream().unwrap();
        let mut graph = Replay::of(&stream, || detector.run(&a, &stream));
        for (seed, pattern) in PATTERNS.into_iter().enumerate() {
            let values = pattern.values::<f16>(shape, seed as u64 + 21);
            let dense = Dense::new(vec![items, rows, columns], values.clone()).unwrap();
            a.write(&dense).unwrap();
            // SAFETY: all memory that the captured run uses is alive until the end of this test.
            unsafe { graph.run() };
            check(&detector, shape, &values, 0.0, &format!("{pattern:?}"));
        }
    }
}

#[test]
fn channels_refuse_what_they_cannot() {
    let cpu = Context::unchecked_cpu();
    for threshold in [-1.0, f64::NAN] {
        let error = ChannelDetector::<f32>::new(&cpu, [1, 8, 8], threshold).unwrap_err();
        assert_error!(error, Error::OutOfRange { name, .. } if name == "threshold");
    }
    let mut detector = ChannelDetector::<f32>::new(&cpu, [2, 8, 8], 0.0).unwrap();
    let stream = cpu.stream().unwrap();
    for shape in [vec![2, 8, 9], vec![15, 8], vec![128], vec![]] {
        let a = cpu.zeros::<f32>(&shape).unwrap();
        let error = detector.run(&a, &stream).unwrap_err();
        assert!(matches!(error, Error::Shape { .. }), "{shape:?}: {error}");
    }
    let Some(gpu) = gpu() else { return };
    let error = ChannelDetector::<f32>::new(&gpu, [1, 8, 8], 0.0).unwrap_err();
    assert_error!(error, Error::NoKernel { .. });
    let error = ChannelDetector::<f16>::new(&gpu, [1, 8, 8193], 0.0).unwrap_err();
    assert_error!(error, Error::Overflow { .. });
    let mut detector = ChannelDetector::<f16>::new(&gpu, [1, 8, 20], 0.0).unwrap();
    let a = gpu.zeros::<f16>(&[8, 20]).unwrap();
    let error = detector.run(&a, &gpu.stream().unwrap()).unwrap_err();
    assert_error!(error, Error::Alignment { found: 40, required: 16, .. });
}
