//! Products with a dynamic operand on the right, against a plain product. Exact on integers, for either storage order
//! of the left operand.

use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Determinism, Error, Scalar, Tensor};

use super::matmul::{integers, product, replays};
use super::turned::{exact, pieces};
use crate::support::dense::{nan, poisoned, strided, transposed};
use crate::support::runs::finish;
use crate::support::skipping::{RIGHT, Skipping};
use crate::support::{assert_error, gpu, gpu_alone, on_gpu};

fn skipping(by_columns: bool, determinism: Determinism) -> Skipping {
    Skipping { by_columns, determinism, ..RIGHT }
}

/// Uploads A in the requested storage order, with `gap` elements of NaN between its rows.
pub(super) fn left<T: Scalar>(
    context: &Context,
    a: &Dense<T>,
    by_columns: bool,
    gap: usize,
) -> Tensor<T> {
    let a = if by_columns { transposed(a) } else { a.clone() };
    let leading = a.shape()[1] + gap;
    strided(context, &a, leading, T::from_f64(f64::NAN))
}

/// Returns the number of elements past a row up to a multiple of 8, plus 8.
pub(super) fn room(columns: usize) -> usize {
    columns.next_multiple_of(8) + 8 - columns
}

/// Runs one product over several densities of B, one after the other, into a C of NaN with other values between its
/// rows.
fn multiplies<T: Scalar>(context: &Context, [m, k, n]: [usize; 3], skipping: Skipping, gap: usize) {
    let a = integers::<T>([m, k], 5);
    let a_there = left(context, &a, skipping.by_columns, gap);
    let product_of = skipping.plan::<T>(context, [m, k, n]);
    for per_mille in [1000, 0, 1, 100, 500, 30] {
        let b = pieces::<T>([k, n], per_mille, 9 + per_mille);
        let b_there = context.upload_strided(&b, n + 16, T::ONE).unwrap();
        let between = T::from_f64(77.0);
        let poison = nan::<T>(&[m, n]);
        let mut c = context.upload_strided(&poison, n + 8, between).unwrap();
        finish(context, |stream| product_of.run([&a_there, &b_there], &mut c, stream));
        let what = format!("{} {m} {k} {n} {skipping:?} {gap} {per_mille}", T::NAME);
        exact(&c, &product(&a, &b), &what);
        let stored = c.to_storage().unwrap();
        let gaps = stored.chunks(n + 8).flat_map(|row| &row[n..]);
        assert!(gaps.into_iter().all(|x| *x == between), "{what}: gaps");
    }
}

#[test]
fn right_product_on_the_cpu() {
    for by_columns in [false, true] {
        let skipping = skipping(by_columns, Determinism::Strict);
        multiplies::<f32>(&Context::unchecked_cpu(), [9, 50, 70], skipping, 3);
        multiplies::<f16>(&Context::unchecked_cpu(), [9, 50, 64], skipping, 0);
        multiplies::<f32>(&Context::unchecked_cpu(), [5, 0, 7], skipping, 0);
    }
}

fn all<T: Scalar>(gpu: &Context) {
    for determinism in [Determinism::Strict, Determinism::Relaxed] {
        for [m, k, n] in [
            [256, 64, 64],
            [8, 1, 8],
            [264, 300, 200],
            [1, 64, 1000],
            [513, 517, 320],
            [130, 200, 72],
            [64, 0, 64],
            [0, 64, 64],
            [64, 64, 0],
        ] {
            let rows = skipping(false, determinism);
            // Reads vectors with a partial last one, or single elements if the rows allow no vectors.
            multiplies::<T>(gpu, [m, k, n], rows, room(k));
            multiplies::<T>(gpu, [m, k, n], rows, 0);
            let columns = skipping(true, determinism);
            multiplies::<T>(gpu, [m, k, n], columns, room(m));
        }
    }
}

#[test]
fn right_product_on_the_gpu() {
    on_gpu(&[all::<f16>, all::<bf16>]);
}

