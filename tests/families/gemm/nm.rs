//! N:M: every row of the family forced by name, over ragged shapes, modes and epilogues, exact on integers. NaN in
//! columns that no slot selects has no effect, and every run returns equal bits. The CPU executor runs the same suite.

use crate::support::bounds::assert_gelu;
use crate::support::dense::{assert_exact, integers};
use crate::support::einsum::{Given, agrees, apart};
use crate::support::rows::{
    as_on_hopper, exact_by_row, force, product_by_row, products_here, rows_repeat,
};
use crate::support::runs::output_of;
use crate::support::{Expression, Problem, Rng, WIDEST, gpu, on_both, on_gpu, small, stored};
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, bf16, f16};
use einsparse::registry::{Dtype, Row, Scalar, WalkKind};
use einsparse::{Context, Operand};

/// Rows and columns: around a group, a word of positions, a stage, 64 rows, a tile, and more stages than are in flight.
const SHAPES: [[usize; 2]; 9] =
    [[0, 8], [3, 0], [1, 1], [5, 31], [64, 64], [129, 65], [257, 97], [300, 1000], [513, 640]];
const WIDTHS: [usize; 6] = [1, 8, 129, 192, 200, 264];

/// Returns at most two of every four columns, at random positions. With `full`, every group has two.
pub(super) fn two_of_four([rows, cols]: [usize; 2], full: bool, seed: u64) -> CsrPattern {
    let mut rng = Rng(seed);
    let (mut offsets, mut columns) = (vec![0], Vec::new());
    for _ in 0..rows {
        for group in (0..cols).step_by(4) {
            let word = rng.word();
            let (first, second) = (word % 4, (word % 4 + 1 + word / 4 % 3) % 4);
            let count = if full { 2 } else { word / 16 % 3 };
            let mut places = [first.min(second), first.max(second)];
            if count == 1 {
                places[0] = 4;
            }
            let inside = |place: &u64| *place < 4 && group + (*place as usize) < cols;
            let kept = places.into_iter().filter(|place| count > 0 && inside(place));
            columns.extend(kept.map(|place| (group as u64 + place) as u32));
        }
        offsets.push(columns.len() as u32);
    }
    CsrPattern::new(rows, cols, offsets, columns).unwrap()
}

fn rows_of(dtype: Dtype) -> impl Iterator<Item = &'static Row> {
    products_here().filter(move |row| row.walk == WalkKind::Nm && row.dtype == dtype)
}

/// Runs one expression on one problem, into rows with an aligned row stride or an odd one.
fn run<T: Scalar>(
    context: &Context,
    row: &Row,
    (problem, x): (&Problem<T>, &Expression),
    n: usize,
    odd: bool,
) {
    let a = context.upload(problem.sparse("nm:2:4")).unwrap();
    let aligned = n.next_multiple_of(16) + 16;
    let nan = T::from_f64(f64::NAN);
    let b = context.upload_strided(&problem.b(n), aligned, nan).unwrap();
    let leading = if odd { n + 3 } else { aligned };
    exact_by_row(context, row, (problem, x), ((&a).into(), &b), leading);
}

fn every_row<T: Scalar>(context: &Context) {
    let expressions = Expression::all();
    for row in rows_of(T::DTYPE) {
        let mut turn = 0;
        for shape in SHAPES {
            let pattern = two_of_four(shape, false, 3);
            let problem = Problem::<T>::integers(pattern, 7, WIDEST);
            for n in WIDTHS {
                for _ in 0..if small() { 1 } else { 2 } {
                    let x = expressions[turn % expressions.len()];
                    run(context, row, (&problem, &x), n, turn % 3 == 0);
                    turn += 1;
                }
            }
        }
        assert!(small() || turn >= 2 * expressions.len());
    }
}

on_both! {
    nm_is_exact: cpu [every_row::<f16>, every_row::<bf16>],
        gpu [every_row::<f16>, every_row::<bf16>];
}

