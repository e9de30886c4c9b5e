//! Softmax over rows and its gradient against a reference in f64. Cases: rows around every length class, masks, NaN and
//! Inf, in place, between guard bands, captured. Gradients are also compared with finite differences. The CPU runs the
//! same suite.

mod heads;

use crate::support::{Rng, gpu, gpu_alone, small, spread};
use einsparse::formats::{AnySparse, Csr, CsrPattern, bf16, f16};
use einsparse::ops::{SoftmaxOptions, SparseSoftmax};
use einsparse::raw::{DeviceMemory, RawSoftmax};
use einsparse::{Context, Graph, Scalar, SparseTensor};
use heads::{heads, many_rows, short_rows};

const INF: f64 = f64::INFINITY;
const COLUMNS: usize = 100_100;

/// Returns lengths around the capacities of lanes and vectors, in 16 and 32 bits, after every alignment; and far larger
/// ones.
fn lengths() -> Vec<usize> {
    let mut all: Vec<usize> = (0..10).collect();
    let most = if small() { 512 } else { 4096 };
    for edge in [16, 32, 64, 128, 256, 512, 1024, 2048, 4096] {
        let around = [edge - 8, edge - 7, edge - 3, edge - 1, edge, edge + 1];
        all.extend(around.into_iter().filter(|_| edge <= most));
    }
    let long: &[usize] = if small() { &[4100, 0] } else { &[8193, 0, 100_000] };
    all.extend(long);
    all
}

/// Whether the masks keep the entry in this row and column.
fn is_live(o: &SoftmaxOptions, (row, rows): (usize, usize), column: u32) -> bool {
    let below = o.causal.is_none_or(|c| i64::from(column) <= row as i64 + c);
    let inside = o.lengths.as_ref().is_none_or(|l| {
        let of_row = l[row * l.len() / rows];
        (column as usize) < of_row
    });
    below && inside
}

/// Reference of one row: `scores` of the entries that masks keep.
fn reference(o: &SoftmaxOptions, scores: &[Option<f64>]) -> Vec<f64> {
    let scaled: Vec<f64> = scores.iter().flatten().map(|s| s * o.scale).collect();
    let above = |a: f64, &b: &f64| if b.is_nan() || a < b { b } else { a };
    let max = scaled.iter().fold(-INF, above);
    let masked = if o.log { -INF } else { 0.0 };
    let sum: f64 = scaled.iter().map(|s| (s - max).exp()).sum();
    let one = |s: &Option<f64>| match s {
        Some(s) if max > -INF || max.is_nan() => {
            let difference = s * o.scale - max;
            if o.log { difference - sum.ln() } else { difference.exp() / sum }
        }
        _ => masked,
    };
    scores.iter().map(one).collect()
}

/// Returns one row's gradient, and for each entry the magnitudes that bound its rounding errors.
fn reference_gradient(o: &SoftmaxOptions, y: &[f64], dy: &[Option<f64>]) -> Vec<(f64, f64)> {
    let weight = |y: f64| if o.log { 1.0 } else { y };
    let pairs = || y.iter().zip(dy).filter_map(|(y, dy)| Some((*y, (*dy)?)));
    let sum: f64 = pairs().map(|(y, dy)| weight(y) * dy).sum();
    let size: f64 = pairs().map(|(y, dy)| (weight(y) * dy).abs()).sum();
    let one = |(&y, dy): (&f64, &Option<f64>)| match dy {
        None => (0.0, 0.0),
        Some(dy) if o.log => {
            let p = y.exp();
            (o.scale * (dy - p * sum), o.scale.abs() * (dy.abs() + p * size))
        }
        Some(dy) => (o.scale * y * (dy - sum), (o.scale * y).abs() * (dy.abs() + size)),
    };
    y.iter().zip(dy).map(one).collect()
}