#[test]
fn right_product_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let [m, k, n] = [256, 512, 256];
    let a = integers::<f16>([m, k], 5);
    for by_columns in [false, true] {
        let a_there = left(&gpu, &a, by_columns, 0);
        let of = skipping(by_columns, Determinism::Strict).plan(&gpu, [m, k, n]);
        let all = [(100, 1), (0, 2), (900, 3), (50, 4), (1000, 5)]
            .map(|(per_mille, seed)| pieces([k, n], per_mille, seed));
        let mut run = |b: &_, c: &mut _, stream: &_| of.run([&a_there, b], c, stream);
        replays(&gpu, &all, [m, n], &mut run, |b| product(&a, b));
    }
}

/// A NaN in A reaches, in its row of C, the 64 columns that have a micro-tile of B there, and no others.
fn keeps_nan(context: &Context, by_columns: bool) {
    let [m, k, n] = [256, 128, 256];
    let mut a = integers::<f16>([m, k], 3).values().to_vec();
    a[5 * k + 9] = f16::NAN;
    (0..m).for_each(|row| a[row * k + 11] = f16::NAN);
    let mut b = vec![f16::ZERO; k * n];
    b[9 * n + 100] = f16::ONE;
    let a = Dense::new([m, k], a).unwrap();
    let b = Dense::new([k, n], b).unwrap();
    let a_there = left(context, &a, by_columns, 0);
    let b_there = context.upload_dense(&b).unwrap();
    let mut c = poisoned::<f16>(context, &[m, n]);
    let product = skipping(by_columns, Determinism::Strict).plan(context, [m, k, n]);
    finish(context, |stream| product.run([&a_there, &b_there], &mut c, stream));
    for (i, row) in c.to_dense().unwrap().values().chunks(n).enumerate() {
        for (j, x) in row.iter().enumerate() {
            let wanted = if j == 100 { a.values()[i * k + 9] } else { f16::ZERO };
            let right = match i == 5 && (64..128).contains(&j) {
                true => x.is_nan(),
                false => *x == wanted,
            };
            assert!(right, "C[{i},{j}] is {x}");
        }
    }
}

#[test]
fn right_product_keeps_nan_where_it_is() {
    let Some(gpu) = gpu() else { return };
    for by_columns in [false, true] {
        keeps_nan(&gpu, by_columns);
    }
}

/// Items are stored one after the other. One detection, one transposition and one product serve all of them.
fn batches<T: Scalar>(context: &Context, items: usize, [m, k, n]: [usize; 3], by_columns: bool) {
    let batch = skipping(by_columns, Determinism::Strict).batch::<T>(context, items, [m, k, n]);
    let each = |z: usize| {
        let seed = z as u64;
        let per_mille = [300, 0, 1000, 50][z % 4];
        (integers::<T>([m, k], 7 + seed), pieces::<T>([k, n], per_mille, 11 + seed))
    };
    let three = |of: &dyn Fn(usize) -> Dense<T>| {
        let all: Vec<_> = (0..items).map(of).collect();
        let shape = [items, all[0].shape()[0], all[0].shape()[1]];
        let values = all.iter().flat_map(|dense| dense.values().to_vec());
        let dense = Dense::new(shape.to_vec(), values.collect()).unwrap();
        context.upload_dense(&dense).unwrap()
    };
    let a = three(&|z| match by_columns {
        true => transposed(&each(z).0),
        false => each(z).0,
    });
    let b = three(&|z| each(z).1);
    let mut c = poisoned::<T>(context, &[items, m, n]);
    for run in 0..2 {
        finish(context, |stream| batch.run([&a, &b], &mut c, stream));
        let wanted: Vec<f64> = (0..items).flat_map(|z| product(&each(z).0, &each(z).1)).collect();
        let what = format!("{items} of {m} {k} {n} {by_columns}, run {run}");
        exact(&c, &wanted, &what);
    }
}

