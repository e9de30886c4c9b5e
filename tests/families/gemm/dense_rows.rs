//! Every row of the modules `dense` and `dense_csr`, forced by name: tile edges, split-K parts without stages, every
//! expression, C at any address.

use crate::support::rows::{exact_by_row, force, named, products_here};
use crate::support::runs::{plan_and_run, plan_of};
use crate::support::{Expression, Problem, Rng, assert_error, gpu, small, spread};
use einsparse::formats::convert::dense_to_csr;
use einsparse::formats::{CsrPattern, Dense, bf16, f16};
use einsparse::registry::{Dtype, Row, Scalar};
use einsparse::{Context, Error, Operand, Options, SparseTensor, Tensor};

/// (m, k, n): empty, one, edges of tiles, more stages than a ring holds.
const SHAPES: [[usize; 3]; 12] = [
    [0, 8, 8],
    [5, 0, 16],
    [1, 1, 1],
    [3, 7, 8],
    [63, 64, 64],
    [64, 65, 72],
    [65, 147, 136],
    [128, 512, 128],
    [129, 576, 257],
    [200, 129, 264],
    [257, 1000, 40],
    [70, 4700, 24],
];

const TEXT: &str = "C[m,n] = A[m,k] * B[k,n]";

fn rows(module: &str, dtype: Dtype) -> Vec<&'static Row> {
    products_here().filter(|row| row.module == module && row.dtype == dtype).collect()
}

fn pattern(m: usize, k: usize, seed: u64) -> CsrPattern {
    let mut rng = Rng(seed);
    let lens: Vec<usize> = (0..m).map(|_| rng.word() as usize % (k + 1)).collect();
    spread(&lens, k)
}

fn every_row<T: Scalar>(module: &str, dtype: Dtype) {
    let Some(gpu) = gpu() else { return };
    let expressions = Expression::all();
    let nan = T::from_f64(f64::NAN);
    let mut turn = 0;
    for (i, [m, k, n]) in SHAPES.into_iter().enumerate() {
        if small() && m * k * n > 4_000_000 {
            continue;
        }
        let problem = Problem::<T>::integers(pattern(m, k, i as u64 + 3), 7, n);
        let entries = problem.sparse("csr");
        let sparse = gpu.upload(&entries).unwrap();
        let a: Dense<T> = entries.to_dense().unwrap();
        let apart = |width: usize| width.next_multiple_of(8) + 8;
        let strided = |d: &Dense<T>| gpu.upload_strided(d, apart(d.shape()[1]), nan).unwrap();
        let (a, b) = (strided(&a), strided(&problem.b(n)));
        for row in rows(module, dtype) {
            let left = || match module {
                "dense" => Operand::from(&a),
                _ => (&sparse).into(),
            };
            // Two of the expressions, `=` and `+=`. Rows of C are aligned, and at any address.
            for leading in [apart(n), n + 3] {
                for _ in 0..2 {
                    let x = &expressions[turn % expressions.len()];
                    exact_by_row(&gpu, row, (&problem, x), (left(), &b), leading);
                    turn += 1;
                }
            }
            turn += 1;
        }
    }
}

#[test]
fn dense_rows_of_f16() {
    every_row::<f16>("dense", Dtype::F16);
}

#[test]
fn dense_rows_of_bf16() {
    every_row::<bf16>("dense", Dtype::Bf16);
}

#[test]
fn dense_csr_rows_of_f16() {
    every_row::<f16>("dense_csr", Dtype::F16);
}

#[test]
fn dense_csr_rows_of_bf16() {
    every_row::<bf16>("dense_csr", Dtype::Bf16);
}

