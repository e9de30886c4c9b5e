//! Detection against a plain count over the matrix, on the CPU and on a GPU.

use crate::support::assert_error;
use std::collections::BTreeSet;

use einsparse::dynamic::{DetectOptions, Detector};
use einsparse::formats::convert::EntryChoice;
use einsparse::formats::{Dense, E4m3, bf16, f16};
use einsparse::{Context, Determinism, Error, Scalar};

use crate::support::{Rng, gpu, on_cpu, on_gpu};

const MICRO: [(usize, usize); 6] = [(128, 1), (64, 1), (32, 1), (16, 16), (1, 32), (1, 64)];
/// A kernel processes regions of 128 to 8192 columns. Shapes have one region, several, and parts of one.
const SHAPES: [[usize; 2]; 9] = [
    [0, 64],
    [64, 0],
    [1, 1],
    [128, 128],
    [129, 257],
    [300, 1032],
    [31, 5000],
    [1000, 70],
    [513, 2048],
];

/// Returns the lists by definition: the micro-tiles that have an element that counts.
fn wanted(
    [rows, columns]: [usize; 2],
    (h, w): (usize, usize),
    counts: impl Fn(usize, usize) -> bool,
) -> Vec<Vec<u32>> {
    let (panels, _) = if h > 1 { (rows.div_ceil(h), columns) } else { (columns.div_ceil(w), rows) };
    let mut lists = vec![BTreeSet::new(); panels];
    for row in 0..rows {
        for column in (0..columns).filter(|&column| counts(row, column)) {
            let (panel, position) = if h > 1 { (row / h, column / w) } else { (column / w, row) };
            lists[panel].insert(position as u32);
        }
    }
    lists.into_iter().map(|l| l.into_iter().collect()).collect()
}

/// Patterns: nothing, everything, one element in the last corner, a tenth, and whole columns and rows.
fn patterns([rows, columns]: [usize; 2]) -> Vec<(&'static str, Vec<bool>)> {
    let of = |f: &mut dyn FnMut(usize, usize) -> bool| {
        let cells = (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c)));
        cells.map(|(r, c)| f(r, c)).collect()
    };
    let mut rng = Rng(7);
    vec![
        ("zero", of(&mut |_, _| false)),
        ("full", of(&mut |_, _| true)),
        ("one", of(&mut |r, c| (r + 1, c + 1) == (rows, columns))),
        ("scattered", of(&mut |_, _| rng.word() % 1000 < 7)),
        ("lines", of(&mut |r, c| r % 67 == 3 || c % 131 == 5)),
    ]
}

/// Elements of a type that count as nonzero, and that do not.
trait Kinds: Scalar {
    fn full(word: u64) -> Self;
    fn empty(word: u64) -> Self;
}

macro_rules! kinds {
    ($($t:ty: $full:expr, $empty:expr;)*) => {$(
        impl Kinds for $t {
            fn full(word: u64) -> Self {
                $full[word as usize % $full.len()]
            }
            fn empty(word: u64) -> Self {
                $empty[word as usize % $empty.len()]
            }
        }
    )*};
}

kinds! {
    f32: [1.0f32, -2.5, f32::NAN, f32::INFINITY, 1e-45, f32::MIN_POSITIVE], [0.0f32, -0.0];
    f16: [f16::ONE, f16::NEG_ONE, f16::NAN, f16::NEG_INFINITY, f16::from_bits(1), f16::from_bits(0x8001)],
        [f16::ZERO, f16::NEG_ZERO];
    bf16: [bf16::ONE, bf16::NEG_ONE, bf16::NAN, bf16::INFINITY, bf16::from_bits(1)], [bf16::ZERO, bf16::NEG_ZERO];
    i8: [1i8, -1, -128, 127, 64, 2], [0i8];
}

fn detected<T: Scalar>(
    context: &Context,
    dense: &Dense<T>,
    leading: usize,
    micro: (usize, usize),
    options: &DetectOptions,
) -> Vec<Vec<u32>> {
    let shape = [dense.shape()[0], dense.shape()[1]];
    let gap = T::ONE;
    let matrix = context.upload_strided(dense, leading, gap).unwrap();
    let detector = Detector::<T>::new(context, shape, micro, &options.clone()).unwrap();
    let mut index = detector.index().unwrap();
    let stream = context.stream().unwrap();
    // Runs twice: the first run must not affect the second.
    for _ in 0..2 {
        detector.run(&matrix, &mut index, &stream).unwrap();
    }
    stream.synchronize().unwrap();
    index.to_lists().unwrap()
}