#[test]
fn batches_of_right_products() {
    for by_columns in [false, true] {
        batches::<f32>(&Context::unchecked_cpu(), 3, [5, 20, 70], by_columns);
    }
    let Some(gpu) = gpu() else { return };
    for by_columns in [false, true] {
        for (items, extents) in
            [(3, [256, 200, 264]), (5, [64, 130, 72]), (2, [96, 600, 64]), (7, [8, 8, 8])]
        {
            batches::<f16>(&gpu, items, extents, by_columns);
            batches::<bf16>(&gpu, items, extents, by_columns);
        }
    }
    // Rows of A that are read element by element.
    batches::<f16>(&gpu, 3, [65, 131, 72], false);
}

#[test]
fn right_product_refuses_what_it_cannot() {
    let cpu = Context::unchecked_cpu();
    let wrong = Skipping { threshold: f64::NAN, ..RIGHT };
    let error = wrong.try_plan::<f16>(&cpu, [8, 8, 8]).unwrap_err();
    assert!(error.to_string().contains("NaN"), "{error}");
    let product = RIGHT.plan::<f32>(&cpu, [8, 4, 8]);
    let (a, b) = (cpu.zeros(&[4, 8]).unwrap(), cpu.zeros(&[4, 8]).unwrap());
    let mut c = cpu.zeros(&[8, 8]).unwrap();
    let error = product.run([&a, &b], &mut c, &cpu.stream().unwrap()).unwrap_err();
    assert!(matches!(error, Error::Shape { .. }), "{error}");
    let Some(gpu) = gpu() else { return };
    let error = RIGHT.try_plan::<f32>(&gpu, [8, 8, 8]).unwrap_err();
    assert!(matches!(error, Error::NoKernel { .. }), "{error}");
    let error = RIGHT.try_plan::<f16>(&gpu, [8, 8, 12]).unwrap_err();
    assert!(error.to_string().contains("pieces of rows of B by 16 bytes"), "{error}");
    // Rows of B of this run do not begin at multiples of 16 bytes.
    let product = RIGHT.plan::<f16>(&gpu, [8, 8, 8]);
    let (a, mut c) = (gpu.zeros(&[8, 8]).unwrap(), gpu.zeros(&[8, 8]).unwrap());
    let b = gpu.upload_strided(&integers::<f16>([8, 8], 1), 12, f16::ZERO).unwrap();
    let error = product.run([&a, &b], &mut c, &gpu.stream().unwrap()).unwrap_err();
    assert_error!(error, Error::Alignment { .. });
}

/// Equal bits at every run, whatever ran before.
#[test]
fn right_products_are_the_same_at_every_run() {
    let Some(gpu) = gpu() else { return };
    let [m, k, n] = [520, 700, 264];
    let fraction = |i: &[usize]| f16::from_f32(((i[0] * 37 + i[1] * 11) % 101) as f32 / 77.0 - 0.6);
    let a = gpu.upload_dense(&Dense::from_fn(vec![m, k], fraction).unwrap());
    let mask = pieces::<f16>([k, n], 300, 4);
    let masked = |i: &[usize]| match mask.values()[i[0] * n + i[1]] == f16::ZERO {
        true => f16::ZERO,
        false => fraction(i),
    };
    let b = gpu.upload_dense(&Dense::from_fn(vec![k, n], masked).unwrap());
    let (a, b) = (a.unwrap(), b.unwrap());
    let product = RIGHT.plan(&gpu, [m, k, n]);
    let mut first: Option<Vec<f16>> = None;
    for _ in 0..5 {
        let mut c = poisoned::<f16>(&gpu, &[m, n]);
        finish(&gpu, |stream| product.run([&a, &b], &mut c, stream));
        let found = c.to_dense().unwrap().values().to_vec();
        let same = first.get_or_insert_with(|| found.clone());
        assert!(found == *same);
    }
}