/// A NaN in B reaches the rows that have an entry there, and no row whose slots are all elsewhere.
fn nan_stays<T: Scalar>(context: &Context) {
    let n = 64;
    let pattern = two_of_four([200, 100], true, 5);
    let problem = Problem::<T>::integers(pattern.clone(), 9, n);
    let ones = vec![T::from_f64(1.0); pattern.columns().len()];
    let a = stored(Csr::new(pattern.clone(), ones).unwrap(), "nm:2:4");
    for row in rows_of(T::DTYPE) {
        let clean = product_by_row(context, row, &a, &problem.b(n));
        for poisoned in [0, 33, 66, 99] {
            let mut b = problem.b(n);
            b.values_mut()[poisoned * n..][..n].fill(T::from_f64(f64::NAN));
            let c = product_by_row(context, row, &a, &b);
            for r in 0..200 {
                let owns = pattern.columns()[pattern.row(r)].contains(&(poisoned as u32));
                let line = r * n..(r + 1) * n;
                let reached = c[line.clone()].iter().all(|x| x.to_f64().is_nan());
                let right = if owns { reached } else { c[line.clone()] == clean[line] };
                assert!(right, "{}: NaN in row {poisoned} of B, row {r}", row.name);
            }
        }
    }
}

on_both! {
    nan_reaches_its_rows_only: cpu [nan_stays::<f16>], gpu [nan_stays::<f16>, nan_stays::<bf16>];
}

/// Random values: within rounding of the exact sum, and equal bits in every run.
fn repeats<T: Scalar>(context: &Context) {
    let pattern = two_of_four([700, 1100], true, 11);
    let rows: Vec<_> = rows_of(T::DTYPE).map(|row| (row, "nm:2:4")).collect();
    rows_repeat::<T>(context, &rows, (pattern, Rng(13)), 328);
}

#[test]
fn nm_repeats_bit_for_bit_on_the_gpu() {
    on_gpu(&[repeats::<f16>, repeats::<bf16>]);
}