/// Returns half a unit in the last place of an element type: relative, and its absolute minimum.
fn roundoff<T: Scalar>() -> (f64, f64) {
    match T::NAME {
        "f16" => (0.5f64.powi(11), 0.5f64.powi(25)),
        "bf16" => (0.5f64.powi(8), 0.5f64.powi(134)),
        _ => (0.5f64.powi(24), 1e-37),
    }
}

fn assert_near<T: Scalar>(what: &dyn std::fmt::Debug, found: T, (wanted, size): (f64, f64)) {
    let found = found.to_f64();
    let (relative, least) = roundoff::<T>();
    let near = wanted.is_finite()
        && (found - wanted).abs() <= relative * wanted.abs() + least + 4e-6 * size;
    let same = found == wanted || (found.is_nan() && wanted.is_nan());
    assert!(near || same, "{what:?}: {found}, expected {wanted}");
}

fn upload<T: Scalar>(context: &Context, host: &AnySparse<T>, values: &[T]) -> SparseTensor<T> {
    let mut host = host.clone();
    host.values_mut().copy_from_slice(values);
    context.upload(host).unwrap()
}

fn values<T: Scalar>(tensor: &SparseTensor<T>) -> Vec<T> {
    tensor.to_host().unwrap().values().to_vec()
}

/// Runs forward and backward on one CSR matrix, also in place, and compares every row with the reference.
fn check<T: Scalar>(context: &Context, pattern: &CsrPattern, scores: &[T], o: &SoftmaxOptions) {
    let rows = pattern.rows();
    let host = AnySparse::from(Csr::new(pattern.clone(), scores.to_vec()).unwrap());
    let poison = vec![T::from_f64(77.0); scores.len()];
    let given = upload(context, &host, scores);
    let mut out = upload(context, &host, &poison);
    let softmax = SparseSoftmax::new(context, &given, &o.clone()).unwrap();
    let stream = context.stream().unwrap();
    softmax.forward(&given, &mut out, &stream).unwrap();
    let y = values(&out);
    let live = |row: usize, p: usize, v: T| {
        is_live(o, (row, rows), pattern.columns()[p]).then(|| v.to_f64())
    };
    for row in 0..rows {
        let range = pattern.row(row);
        let all: Vec<_> = range.clone().map(|p| live(row, p, scores[p])).collect();
        for (p, wanted) in range.clone().zip(reference(o, &all)) {
            let what = (T::NAME, o, row, range.len(), p - range.start);
            let size = if o.log { 1.0 + wanted.abs() } else { wanted.abs() };
            assert_near(&what, y[p], (wanted, size));
        }
    }
    let dy = Rng(5).units::<T>(scores.len());
    let mut upstream = upload(context, &host, &dy);
    let mut ds = upload(context, &host, &poison);
    softmax.backward(&out, &upstream, &mut ds, &stream).unwrap();
    let ds = values(&ds);
    for row in 0..rows {
        let range = pattern.row(row);
        let from: Vec<_> = range.clone().map(|p| live(row, p, dy[p])).collect();
        let y: Vec<f64> = y[range.clone()].iter().map(|y| y.to_f64()).collect();
        let wanted = reference_gradient(o, &y, &from);
        for (p, wanted) in range.clone().zip(wanted) {
            let what = (T::NAME, "gradient", o, row, range.len(), p - range.start);
            assert_near(&what, ds[p], wanted);
        }
    }
    softmax.backward_in_place(&out, &mut upstream, &stream).unwrap();
    let mut again = given;
    softmax.forward_in_place(&mut again, &stream).unwrap();
    assert!(same_bits(&values(&again), &y), "in place, {o:?}");
    assert!(same_bits(&values(&upstream), &ds), "gradient in place, {o:?}");
}

fn same_bits<T: Scalar>(a: &[T], b: &[T]) -> bool {
    bytemuck::cast_slice::<T, u8>(a) == bytemuck::cast_slice::<T, u8>(b)
}