fn detects<T: Kinds>(context: &Context) {
    for shape in SHAPES {
        for (name, pattern) in patterns(shape) {
            let mut rng = Rng(3);
            let values = pattern.iter().map(|&full| match full {
                true => T::full(rng.word()),
                false => T::empty(rng.word()),
            });
            let dense = Dense::new(shape.to_vec(), values.collect()).unwrap();
            for micro in MICRO {
                let lists = wanted(shape, micro, |r, c| pattern[r * shape[1] + c]);
                for leading in [shape[1], shape[1].next_multiple_of(16) + 16] {
                    let what = (T::NAME, shape, name, micro, leading);
                    let strict = DetectOptions::default();
                    let found = detected(context, &dense, leading, micro, &strict);
                    assert!(found == lists, "{what:?}");
                    let relaxed = DetectOptions { determinism: Determinism::Relaxed, ..strict };
                    let mut found = detected(context, &dense, leading, micro, &relaxed);
                    found.iter_mut().for_each(|list| list.sort_unstable());
                    assert!(found == lists, "{what:?}, any order");
                }
            }
        }
    }
}

fn detects_bits(context: &Context) {
    for shape in SHAPES {
        let words = [shape[0], shape[1].div_ceil(32)];
        for (name, pattern) in patterns(shape) {
            let bits = |i: &[usize]| {
                // Bits past the last column are set and must be ignored.
                let set = |b: &usize| {
                    let column = 32 * i[1] + b;
                    column >= shape[1] || pattern[i[0] * shape[1] + column]
                };
                (0..32).filter(set).fold(0u32, |word, b| word | 1 << b) as i32
            };
            let dense = Dense::from_fn(words.to_vec(), bits).unwrap();
            let options = DetectOptions { bits: Some(shape[1]), ..DetectOptions::default() };
            for micro in MICRO {
                let lists = wanted(shape, micro, |r, c| pattern[r * shape[1] + c]);
                for leading in [words[1], words[1].next_multiple_of(4) + 4] {
                    let found = detected(context, &dense, leading, micro, &options);
                    assert!(found == lists, "{:?}", (shape, name, micro, leading));
                }
            }
        }
    }
}

/// Thresholds that an element type represents exactly, and that it does not.
fn detects_above<T: Scalar>(context: &Context) {
    let shape = [70, 300];
    let mut rng = Rng(11);
    let values = (0..shape[0] * shape[1])
        .map(|_| T::from_f64((rng.word() % 2001) as f64 / 1000.0 - 1.0))
        .collect();
    let dense = Dense::new(shape.to_vec(), values).unwrap();
    for threshold in [0.5, 0.999, 0.996_1, 1e-30, 7.0, f64::INFINITY] {
        let options = DetectOptions { threshold, ..DetectOptions::default() };
        for micro in MICRO {
            let counts =
                |r: usize, c: usize| dense.values()[r * shape[1] + c].to_f64().abs() > threshold;
            let lists = wanted(shape, micro, counts);
            let found = detected(context, &dense, shape[1], micro, &options);
            assert!(found == lists, "{}: {threshold} {micro:?}", T::NAME);
        }
    }
}

fn rows(context: &Context) {
    let stream = context.stream().unwrap();
    let distance = 130;
    let lengths: Vec<i32> = (0..600).map(|i| (i * 37 % 150) - 10).collect();
    let tensor = Dense::new([600], lengths.clone()).unwrap();
    let tensor = context.upload_dense(&tensor).unwrap();
    let detector = Detector::lengths(context, 600, distance).unwrap();
    let mut index = detector.index().unwrap();
    detector.run(&tensor, &mut index, &stream).unwrap();
    stream.synchronize().unwrap();
    let of = |(i, &l): (usize, &i32)| {
        let first = i * distance;
        (first..first + (l.max(0) as usize).min(distance)).map(|row| row as u32)
    };
    let wanted: Vec<u32> = lengths.iter().enumerate().flat_map(of).collect();
    assert_eq!(index.to_lists().unwrap(), [wanted]);

    for (count, experts) in [(5000, 64), (1024, 1), (7, 1024), (3000, 300)] {
        let mut rng = Rng(5);
        let choices: Vec<i32> =
            (0..count).map(|_| (rng.word() % (experts as u64 + 2)) as i32 - 1).collect();
        let tensor = Dense::new([count], choices.clone()).unwrap();
        let tensor = context.upload_dense(&tensor).unwrap();
        let detector = Detector::choices(context, count, experts).unwrap();
        let mut index = detector.index().unwrap();
        for _ in 0..2 {
            detector.run(&tensor, &mut index, &stream).unwrap();
        }
        stream.synchronize().unwrap();
        let mut found = index.to_lists().unwrap();
        found.iter_mut().for_each(|list| list.sort_unstable());
        let wanted = (0..experts as i32).map(|expert| {
            let own = (0..count as u32).filter(|&i| choices[i as usize] == expert);
            own.collect::<Vec<u32>>()
        });
        assert!(found == wanted.collect::<Vec<_>>(), "{count} of {experts}");
    }
}

