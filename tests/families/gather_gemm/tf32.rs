//! Products of f32 as TF32 with an operand whose micro-tiles are dynamic. Exact on small integers, and within the bound
//! of ten bits of mantissa on random values.

use crate::support::rows::{as_on_hopper, here, here_on};
use einsparse::dynamic::{Dynamic, SparsityHint};
use einsparse::formats::Dense;
use einsparse::{Context, Determinism, Operand, Options, Plan, Precision, Tensor};

use super::matmul::{dynamic, integers, multiplies, product, replays};
use crate::support::dense::{nan, poisoned, upload, upload_values};
use crate::support::runs::{finish, plan_of};
use crate::support::skipping::{LEFT, Skipping};
use crate::support::{Rng, gpu, gpu_alone, small};

const LINE: &str = "C[m,n] = A[m,k] * B[k,n]";
const HEIGHTS: [usize; 3] = [128, 64, 32];

fn skipping(height: usize) -> Skipping {
    Skipping { height, precision: Precision::Tf32, ..LEFT }
}

#[test]
fn tf32_product_on_the_cpu() {
    multiplies::<f32>(&Context::unchecked_cpu(), [70, 50, 9], skipping(128));
}

/// Every height, strict and relaxed order. Extents are around those of tiles, stages and vectors; micro-tiles are all
/// full, all empty, or a single one.
#[test]
fn tf32_product_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for height in HEIGHTS {
        for determinism in [Determinism::Strict, Determinism::Relaxed] {
            let skipping = Skipping { determinism, ..skipping(height) };
            for extents in [
                [128, 64, 256],
                [1, 1, 8],
                [33, 37, 12],
                [300, 203, 260],
                [64, 1000, 4],
                [513, 320, 520],
                [0, 64, 64],
                [64, 0, 64],
            ] {
                multiplies::<f32>(&gpu, extents, skipping);
            }
        }
    }
}

/// Returns a matrix, full or with gaps, of values that TF32 does not represent.
fn random([rows, columns]: [usize; 2], height: usize, share: f64, rng: &mut Rng) -> Dense<f32> {
    let mut values = vec![0f32; rows * columns];
    for top in (0..rows).step_by(height) {
        for column in 0..columns {
            if rng.unit().abs() < share {
                for row in top..(top + height).min(rows) {
                    values[row * columns + column] = rng.unit() as f32;
                }
            }
        }
    }
    Dense::new(vec![rows, columns], values).unwrap()
}

/// Returns the product, and the product of magnitudes, in f64.
fn truth(a: &Dense<f32>, b: &Dense<f32>) -> [Vec<f64>; 2] {
    let size = |x: &Dense<f32>| x.map(f32::abs);
    [product(a, b), product(&size(a), &size(b))]
}

/// Error within `u |c| + (4 u sqrt(k) + 2^-10 + 2^-22) sum |a||b|`, u = 2^-24, as for other TF32 kernels; equal bits in
/// every run.
#[test]
fn tf32_product_of_random_values() {
    let Some(gpu) = gpu() else { return };
    let [m, k, n] = if small() { [130, 190, 68] } else { [389, 777, 604] };
    let mut rng = Rng(11);
    let b = random([k, n], 1, 1.0, &mut rng);
    let b_there = gpu.upload_dense(&b).unwrap();
    for height in HEIGHTS {
        let product_of = skipping(height).plan(&gpu, [m, k, n]);
        assert!(as_on_hopper(product_of.plan.variant()).starts_with("pit_tf32"));
        for share in [0.1, 0.5, 1.0] {
            let a = random([m, k], height, share, &mut rng);
            let a_there = gpu.upload_dense(&a).unwrap();
            let run = || {
                let mut c = poisoned::<f32>(&gpu, &[m, n]);
                finish(&gpu, |stream| product_of.run([&a_there, &b_there], &mut c, stream));
                c.to_dense().unwrap().values().to_vec()
            };
            let (found, again) = (run(), run());
            let bits = |c: &[f32]| c.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert!(bits(&found) == bits(&again), "{height}, {share}");
            let [wanted, size] = truth(&a, &b);
            let unit = f64::powi(2.0, -24);
            let sum = 4.0 * unit * (k as f64).sqrt() + f64::powi(2.0, -10) + f64::powi(2.0, -22);
            for (i, &found) in found.iter().enumerate() {
                let bound = unit * wanted[i].abs() + sum * size[i];
                let error = (f64::from(found) - wanted[i]).abs();
                assert!(
                    error <= bound,
                    "{height}, {share}: C[{},{}] = {found}, not {}",
                    i / n,
                    i % n,
                    wanted[i]
                );
            }
        }
    }
}