/// Stages without entries between two of a row's entries, lists of many lengths, a full row among short ones.
#[test]
fn dense_csr_rows_of_uneven_matrices() {
    let Some(gpu) = gpu() else { return };
    let mut lens = vec![1; 70];
    lens[33] = 900;
    let patterns = [
        spread(&[2; 40], 4700),
        // Entries past the stages whose ends a warp loads at once, for any split of k.
        spread(&[40; 40], 16_000),
        spread(&[3, 5, 7, 0, 0, 11, 1, 40, 2, 64], 2400),
        spread(&lens, 900),
    ];
    let expressions = Expression::all();
    for pattern in patterns {
        let problem = Problem::<f16>::integers(pattern, 7, 72);
        let sparse = gpu.upload(problem.sparse("csr")).unwrap();
        let b = gpu.upload_dense(&problem.b(72)).unwrap();
        for row in rows("dense_csr", Dtype::F16) {
            exact_by_row(&gpu, row, (&problem, &expressions[0]), ((&sparse).into(), &b), 72);
        }
    }
}

/// All lists have the capacity of the longest one. Sixteen full rows among empty ones would take more memory than the
/// matrix justifies.
#[test]
fn dense_csr_rows_refuse_long_lists() {
    let Some(gpu) = gpu() else { return };
    if !gpu.is_cuda() {
        return;
    }
    let mut lens = vec![0; 4096];
    lens[64..80].fill(4096);
    let problem = Problem::<f16>::integers(spread(&lens, 4096), 7, 64);
    let sparse = gpu.upload(problem.sparse("csr")).unwrap();
    let b = gpu.upload_dense(&problem.b(64)).unwrap();
    let operands = [("A", Operand::from(&sparse)), ("B", (&b).into())];
    for row in rows("dense_csr", Dtype::F16) {
        let options = force(row);
        let plan = gpu.plan(TEXT).operands(&operands).options(&options);
        assert_error!(plan.build().unwrap_err(), Error::NoKernel { .. });
    }
    // Another kernel runs the expression.
    plan_of(&gpu, TEXT, &operands, &Options::default());
}

#[test]
fn dense_rows_of_tf32() {
    every_row::<f32>("dense", Dtype::Tf32);
}

/// Both operands are rounded to nearest in TF32, which has 10 bits of mantissa. The copy engine decides ties.
#[test]
fn dense_rows_round_to_tf32() {
    let Some(gpu) = gpu() else { return };
    let unit = f32::powi(2.0, -10);
    let mut cases = vec![(f32::INFINITY, f32::INFINITY), (f32::NAN, f32::NAN)];
    for (apart, rounded) in [(0.25, 0.0), (0.5, 1.0), (0.75, 1.0), (1.0, 1.0), (1.5, 2.0)] {
        let near = |x: f32| 1.0 + x * unit;
        cases.push((near(apart), near(rounded)));
        cases.push((-64.0 * near(apart), -64.0 * near(rounded)));
    }
    // The last case carries into the exponent.
    cases.push((2.0 - unit / 2.0, 2.0));
    for (value, rounded) in cases {
        for left in [true, false] {
            diagonal(&gpu, value, rounded, left);
        }
    }
}

/// Multiplies two matrices with constant diagonals, one value per operand, by every row.
fn diagonal(gpu: &Context, value: f32, rounded: f32, left: bool) {
    let (m, k, n) = (70, 40, 72);
    let on = |r: usize, c: usize, x: f32| if r % k == c { x } else { 0.0 };
    let [of_a, of_b] = if left { [value, 1.0] } else { [1.0, value] };
    let a = Dense::from_fn([m, k], |i| on(i[0], i[1], of_a)).unwrap();
    let b = Dense::from_fn([k, n], |i| on(i[1], i[0], of_b)).unwrap();
    let (a, b) = (gpu.upload_dense(&a).unwrap(), gpu.upload_dense(&b).unwrap());
    let operands = [("A", Operand::from(&a)), ("B", (&b).into())];
    for row in rows("dense", Dtype::Tf32) {
        let (_, c) = plan_and_run(gpu, TEXT, &operands, &force(row));
        let found = c.to_dense().unwrap();
        for (at, &found) in found.values().iter().enumerate() {
            let (r, j) = (at / n, at % n);
            let meets = r % k == j % k;
            // A tie is rounded up or, because the value below is even, down.
            let tie = meets
                && found == value.trunc()
                && (value - value.trunc()).abs() == value.trunc().abs() / 2048.0;
            // Infinity times a zero outside of the diagonal is NaN.
            if meets || value.is_finite() {
                let wanted = if meets { rounded } else { 0.0 };
                let same = found == wanted || tie || found.is_nan() && wanted.is_nan();
                assert!(same, "{}: {value} at C[{r},{j}] gives {found}, not {wanted}", row.name);
            }
        }
    }
}