#[test]
fn detection_on_the_cpu() {
    on_cpu(&[detects::<f32>, detects::<i8>, detects_bits, detects_above::<f16>, rows]);
}

#[test]
fn detection_of_elements_on_the_gpu() {
    on_gpu(&[detects::<f32>, detects::<f16>, detects::<bf16>]);
}

#[test]
fn detection_of_masks_on_the_gpu() {
    on_gpu(&[detects::<i8>, detects_bits]);
}

#[test]
fn detection_above_thresholds_on_the_gpu() {
    on_gpu(&[detects_above::<f32>, detects_above::<f16>, detects_above::<bf16>]);
}

#[test]
fn detection_of_rows_on_the_gpu() {
    on_gpu(&[rows]);
}

#[test]
fn detection_refuses_what_it_cannot() {
    let cpu = Context::unchecked_cpu();
    let new = |micro, options: DetectOptions| {
        Detector::<f32>::new(&cpu, [8, 8], micro, &options).unwrap_err()
    };
    let options = DetectOptions::default;
    for (error, said) in [
        (new((0, 1), options()), "0 x 1"),
        (new((32, 1), DetectOptions { threshold: -1.0, ..options() }), "-1"),
    ] {
        assert_error!(error, Error::OutOfRange { value, .. } if value == said);
    }
    let bits = new((32, 1), DetectOptions { bits: Some(8), ..options() });
    assert_error!(bits, Error::ElementType { expected, .. } if expected == "int32");
    let none = Detector::<E4m3>::new(&cpu, [8, 8], (32, 1), &options()).unwrap_err();
    assert_error!(none, Error::NoKernel { .. });
    let detector = Detector::<f32>::new(&cpu, [8, 8], (32, 1), &options()).unwrap();
    let other = cpu.zeros::<f32>(&[8, 9]).unwrap();
    let mut index = detector.index().unwrap();
    let stream = cpu.stream().unwrap();
    let error = detector.run(&other, &mut index, &stream).unwrap_err();
    assert_error!(error, Error::Shape { .. });
}

/// Look-back waits for thread blocks of lower numbers, so GPUs must start thread blocks in that order. The test
/// launches far more than can run at once, next to another stream's. In another order, the wait would end the launch.
#[test]
fn thread_blocks_start_in_order() {
    let Some(gpu) = gpu() else { return };
    let [rows, columns] = if crate::support::small() { [256, 8192] } else { [4096, 32_768] };
    let matrix =
        Dense::from_fn([rows, columns], |i| f16::from_f32(f32::from(u8::from(i[1] % 3 == 0))));
    let matrix = gpu.upload_dense(&matrix.unwrap()).unwrap();
    let options = DetectOptions { determinism: Determinism::Strict, ..DetectOptions::default() };
    let detectors = [(32, 1), (1, 32)]
        .map(|micro| Detector::<f16>::new(&gpu, [rows, columns], micro, &options.clone()).unwrap());
    let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
    let mut found = detectors.each_ref().map(|d| d.index().unwrap());
    for _ in 0..10 {
        for ((detector, index), stream) in detectors.iter().zip(&mut found).zip(&streams) {
            detector.run(&matrix, index, stream).unwrap();
        }
        let csr = gpu.csr_from_dense(&matrix, EntryChoice::NonZero).unwrap();
        let host = csr.to_host().unwrap();
        assert_eq!(host.slots(), rows * columns.div_ceil(3));
    }
    streams.iter().for_each(|s| s.synchronize().unwrap());
    let down = found[0].to_lists().unwrap();
    let thirds: Vec<u32> = (0..columns as u32).step_by(3).collect();
    assert!(down.iter().all(|list| *list == thirds));
    let across = found[1].to_lists().unwrap();
    let every: Vec<u32> = (0..rows as u32).collect();
    assert!(across.iter().all(|list| *list == every));
}
