//! Products of at most 64 rows by one kernel that finds the nonzero columns of A itself. Exact on integers, for any
//! number of parts, any sections and any row strides.

use einsparse::dynamic::Dynamic;
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Scalar};

use super::matmul::{dynamic, integers, multiplies, product, replays};
use crate::support::dense::{nan, poisoned, upload, upload_values};
use crate::support::rows::{as_on_hopper, kernels_here, named};
use crate::support::runs::{finish, plan_of};
use crate::support::skipping::{FEW, Skipping};
use crate::support::{gpu, gpu_alone, on_gpu, small};

/// One tile and many, one part and eight, sections that end inside a vector, a word and a stage.
const EXTENTS: [[usize; 3]; 14] = [
    [1, 1, 8],
    [1, 64, 320],
    [1, 4097, 264],
    [2, 511, 328],
    [5, 513, 1000],
    [15, 2048, 256],
    [16, 2050, 40],
    [17, 700, 640],
    [31, 3100, 72],
    [32, 1030, 648],
    [33, 2048, 264],
    [48, 300, 2568],
    [64, 3072, 136],
    [64, 257, 5128],
];

fn all<T: Scalar>(context: &Context) {
    for extents in EXTENTS.into_iter().step_by(if small() { 3 } else { 1 }) {
        multiplies::<T>(context, extents, FEW);
    }
    // Parts of more than one round, with more columns than a list holds.
    multiplies::<T>(context, [3, 30_001, 16], FEW);
    if small() {
        return;
    }
    multiplies::<T>(context, [20, 20_003, 24], FEW);
    multiplies::<T>(context, [40, 26_000, 8], FEW);
}

#[test]
fn few_rows_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let plan = FEW.plan::<f16>(&gpu, [5, 513, 1000]).plan;
    assert!(as_on_hopper(plan.variant()).starts_with("pit_few_f16_16"), "{plan}");
    all::<f16>(&gpu);
    all::<bf16>(&gpu);
}

/// Returns A in which every `step`-th column is nonzero.
fn every<T: Scalar>([m, k]: [usize; 2], step: usize) -> Dense<T> {
    let value = |i: usize| match (i / k, i % k) {
        (_, column) if column % step != 0 => 0.0,
        (0, _) => 1.0,
        (row, column) => ((row * 7 + column / step * 3) % 5) as f64 - 2.0,
    };
    let values = (0..m * k).map(|i| T::from_f64(value(i)));
    Dense::new(vec![m, k], values.collect()).unwrap()
}

fn multiplied<T: Scalar>(context: &Context, a: &Dense<T>, b: &Dense<T>) -> Dense<T> {
    let extents @ [m, _, n] = [a.shape()[0], a.shape()[1], b.shape()[1]];
    let of = FEW.plan(context, extents);
    let ([a, b], mut c) = (upload(context, [a, b]), poisoned(context, &[m, n]));
    finish(context, |stream| of.run([&a, &b], &mut c, stream));
    c.to_dense().unwrap()
}

/// Lists that just fit, that are full where a round of columns ends, and that have one stage too many. The list of a
/// thread block holds 1024, 512 or 256 columns, and a round reads twice as many.
#[test]
fn few_rows_whose_lists_are_full_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let n = 8;
    let all = [(64, 256), (19, 512), (1, 1024), (16, 1024), (32, 512)];
    for (m, room) in all.into_iter().take(if small() { 2 } else { 5 }) {
        let parts = 8;
        for (share, step) in [
            (room, 1),
            (room + 64, 1),
            (2 * room, 1),
            (2 * room, 2),
            (4 * room, 2),
            (4 * room + 192, 2),
            (6 * room, 3),
        ] {
            let k = parts * share;
            let b = integers::<bf16>([k, n], 5);
            let a = every::<bf16>([m, k], step);
            let c = multiplied(&gpu, &a, &b);
            let wanted: Vec<bf16> = product(&a, &b).into_iter().map(bf16::from_f64).collect();
            assert!(c.values() == wanted, "{m} {share} {step}");
        }
    }
}

