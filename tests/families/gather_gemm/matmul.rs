//! Products with an operand whose micro-tiles are dynamic, against a plain product; exact on integers.

use super::turned::exact;
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Determinism, Error, Result, Scalar, Stream, Tensor};

use crate::support::dense::{nan, poisoned, upload, upload_values};
use crate::support::replay::Replay;
use crate::support::runs::finish;
use crate::support::skipping::{LEFT, Skipping};
use crate::support::words::Words;
use crate::support::{gpu, gpu_alone, on_gpu};

/// Returns A whose micro-tiles are full with a probability of `per_mille` in 1000. Probabilities 0 and 1000 are exact;
/// 1 gives at most one full micro-tile.
pub(in crate::families) fn dynamic<T: Scalar>(
    [m, k]: [usize; 2],
    height: usize,
    per_mille: u64,
    seed: u64,
) -> Dense<T> {
    let mut words = Words(seed);
    let mut values = vec![T::ZERO; m * k];
    for top in (0..m).step_by(height) {
        for column in 0..k {
            let full = match per_mille {
                1 => top == 0 && column == k - 1,
                p => words.next() % 1000 < p,
            };
            for row in top..(top + height).min(m) {
                if full {
                    values[row * k + column] = T::from_f64(words.small());
                }
            }
        }
    }
    Dense::new(vec![m, k], values).unwrap()
}

pub(in crate::families) fn integers<T: Scalar>(shape: [usize; 2], seed: u64) -> Dense<T> {
    let mut words = Words(seed);
    let values = (0..shape[0] * shape[1]).map(|_| T::from_f64(words.small()));
    Dense::new(shape.to_vec(), values.collect()).unwrap()
}

pub(in crate::families) fn product<T: Scalar>(a: &Dense<T>, b: &Dense<T>) -> Vec<f64> {
    let ([m, k], n) = ([a.shape()[0], a.shape()[1]], b.shape()[1]);
    // Converted once: a conversion costs as much as many products.
    let b: Vec<f64> = b.values().iter().map(|x| x.to_f64()).collect();
    let mut c = vec![0.0; m * n];
    for (i, c) in c.chunks_mut(n.max(1)).enumerate() {
        for x in 0..k {
            let factor = a.values()[i * k + x].to_f64();
            if factor != 0.0 {
                for (c, b) in c.iter_mut().zip(&b[x * n..][..n]) {
                    *c += factor * b;
                }
            }
        }
    }
    c
}

/// Runs one product over several densities of A, one after the other, into a C of NaN.
pub(super) fn multiplies<T: Scalar>(context: &Context, extents: [usize; 3], skipping: Skipping) {
    let [m, k, n] = extents;
    let b = integers::<T>([k, n], 5);
    let room = n.next_multiple_of(8) + 8;
    let b_there = context.upload_strided(&b, room, T::ONE).unwrap();
    let product_of = skipping.plan::<T>(context, extents);
    for per_mille in [1000, 0, 1, 100, 500, 30] {
        let a = dynamic::<T>([m, k], skipping.height, per_mille, 9 + per_mille);
        let a_there = context.upload_dense(&a).unwrap();
        let poison = nan::<T>(&[m, n]);
        let gap = T::from_f64(77.0);
        let mut c = context.upload_strided(&poison, room, gap).unwrap();
        finish(context, |stream| product_of.run([&a_there, &b_there], &mut c, stream));
        let stored = c.to_storage().unwrap();
        let wanted = product(&a, &b);
        for (i, row) in stored.chunks(room).enumerate().take(m) {
            for (j, found) in row.iter().enumerate() {
                let wanted = if j < n { wanted[i * n + j] } else { 77.0 };
                let wanted = T::from_f64(wanted).to_f64();
                assert!(
                    found.to_f64() == wanted,
                    "{} {extents:?} {skipping:?} {per_mille}: C[{i},{j}] = {found}, not {wanted}",
                    T::NAME
                );
            }
        }
    }
}

fn all<T: Scalar>(context: &Context) {
    for height in [128, 64, 32] {
        for determinism in [Determinism::Strict, Determinism::Relaxed] {
            let skipping = Skipping { height, determinism, ..LEFT };
            for extents in [
                [128, 64, 256],
                [1, 1, 8],
                [300, 200, 264],
                [64, 1000, 8],
                [513, 320, 520],
                [0, 64, 64],
                [64, 0, 64],
            ] {
                multiplies::<T>(context, extents, skipping);
            }
        }
    }
}