/// Returns options with and without scale, logarithm and masks.
fn options(rows: usize) -> Vec<SoftmaxOptions> {
    let plain = SoftmaxOptions::default();
    let masked = SoftmaxOptions { scale: 0.125, causal: Some(COLUMNS as i64 / 3), ..plain.clone() };
    let lengths = (0..rows).map(|r| r * 7919 % COLUMNS).collect();
    vec![
        plain.clone(),
        SoftmaxOptions { scale: -2.5, log: true, ..plain.clone() },
        masked.clone(),
        SoftmaxOptions { log: true, lengths: Some(vec![60_000]), ..masked },
        SoftmaxOptions { lengths: Some(lengths), ..plain },
    ]
}

fn every_length<T: Scalar>(context: &Context) {
    let pattern = spread(&lengths(), COLUMNS);
    let scores: Vec<T> = (Rng(3).units::<f64>(pattern.columns().len()).iter())
        .map(|x| T::from_f64(8.0 * x))
        .collect();
    for o in options(pattern.rows()) {
        check(context, &pattern, &scores, &o);
    }
}

fn planted<T: Scalar>(context: &Context) {
    let mut scores: Vec<f64> = Vec::new();
    let mut lens = Vec::new();
    for len in [1usize, 3, 40, 100, 700, if small() { 40 } else { 3000 }, 5000] {
        for plant in [f64::NAN, INF, -INF] {
            let row = scores.len();
            scores.extend((0..len).map(|i| (i % 7) as f64));
            scores[row + len / 2] = plant;
            lens.push(len);
        }
        let nothing = scores.len();
        scores.extend(vec![-INF; len * 2]);
        // The mask hides the last of these.
        scores[nothing + len * 2 - 1] = f64::NAN;
        lens.extend([len, len]);
    }
    let pattern = spread(&lens, 5000);
    let scores: Vec<T> = scores.iter().map(|&x| T::from_f64(x)).collect();
    for log in [false, true] {
        for causal in [None, Some(2400)] {
            let o = SoftmaxOptions { log, causal, ..Default::default() };
            check(context, &pattern, &scores, &o);
        }
    }
}

macro_rules! on_both {
    ($($name:ident, $cpu:ident: $check:ident;)+) => {$(
        #[test]
        fn $name() {
            let Some(gpu) = gpu() else { return };
            $check::<f32>(&gpu);
            $check::<f16>(&gpu);
            $check::<bf16>(&gpu);
        }

        #[test]
        fn $cpu() {
            $check::<f32>(&Context::unchecked_cpu());
            $check::<f64>(&Context::unchecked_cpu());
            $check::<f16>(&Context::unchecked_cpu());
        }
    )+};
}

on_both! {
    rows_of_every_length_on_the_gpu, rows_of_every_length_on_the_cpu: every_length;
    nan_and_inf_on_the_gpu, nan_and_inf_on_the_cpu: planted;
    short_rows_on_the_gpu, short_rows_on_the_cpu: short_rows;
    heads_on_the_gpu, heads_on_the_cpu: heads;
    many_rows_on_the_gpu, many_rows_on_the_cpu: many_rows;
    formats_on_the_gpu, formats_on_the_cpu: formats;
}