/// Padding of a step of the product must not change an infinity in the row of the last nonzero column. Rows of B that
/// meet no nonzero column may hold any value.
#[test]
fn few_rows_keep_infinities_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let [k, n] = [3000, 8];
    for m in [1, 20, 64] {
        // Values 1 and 2 in alternating rows of every seventh column.
        let value = |i: usize| match i % k % 7 {
            0 => f16::from_f32((i / k % 2 + 1) as f32),
            _ => f16::ZERO,
        };
        let a = Dense::new(vec![m, k], (0..m * k).map(value).collect()).unwrap();
        let value = |i: usize| match (i / n % 7, i % n) {
            (0, 3) => f16::INFINITY,
            (0, _) => f16::ONE,
            _ => f16::NAN,
        };
        let b = Dense::new(vec![k, n], (0..k * n).map(value).collect()).unwrap();
        for (i, found) in multiplied(&gpu, &a, &b).values().iter().enumerate() {
            let sum = k.div_ceil(7) * (i / n % 2 + 1);
            let wanted = match i % n {
                3 => f16::INFINITY,
                _ => f16::from_f32(sum as f32),
            };
            assert!(*found == wanted, "{m} {i}: {found} for {wanted}");
        }
    }
}

/// Runs every kernel of the family through a plan.
fn by_each_kernel<T: Scalar>(context: &Context) {
    let rows = kernels_here().filter(|row| row.module == "pit_few");
    for row in rows.filter(|row| row.dtype == T::DTYPE) {
        for [less, k, n] in
            [[0, 600, 264], [7, 2600, 648], [1, 64, 8], [8, 9000, 392], [0, 26_000, 24]]
        {
            let m = row.block.0 as usize - less;
            let b = context.upload_dense(&integers::<T>([k, n], 3)).unwrap();
            let mut a_there = context.zeros::<T>(&[m, k]).unwrap();
            let operands = [("A", Dynamic::new(&a_there).into()), ("B", (&b).into())];
            let line = "C[m,n] = A[m,k] * B[k,n]";
            let plan = plan_of(context, line, &operands, &named(row.name));
            assert_eq!(plan.variant(), row.name);
            let shares = [60, 1000, 0, 400];
            for per_mille in shares.into_iter().take(if small() { 1 } else { 4 }) {
                let a = dynamic::<T>([m, k], m, per_mille, 11 + per_mille);
                a_there.write(&a).unwrap();
                let mut c = poisoned::<T>(context, &[m, n]);
                let operands = [("A", Dynamic::new(&a_there).into()), ("B", (&b).into())];
                finish(context, |stream| plan.run(&operands, &mut c, stream));
                let b = b.to_dense().unwrap();
                let wanted: Vec<T> = product(&a, &b).into_iter().map(T::from_f64).collect();
                let found = c.to_dense().unwrap();
                assert!(found.values() == wanted, "{} {m} {k} {n} {per_mille}", row.name);
            }
        }
    }
}

#[test]
fn few_rows_by_each_kernel_on_the_gpu() {
    on_gpu(&[by_each_kernel::<f16>, by_each_kernel::<bf16>]);
}

/// Elements past the columns of A do not count. Row strides may be odd if B allows it.
#[test]
fn few_rows_of_strided_operands_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for [m, k, n] in [[1, 700, 264], [19, 3001, 320], [64, 95, 8]] {
        let b = integers::<f16>([k, n], 5);
        let b_there = gpu.upload_dense(&b).unwrap();
        let product_of = FEW.plan(&gpu, [m, k, n]);
        let a = dynamic::<f16>([m, k], m, 70, 3);
        let wanted: Vec<f16> = product(&a, &b).into_iter().map(f16::from_f64).collect();
        for (lda, ldc) in [(k + 3, n + 1), (k.next_multiple_of(8) + 8, n + 2)] {
            let a_there = gpu.upload_strided(&a, lda, f16::NAN).unwrap();
            let nan = nan::<f16>(&[m, n]);
            let mut c = gpu.upload_strided(&nan, ldc, f16::ONE).unwrap();
            finish(&gpu, |stream| product_of.run([&a_there, &b_there], &mut c, stream));
            assert!(c.to_dense().unwrap().values() == wanted, "{m} {k} {n} {lda} {ldc}");
            let stored = c.to_storage().unwrap();
            let gap = |row: &[f16]| row.get(n).is_none_or(|&x| x == f16::ONE);
            assert!(stored.chunks(ldc).all(gap));
        }
    }
}