/// Both operands are rounded to nearest with ten bits of mantissa. The copy engine decides ties of A.
#[test]
fn tf32_product_rounds_both_operands() {
    let Some(gpu) = gpu() else { return };
    let [m, k, n] = [40, 24, 36];
    let unit = f32::powi(2.0, -10);
    let on = |rows: usize, columns: usize, x: f32| {
        let of = |i: &[usize]| if i[0] % k == i[1] % k { x } else { 0.0 };
        gpu.upload_dense(&Dense::from_fn(vec![rows, columns], of).unwrap()).unwrap()
    };
    for height in HEIGHTS {
        let product = skipping(height).plan(&gpu, [m, k, n]);
        for (apart, rounded) in [(0.25, 0.0), (0.75, 1.0), (1.0, 1.0), (1.25, 1.0)] {
            let (value, rounded) = (1.0 + apart * unit, 1.0 + rounded * unit);
            for [of_a, of_b] in [[value, 1.0], [1.0, value]] {
                let (a, b) = (on(m, k, of_a), on(k, n, of_b));
                let mut c = gpu.zeros::<f32>(&[m, n]).unwrap();
                finish(&gpu, |stream| product.run([&a, &b], &mut c, stream));
                for (at, &found) in c.to_dense().unwrap().values().iter().enumerate() {
                    let meets = (at / n) % k == (at % n) % k;
                    let wanted = if meets { rounded } else { 0.0 };
                    assert!(found == wanted, "{height}: {of_a} * {of_b} is {found}");
                }
            }
        }
    }
}

/// A NaN in a row of B reaches the rows of C that have a micro-tile there, and no others, whatever was multiplied
/// before. A NaN in A is detected.
#[test]
fn tf32_product_keeps_nan_where_it_is() {
    let Some(gpu) = gpu() else { return };
    let [m, k, n] = [256, 128, 64];
    for height in HEIGHTS {
        let mut a = vec![0f32; m * k];
        a[5 * k + 7] = f32::NAN;
        a[200 * k + 9] = 1.0;
        let mut b = integers::<f32>([k, n], 3).values().to_vec();
        b[9 * n..10 * n].fill(f32::INFINITY);
        b[11 * n..12 * n].fill(f32::NAN);
        let upload = |shape: [usize; 2], values| upload_values(&gpu, &shape, values);
        let poison = upload([m, k], vec![f32::NAN; m * k]);
        let (a, b) = (upload([m, k], a), upload([k, n], b));
        let mut c = gpu.zeros::<f32>(&[m, n]).unwrap();
        let stream = gpu.stream().unwrap();
        let product = skipping(height).plan(&gpu, [m, k, n]);
        product.run([&poison, &b], &mut c, &stream).unwrap();
        product.run([&a, &b], &mut c, &stream).unwrap();
        stream.synchronize().unwrap();
        let c = c.to_dense().unwrap();
        let beside = 200 / height * height..200 / height * height + height;
        for (i, row) in c.values().chunks(n).enumerate() {
            for &x in row {
                match i {
                    5 => assert!(x.is_nan()),
                    200 => assert!(x == f32::INFINITY),
                    // Zeros of the micro-tile times infinity give NaN.
                    _ if beside.contains(&i) => assert!(x.is_nan(), "{height}, row {i}: {x}"),
                    _ => assert!(x == 0.0, "{height}, row {i}: {x}"),
                }
            }
        }
    }
}

/// Elements up to the threshold make no micro-tile, and rows of C may begin at any address.
#[test]
fn tf32_product_above_a_threshold() {
    let Some(gpu) = gpu() else { return };
    let [m, k, n] = [200, 90, 44];
    for height in HEIGHTS {
        let of = |i: &[usize]| if i[1] % 3 == 0 { 1.0f32 } else { 0.125 };
        let a = Dense::from_fn(vec![m, k], of).unwrap();
        let b = integers::<f32>([k, n], 5);
        let counted = Dense::from_fn(vec![m, k], |i| if i[1] % 3 == 0 { 1f32 } else { 0.0 });
        let wanted = product(&counted.unwrap(), &b);
        let product_of = Skipping { threshold: 0.25, ..skipping(height) }.plan(&gpu, [m, k, n]);
        let (a, b) = (gpu.upload_dense(&a).unwrap(), gpu.upload_dense(&b).unwrap());
        let nan = nan::<f32>(&[m, n]);
        let mut c = gpu.upload_strided(&nan, n + 1, 77.0).unwrap();
        finish(&gpu, |stream| product_of.run([&a, &b], &mut c, stream));
        let stored = c.to_storage().unwrap();
        for (i, row) in stored.chunks(n + 1).enumerate().take(m) {
            for (j, &found) in row.iter().enumerate().take(n) {
                assert!(f64::from(found) == wanted[i * n + j], "C[{i},{j}]");
            }
            assert!(row.get(n).is_none_or(|&gap| gap == 77.0));
        }
    }
}

