//! Products of at most 64 rows by the kernel that finds the nonzero columns of A itself: full lists, infinities, and
//! every tile.

use einsparse::dynamic::Dynamic;
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Scalar};

use super::Suite;
use crate::support::dense::{assert_equal, assert_exact, integers, poisoned};
use crate::support::rows::{as_on_hopper, kernels_here, named};
use crate::support::runs::{finish, plan_of};
use crate::support::skipping::{FEW, dense_product, dynamic};
use crate::support::{gpu, on_gpu, small};

#[test]
fn the_plan_runs_the_kernel_for_few_rows() {
    let Some(gpu) = gpu() else { return };
    let plan = FEW.plan::<f16>(&gpu, [5, 513, 1000]).plan;
    assert!(as_on_hopper(plan.variant()).starts_with("pit_few_f16_16"), "{plan}");
}

/// Returns A in which every `step`-th column is nonzero.
fn every([m, k]: [usize; 2], step: usize) -> Dense<bf16> {
    let value = |i: &[usize]| match i {
        [_, column] if column % step != 0 => 0.0,
        [0, _] => 1.0,
        [row, column] => ((row * 7 + column / step * 3) % 5) as f64 - 2.0,
        _ => unreachable!("two axes"),
    };
    Dense::from_fn([m, k], |i| bf16::from_f64(value(i))).unwrap()
}

/// Lists that just fit, that are full where a round of columns ends, and that have one stage too many. The list of a
/// thread block holds 1024, 512 or 256 columns, and a round reads twice as many.
#[test]
fn few_rows_whose_lists_are_full() {
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
            let (a, b) = (every([m, k], step), integers::<bf16>(&[k, n], 5));
            let wanted: Vec<f64> =
                dense_product(&a, &b).into_iter().map(|x| bf16::from_f64(x).to_f64()).collect();
            let found = Suite::once(&gpu, FEW, &[[a, b]]);
            assert_equal(&format!("{m} {share} {step}"), &found, &wanted);
        }
    }
}

/// Padding of a step of the product must not change an infinity in the row of the last nonzero column. Rows of B that
/// meet no nonzero column may hold any value.
#[test]
fn few_rows_keep_infinities() {
    let Some(gpu) = gpu() else { return };
    let [k, n] = [3000, 8];
    for m in [1, 20, 64] {
        // Values 1 and 2 in alternating rows of every seventh column.
        let a = |i: &[usize]| if i[1] % 7 == 0 { (i[0] % 2 + 1) as f64 } else { 0.0 };
        let b = |i: &[usize]| match (i[0] % 7, i[1]) {
            (0, 3) => f64::INFINITY,
            (0, _) => 1.0,
            _ => f64::NAN,
        };
        let a = Dense::from_fn([m, k], |i| f16::from_f64(a(i))).unwrap();
        let b = Dense::from_fn([k, n], |i| f16::from_f64(b(i))).unwrap();
        let found = Suite::once(&gpu, FEW, &[[a, b]]);
        let wanted = |i: usize| match i % n {
            3 => f64::INFINITY,
            _ => f16::from_f64((k.div_ceil(7) * (i / n % 2 + 1)) as f64).to_f64(),
        };
        let wanted: Vec<f64> = (0..m * n).map(wanted).collect();
        assert_equal(&format!("{m} rows"), &found, &wanted);
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
            let b = integers::<T>(&[k, n], 3);
            let b_there = context.upload_dense(&b).unwrap();
            let mut a_there = context.zeros::<T>(&[m, k]).unwrap();
            let operands = [("A", Dynamic::new(&a_there).into()), ("B", (&b_there).into())];
            let line = "C[m,n] = A[m,k] * B[k,n]";
            let plan = plan_of(context, line, &operands, &named(row.name));
            assert_eq!(plan.variant(), row.name);
            let shares = [60, 1000, 0, 400];
            for per_mille in shares.into_iter().take(if small() { 1 } else { 4 }) {
                let a = dynamic::<T>([m, k], m, per_mille, 11 + per_mille);
                a_there.write(&a).unwrap();
                let mut c = poisoned::<T>(context, &[m, n]);
                let operands = [("A", Dynamic::new(&a_there).into()), ("B", (&b_there).into())];
                finish(context, |stream| plan.run(&operands, &mut c, stream));
                let what = format!("{} {m} {k} {n} {per_mille}", row.name);
                assert_exact(&c, &dense_product(&a, &b), &what);
            }
        }
    }
}

#[test]
fn few_rows_by_each_kernel() {
    on_gpu(&[by_each_kernel::<f16>, by_each_kernel::<bf16>]);
}