/// `gelu(A * B)` with a diagonal A, within the rounding of the output.
#[test]
fn nm_with_gelu_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let n = 64;
    let pattern = CsrPattern::new(n, n, (0..=n as u32).collect(), (0..n as u32).collect());
    let ones = vec![f16::from_f64(1.0); n];
    let a = stored(Csr::new(pattern.unwrap(), ones).unwrap(), "nm:2:4");
    let a = gpu.upload(a).unwrap();
    let value = |i: &[usize]| f16::from_f64((i[0] * n + i[1]) as f64 / 256.0 - 8.0);
    let b = Dense::from_fn(vec![n, n], value).unwrap();
    let right = gpu.upload_dense(&b).unwrap();
    let operands: [(&str, Operand<'_, f16>); 2] = [("A", (&a).into()), ("B", (&right).into())];
    let text = "C[m,n] = gelu(A[m,k] * B[k,n])";
    let plan = gpu.plan(text).operands(&operands).build().unwrap();
    assert!(as_on_hopper(plan.variant()).starts_with("nm_f16"), "{plan}");
    let c = output_of(&gpu, &plan, &operands);
    assert_gelu(b.values(), c.to_dense().unwrap().values(), 2f64.powi(-11));
}

/// Prunes all kinds of numbers at ragged extents: ties, zeros of both signs, infinities, NaNs of several payloads.
fn prunes_alike<T: Scalar>(context: &Context, from_bits: impl Fn(u16) -> T) {
    let special = [
        0x0000, 0x8000, 0x3c00, 0xbc00, 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xfe01, 0x7f80, 0xff80,
        0x7fc0, 0x7f81, 0xffc1, 0x0001, 0x8001,
    ];
    let mut rng = Rng(17);
    for [rows, columns] in [[0, 8], [3, 0], [1, 1], [5, 31], [64, 64], [37, 102], [130, 1000]] {
        let mut element = |_: &[usize]| {
            let word = rng.word();
            let random = (word >> 8) as u16;
            from_bits(if word % 4 == 0 { random } else { special[random as usize % special.len()] })
        };
        let dense: Vec<T> = (0..rows * columns).map(|_| element(&[])).collect();
        let dense = Dense::new([rows, columns], dense).unwrap();
        let wanted = einsparse::formats::convert::prune_to_nm(&dense).unwrap();
        for leading in [columns, columns.next_multiple_of(8) + 8, columns + 3] {
            let gap = T::from_f64(99.0);
            let tensor = context.upload_strided(&dense, leading, gap).unwrap();
            let found = einsparse::ops::prune_to_nm(context, &tensor).unwrap();
            let AnySparse::Nm(found) = found.to_host().unwrap() else {
                panic!("not in nm:2:4");
            };
            let what = (rows, columns, leading);
            assert_eq!(found.pattern(), wanted.pattern(), "{what:?}");
            let bytes = |v: &[T]| bytemuck::cast_slice::<T, u8>(v).to_vec();
            assert!(bytes(found.values()) == bytes(wanted.values()), "{what:?}");
        }
    }
}

#[test]
fn nm_pruned_on_the_gpu_is_what_the_host_makes() {
    let Some(gpu) = gpu() else { return };
    prunes_alike::<f16>(&gpu, f16::from_bits);
    prunes_alike::<bf16>(&gpu, bf16::from_bits);
    prunes_alike::<i8>(&gpu, |bits| bits as i8);
}

#[test]
fn nm_pruned_on_the_cpu_is_what_the_host_makes() {
    prunes_alike::<f16>(&Context::unchecked_cpu(), f16::from_bits);
    prunes_alike::<i8>(&Context::unchecked_cpu(), |bits| bits as i8);
}

/// A matrix that was pruned on the device is multiplied there.
#[test]
fn nm_pruned_on_the_gpu_is_multiplied_there() {
    let Some(gpu) = gpu() else { return };
    let (m, k, n) = (200, 136, 72);
    let mut rng = Rng(19);
    let dense = Dense::new([m, k], rng.integers::<f16>(m * k)).unwrap();
    let b = Dense::new([k, n], rng.integers::<f16>(k * n)).unwrap();
    let a = einsparse::ops::prune_to_nm(&gpu, &gpu.upload_dense(&dense).unwrap()).unwrap();
    let c = einsparse::ops::spmm(&gpu, &a, &b).unwrap();
    let host = einsparse::formats::convert::prune_to_nm(&dense).unwrap();
    let csr = AnySparse::from(host).to_csr().unwrap();
    let exact = crate::support::product(&csr, b.values(), n, |x| x);
    assert_exact(&c, &exact, "pruned");
}

/// Batches, one launch each, and the gate of `relu_grad`: into rows aligned to 16 bytes, and with odd row strides of C.
fn batches_and_gates<T: Scalar>(context: &Context) {
    let (shape, items) = ([150, 100], 3);
    let pattern = two_of_four(shape, false, 23);
    let values = Rng(29).integers::<T>(pattern.columns().len());
    let a = Given::Sparse(stored(Csr::new(pattern, values).unwrap(), "nm:2:4"));
    let text = "C[z,m,n] = relu_grad(A[m,k] * B[z,k,n], G[z,m,n])";
    for row in rows_of(T::DTYPE) {
        for (n, odd) in [(72, 0), (200, 3), (9, 0)] {
            let leading = |n| apart::<T>(n) + odd;
            let given = [
                ("A", a.clone()),
                ("B", Given::integers(&[items, shape[1], n], 0)),
                ("G", Given::Apart(integers(&[items, shape[0], n], 4), leading(n))),
            ];
            agrees::<T, T>(context, text, &given, &force(row), (leading, &(row.name, odd)));
        }
    }
}

on_both! {
    nm_in_batches: cpu [batches_and_gates::<f16>],
        gpu [batches_and_gates::<f16>, batches_and_gates::<bf16>];
}