/// A column whose elements are all up to the threshold is empty. A NaN is never empty.
#[test]
fn few_rows_above_a_threshold_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let [m, k, n] = [3, 40, 8];
    let mut a = vec![f16::from_f32(0.25); m * k];
    a[k + 7] = f16::from_f32(-0.5);
    a[2 * k + 39] = f16::NAN;
    let b = vec![f16::ONE; k * n];
    let upload = |shape: [usize; 2], values| upload_values(&gpu, &shape, values);
    let (a, b) = (upload([m, k], a), upload([k, n], b));
    let product = Skipping { threshold: 0.25, ..FEW }.plan(&gpu, [m, k, n]);
    let mut c = gpu.zeros::<f16>(&[m, n]).unwrap();
    finish(&gpu, |stream| product.run([&a, &b], &mut c, stream));
    let c = c.to_dense().unwrap();
    let row = |i: usize| &c.values()[i * n..(i + 1) * n];
    assert!(row(0).iter().all(|x| x.to_f32() == 0.5), "{:?}", row(0));
    assert!(row(1).iter().all(|x| x.to_f32() == -0.25), "{:?}", row(1));
    assert!(row(2).iter().all(|x| x.is_nan()), "{:?}", row(2));
}

/// Equal bits in every run, in whatever order the parts finish; close to the sum in f64.
#[test]
fn few_rows_have_the_same_bits_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let [m, k, n] = [32, 8192, 1280];
    let mut seed = 77u64;
    let mut random = |count: usize| -> Vec<f16> {
        let mut next = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            (seed >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| f16::from_f32(next())).collect()
    };
    let mut a = random(m * k);
    for (i, x) in a.iter_mut().enumerate() {
        if i % k % 10 != 3 {
            *x = f16::ZERO;
        }
    }
    let a = Dense::new(vec![m, k], a).unwrap();
    let b = Dense::new(vec![k, n], random(k * n)).unwrap();
    let (a_there, b_there) = (gpu.upload_dense(&a).unwrap(), gpu.upload_dense(&b).unwrap());
    let product_of = FEW.plan(&gpu, [m, k, n]);
    let run = || {
        let mut c = gpu.zeros::<f16>(&[m, n]).unwrap();
        finish(&gpu, |stream| product_of.run([&a_there, &b_there], &mut c, stream));
        c.to_dense().unwrap().values().to_vec()
    };
    let first = run();
    for (found, wanted) in first.iter().zip(product(&a, &b)) {
        let error = (found.to_f64() - wanted).abs();
        assert!(error <= 0.001 * wanted.abs() + 0.001, "{found} for {wanted}");
    }
    for _ in 0..20 {
        assert!(run() == first);
    }
}

#[test]
fn few_rows_in_a_graph() {
    let Some(gpu) = gpu_alone() else { return };
    let [m, k, n] = [20, 2000, 328];
    let b = integers::<bf16>([k, n], 5);
    let [b_there] = upload(&gpu, [&b]);
    let of = FEW.plan(&gpu, [m, k, n]);
    let all = [(100, 1), (0, 2), (1000, 3), (1, 4), (50, 5), (50, 6)]
        .map(|(per_mille, seed)| dynamic([m, k], m, per_mille, seed));
    let mut run = |a: &_, c: &mut _, stream: &_| of.run([a, &b_there], c, stream);
    replays(&gpu, &all, [m, n], &mut run, |a| product(a, &b));
}

/// Plans select the small-M kernel for a dynamic operand with few rows, if a tenth of the columns is nonzero.
#[test]
fn plans_take_the_kernel_of_few_rows() {
    let cpu = Context::unchecked_cpu();
    for (m, name) in [(1, "pit_few_f16_16"), (32, "pit_few_f16_32"), (64, "pit_few_f16_64")] {
        let a = cpu.zeros::<f16>(&[m, 20_480]).unwrap();
        let b = cpu.zeros::<f16>(&[20_480, 5120]).unwrap();
        let operands = [("A", Dynamic::new(&a).into()), ("B", (&b).into())];
        let line = "C[m,n] = A[m,k] * B[k,n]";
        let plan = cpu.plan(line).operands(&operands).build().unwrap();
        let first = plan.choice().candidates[0].name;
        assert!(as_on_hopper(first).starts_with(name), "{first}: {}", plan.choice());
    }
}