/// Returns the f16 rows of both modules.
fn both() -> impl Iterator<Item = &'static Row> {
    let of = |module| rows(module, Dtype::F16);
    of("dense").into_iter().chain(of("dense_csr"))
}

/// Returns A in the format that the row's module reads.
fn left<'a>(row: &Row, dense: &'a Tensor<f16>, entries: &'a SparseTensor<f16>) -> Operand<'a, f16> {
    match row.module {
        "dense" => dense.into(),
        _ => entries.into(),
    }
}

/// Split-K parts are added in order: equal bits in every run, whatever runs before.
#[test]
fn dense_rows_repeat_their_bits() {
    let Some(gpu) = gpu() else { return };
    let (m, k, n) = (512, 2048, 64);
    let mut rng = Rng(5);
    let a = Dense::new([m, k], rng.units::<f16>(m * k)).unwrap();
    let b = Dense::new([k, n], rng.units::<f16>(k * n)).unwrap();
    let entries = Problem::<f16>::integers(spread(&vec![k / 3; m], k), 7, n);
    let entries = gpu.upload(entries.sparse("csr")).unwrap();
    let (a, b) = (gpu.upload_dense(&a).unwrap(), gpu.upload_dense(&b).unwrap());
    for row in both() {
        let operands = [("A", left(row, &a, &entries)), ("B", (&b).into())];
        let plan = plan_of(&gpu, TEXT, &operands, &named(row.name));
        let stream = gpu.stream().unwrap();
        // Launches overlap: each starts before the preceding one ends.
        let mut outputs: Vec<_> = (0..20).map(|_| gpu.zeros::<f16>(&[m, n]).unwrap()).collect();
        for c in &mut outputs {
            plan.run(&operands, c, &stream).unwrap();
        }
        stream.synchronize().unwrap();
        let bits = |c: &Tensor<f16>| -> Vec<u16> {
            let stored = c.to_storage().unwrap();
            stored.iter().map(|x| x.to_bits()).collect()
        };
        let all: Vec<_> = outputs.iter().map(bits).collect();
        assert!(all.iter().all(|bits| *bits == all[0]), "{}", row.name);
    }
}

/// A product whose operand is written by the preceding launch.
#[test]
fn dense_products_follow_each_other() {
    let Some(gpu) = gpu() else { return };
    let n = 256;
    let step =
        Dense::from_fn([n, n], |i| f16::from_f64(f64::from(u8::from((i[0] + 1) % n == i[1]))));
    let step = step.unwrap();
    let entries = gpu.upload(dense_to_csr(&step).unwrap()).unwrap();
    let step = gpu.upload_dense(&step).unwrap();
    let host = Dense::from_fn([n, 64], |i| f16::from_f64((i[0] * 3 + i[1]) as f64 % 97.0)).unwrap();
    for row in both() {
        let left = || left(row, &step, &entries);
        let mut states = [gpu.upload_dense(&host).unwrap(), gpu.zeros::<f16>(&[n, 64]).unwrap()];
        let stream = gpu.stream().unwrap();
        let operands = [("A", left()), ("B", (&states[0]).into())];
        let plan = plan_of(&gpu, TEXT, &operands, &named(row.name));
        for _ in 0..40 {
            let [from, to] = &mut states;
            let operands = [("A", left()), ("B", (&*from).into())];
            plan.run(&operands, to, &stream).unwrap();
            states.swap(0, 1);
        }
        stream.synchronize().unwrap();
        let found = states[0].to_dense().unwrap();
        for r in 0..n {
            for j in 0..64 {
                let wanted = host.values()[(r + 40) % n * 64 + j];
                assert_eq!(found.values()[r * 64 + j], wanted, "{} {r} {j}", row.name);
            }
        }
    }
}