/// Each item of a batch has its own B.
#[test]
fn tf32_product_of_a_batch() {
    let Some(gpu) = gpu() else { return };
    let (items, [m, k, n]) = (3, [256, 90, 72]);
    for height in HEIGHTS {
        let a = dynamic::<f32>([items * m, k], height, 200, 3);
        let b = integers::<f32>([items * k, n], 4);
        let mut wanted = Vec::new();
        for z in 0..items {
            let part = |x: &Dense<f32>, rows: usize, columns: usize| {
                let from = z * rows * columns;
                let values = x.values()[from..from + rows * columns].to_vec();
                Dense::new(vec![rows, columns], values).unwrap()
            };
            wanted.extend(product(&part(&a, m, k), &part(&b, k, n)));
        }
        let stacked = |x: &Dense<f32>, shape: [usize; 3]| {
            let x = Dense::new(shape.to_vec(), x.values().to_vec()).unwrap();
            gpu.upload_dense(&x).unwrap()
        };
        let (a, b) = (stacked(&a, [items, m, k]), stacked(&b, [items, k, n]));
        let mut c = gpu.zeros::<f32>(&[items, m, n]).unwrap();
        let product = skipping(height).batch(&gpu, items, [m, k, n]);
        finish(&gpu, |stream| product.run([&a, &b], &mut c, stream));
        let found = c.to_dense().unwrap();
        let found = found.values().iter().map(|&x| f64::from(x));
        assert!(found.eq(wanted), "{height}");
    }
}

#[test]
fn tf32_product_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let [m, k, n] = [256, 512, 256];
    let b = integers::<f32>([k, n], 5);
    let [b_there] = upload(&gpu, [&b]);
    let of = skipping(128).plan(&gpu, [m, k, n]);
    let all = [(100, 1), (0, 2), (900, 3), (50, 4), (1000, 5), (1, 6)]
        .map(|(per_mille, seed)| dynamic([m, k], 128, per_mille, seed));
    let mut run = |a: &_, c: &mut _, stream: &_| of.run([a, &b_there], c, stream);
    replays(&gpu, &all, [m, n], &mut run, |a| product(a, &b));
}

fn plan(
    context: &Context,
    (a, b): (Operand<'_, f32>, &Tensor<f32>),
    (precision, variant): (Precision, Option<&str>),
) -> Plan<f32> {
    let options = Options { precision, variant: variant.map(Into::into), ..Options::default() };
    plan_of(context, LINE, &[("A", a), ("B", b.into())], &options)
}

/// Plans select these kernels only if TF32 is requested and enough of the operand is empty.
#[test]
fn tf32_plans_choose_by_the_share() {
    let cpu = Context::unchecked_cpu();
    let a = cpu.zeros::<f32>(&[4096, 4096]).unwrap();
    let b = cpu.zeros::<f32>(&[4096, 4096]).unwrap();
    let of = |expected, precision| {
        let a = Dynamic::new(&a).expecting(expected).into();
        plan(&cpu, (a, &b), (precision, None)).choice().clone()
    };
    let tenth = SparsityHint::MicroTiles(0.1);
    let first = |expected| of(expected, Precision::Tf32).candidates[0].name;
    assert_eq!(first(tenth), here_on(&cpu.machine(), "pit_tf32_128x1"));
    assert!(!first(SparsityHint::MicroTiles(1.0)).starts_with("pit"));
    let full = of(tenth, Precision::Full);
    assert!(full.to_string().contains("Precision::Tf32"), "{full}");
    assert!(!full.candidates.iter().any(|c| c.name.starts_with("pit")));
}

#[test]
fn tf32_plans_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let [m, k, n] = [300, 200, 264];
    let b = integers::<f32>([k, n], 5);
    let b_there = gpu.upload_dense(&b).unwrap();
    let mut a_there = gpu.zeros::<f32>(&[m, k]).unwrap();
    for variant in HEIGHTS.map(|height| here(&format!("pit_tf32_{height}x1"))) {
        let operands = (Dynamic::new(&a_there).into(), &b_there);
        let plan = plan(&gpu, operands, (Precision::Tf32, Some(variant)));
        assert_eq!(plan.variant(), variant);
        for per_mille in [1000, 0, 100, 30] {
            let a = dynamic::<f32>([m, k], 32, per_mille, 7 + per_mille);
            a_there.write(&a).unwrap();
            let mut c = poisoned::<f32>(&gpu, &[m, n]);
            let operands = [("A", Dynamic::new(&a_there).into()), ("B", (&b_there).into())];
            finish(&gpu, |stream| plan.run(&operands, &mut c, stream));
            let found = c.to_dense().unwrap();
            let found = found.values().iter().map(|&x| f64::from(x));
            assert!(found.eq(product(&a, &b)), "{plan}, {per_mille}");
        }
    }
}