/// Every format of unstructured nonzeros in row order gives the same values; padding is unchanged.
fn formats<T: Scalar>(context: &Context) {
    let lens: Vec<usize> = (0..40).map(|r| r * 7 % 33).collect();
    let pattern = spread(&lens, 50);
    let scores = Rng(4).units::<T>(pattern.columns().len());
    let csr = AnySparse::from(Csr::new(pattern, scores).unwrap());
    let stream = context.stream().unwrap();
    let run = |format: &str| {
        let host = csr.convert(format.parse().unwrap()).unwrap();
        let mut tensor = context.upload(host).unwrap();
        let softmax = SparseSoftmax::new(context, &tensor, &SoftmaxOptions::default()).unwrap();
        softmax.forward_in_place(&mut tensor, &stream).unwrap();
        tensor.to_host().unwrap()
    };
    let wanted = run("csr").to_dense().unwrap();
    for format in ["coo", "ell", "groupcoo:4", "groupcoo:3"] {
        let found = run(format);
        let near = |(a, b): (&T, &T)| (a.to_f64() - b.to_f64()).abs() <= 1e-6 + roundoff::<T>().0;
        let dense = found.to_dense().unwrap();
        assert!(dense.values().iter().zip(wanted.values()).all(near), "{format}");
        let padding =
            found.values().len() - found.values().iter().filter(|v| **v != T::ZERO).count();
        assert_eq!(padding, found.values().len() - csr.values().len(), "{format}");
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    const STEP: f64 = 1e-5;
    let context = Context::unchecked_cpu();
    let pattern = spread(&[3, 0, 1, 6, 4], 8);
    let n = pattern.columns().len();
    let (scores, weights) = (Rng(1).units::<f64>(n), Rng(2).units::<f64>(n));
    let host = AnySparse::from(Csr::new(pattern, scores.clone()).unwrap());
    let stream = context.stream().unwrap();
    for log in [false, true] {
        let causal = (!log).then_some(2);
        let o = SoftmaxOptions { scale: 0.7, log, causal, ..SoftmaxOptions::default() };
        let tensor = upload(&context, &host, &scores);
        let softmax = SparseSoftmax::new(&context, &tensor, &o).unwrap();
        let loss = |scores: &[f64]| -> f64 {
            let mut y = upload(&context, &host, scores);
            softmax.forward_in_place(&mut y, &stream).unwrap();
            values(&y).iter().zip(&weights).map(|(y, w)| y * w).sum()
        };
        let mut y = upload(&context, &host, &scores);
        softmax.forward(&tensor, &mut y, &stream).unwrap();
        let mut gradient = upload(&context, &host, &weights);
        softmax.backward_in_place(&y, &mut gradient, &stream).unwrap();
        for (i, found) in values(&gradient).into_iter().enumerate() {
            let at = |shift: f64| {
                let mut moved = scores.clone();
                moved[i] += shift;
                loss(&moved)
            };
            let wanted = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            assert!((found - wanted).abs() < 1e-8, "{log} {i}: {found}, expected {wanted}");
        }
    }
}

#[test]
fn captured_and_between_guard_bands() {
    const BAND: usize = 64;
    let Some(gpu) = gpu_alone() else { return };
    let pattern = spread(&[5, 4101, 0, 70, 600, 3], 5000);
    let n = pattern.columns().len();
    let scores = Rng(6).units::<f32>(n);
    let tensor = gpu.upload(Csr::new(pattern, scores).unwrap()).unwrap();
    let mut wanted = gpu.upload(tensor.to_host().unwrap()).unwrap();
    let softmax = SparseSoftmax::new(&gpu, &tensor, &SoftmaxOptions::default()).unwrap();
    let stream = gpu.stream().unwrap();
    softmax.forward(&tensor, &mut wanted, &stream).unwrap();
    let context = gpu.device().unwrap().context();
    let guarded = vec![77.0f32; n + 2 * BAND];
    let memory = DeviceMemory::from_slice(context, &guarded, stream.raw()).unwrap();
    let raw = RawSoftmax::default()
        .input(tensor.values_address().unwrap())
        .output(memory.address() + BAND as u64 * 4);
    // SAFETY: the values are those of the planned pattern, as many follow the first band, and all live until the wait.
    let mut graph = Graph::capture(stream.raw(), |s| unsafe { softmax.run_raw(&raw, s) }).unwrap();
    for _ in 0..3 {
        // SAFETY: as for the capture.
        unsafe { graph.launch(stream.raw()) }.unwrap();
    }
    stream.synchronize().unwrap();
    let mut found = guarded.clone();
    memory.read(&mut found, stream.raw()).unwrap();
    assert!(same_bits(&found[BAND..BAND + n], &values(&wanted)));
    assert!(found[..BAND].iter().chain(&found[BAND + n..]).all(|&x| x == 77.0));
}