#[test]
fn dynamic_product_on_the_cpu() {
    multiplies::<f32>(&Context::unchecked_cpu(), [70, 50, 9], LEFT);
    multiplies::<f16>(&Context::unchecked_cpu(), [70, 50, 9], LEFT);
}

#[test]
fn dynamic_product_on_the_gpu() {
    on_gpu(&[all::<f16>, all::<bf16>]);
}

/// A NaN in a row of B reaches the rows of C that have a micro-tile there, and no others. A NaN in A is detected.
#[test]
fn dynamic_product_keeps_nan_where_it_is() {
    let Some(gpu) = gpu() else { return };
    let [m, k, n] = [256, 128, 64];
    let mut a = dynamic::<f16>([m, k], 128, 0, 1).values().to_vec();
    a[5 * k + 7] = f16::NAN;
    a[200 * k + 9] = f16::ONE;
    let mut b = integers::<f16>([k, n], 3).values().to_vec();
    b[9 * n..10 * n].fill(f16::INFINITY);
    b[11 * n..12 * n].fill(f16::NAN);
    let upload = |shape: [usize; 2], values| upload_values(&gpu, &shape, values);
    let (a, b) = (upload([m, k], a), upload([k, n], b));
    let mut c = gpu.zeros::<f16>(&[m, n]).unwrap();
    let product = LEFT.plan(&gpu, [m, k, n]);
    finish(&gpu, |stream| product.run([&a, &b], &mut c, stream));
    let c = c.to_dense().unwrap();
    for (i, row) in c.values().chunks(n).enumerate() {
        for &x in row {
            match i {
                5 => assert!(x.is_nan()),
                0..128 => assert!(x == f16::ZERO, "row {i}: {x}"),
                200 => assert!(x == f16::INFINITY),
                // Zeros of the micro-tile times infinity give NaN.
                _ => assert!(x.is_nan(), "row {i}: {x}"),
            }
        }
    }
}

/// Queues a product with the operand that changes from run to run.
pub(super) type Product<'p, T> = dyn FnMut(&Tensor<T>, &mut Tensor<T>, &Stream) -> Result<()> + 'p;

/// Replays a captured product with each of these operands, and compares C with `wanted`, shape `[m, n]`.
pub(super) fn replays<T: Scalar>(
    context: &Context,
    operands: &[Dense<T>],
    out: [usize; 2],
    product: &mut Product<'_, T>,
    wanted: impl Fn(&Dense<T>) -> Vec<f64>,
) {
    let mut there = context.zeros::<T>(operands[0].shape()).unwrap();
    let mut c = poisoned::<T>(context, &out);
    let stream = context.stream().unwrap();
    let mut graph = Replay::of(&stream, || product(&there, &mut c, &stream));
    for (turn, operand) in operands.iter().enumerate() {
        there.write(operand).unwrap();
        // SAFETY: all memory that the captured run uses is alive until the end of this function.
        unsafe { graph.run() };
        exact(&c, &wanted(operand), &format!("replay {turn}"));
    }
}

#[test]
fn dynamic_product_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let [m, k, n] = [256, 512, 256];
    let b = integers::<f16>([k, n], 5);
    let [b_there] = upload(&gpu, [&b]);
    let of = LEFT.plan(&gpu, [m, k, n]);
    let all = [(100, 1), (0, 2), (900, 3), (50, 4), (50, 5)]
        .map(|(per_mille, seed)| dynamic([m, k], 128, per_mille, seed));
    let mut run = |a: &_, c: &mut _, stream: &_| of.run([a, &b_there], c, stream);
    replays(&gpu, &all, [m, n], &mut run, |a| product(a, &b));
}

#[test]
fn dynamic_product_refuses_what_it_cannot() {
    let cpu = Context::unchecked_cpu();
    for threshold in [-1.0, f64::NAN] {
        let wrong = Skipping { threshold, ..LEFT };
        let error = wrong.try_plan::<f16>(&cpu, [8, 8, 8]).unwrap_err();
        assert!(matches!(error, Error::Operand { .. }), "{error}");
        assert!(error.to_string().contains(&threshold.to_string()), "{error}");
    }
    let Some(gpu) = gpu() else { return };
    let error = LEFT.try_plan::<f32>(&gpu, [8, 8, 8]).unwrap_err();
    assert!(matches!(error, Error::NoKernel { .. }), "{error}");
}
