//! Many short rows. Plans bundle adjacent rows, and split the long ones among them. Every row of the table that bundles
//! is exact on integers, over the epilogues in turn, with equal bits in every run.

use crate::support::dense::{strided, upload};
use crate::support::rows::{force, formats, products_here, rows_cut};
use crate::support::runs::{finish, plan_of};
use crate::support::{Expression, GUARD, Problem, assert_matrix, gpu, small, spread};
use einsparse::formats::CsrPattern;
use einsparse::registry::{Dtype, Scalar, WalkKind};
use einsparse::{Context, Operand};

/// Returns runs of empty rows, rows of every short length, and a few that are split, one of them last.
fn pattern(rows: usize) -> CsrPattern {
    let len = |row: usize| match row {
        _ if row + 1 == rows => 300,
        _ if row % 4999 == 17 => 700,
        _ if row % 64 < 20 => 0,
        _ => row * 37 % 19,
    };
    spread(&(0..rows).map(len).collect::<Vec<_>>(), 700)
}

fn bundled<T: Scalar>(context: &Context, dtype: Dtype) {
    // Enough rows that every kernel bundles with two column tiles on 132 multiprocessors.
    let rows = 22_000;
    let problem = Problem::<T>::integers(pattern(rows), 5, 264);
    let expressions = Expression::all();
    let of_type = products_here().filter(|row| {
        let walks = matches!(row.walk, WalkKind::Csr | WalkKind::GroupCoo);
        row.dtype == dtype && walks && row.parts == 1 && row.threads == 128
    });
    for (turn, row) in of_type.enumerate() {
        if small() && turn > 0 {
            break;
        }
        let names = formats(row);
        // ELL would be as wide as the longest row.
        let names: Vec<_> = names.iter().filter(|name| *name != "ell").collect();
        let a = context.upload(problem.sparse(names[turn % names.len()])).unwrap();
        let n = (row.columns + row.vector) as usize;
        let b = context.upload_dense(&problem.b(n)).unwrap();
        let biases = upload(context, [&problem.bias_rows, &problem.bias_columns(n)]);
        for at in [2 * turn, 2 * turn + 7] {
            let x = &expressions[at % expressions.len()];
            let what = (row.name, x.text(), n, turn);
            let mut found = Vec::new();
            for _ in 0..2 {
                let mut c = strided(context, &problem.start(x, n), n, T::from_f64(GUARD));
                let mut operands: Vec<(&str, Operand<'_, T>)> =
                    vec![("A", (&a).into()), ("B", (&b).into())];
                x.operands(&mut operands, biases.each_ref());
                let plan = plan_of(context, &x.text(), &operands, &force(row));
                assert!(is_bundled(&plan.to_string()), "{what:?}: {plan}");
                assert_eq!(rows_cut(&plan), Some(6), "{what:?}: {plan}");
                finish(context, |stream| plan.run(&operands, &mut c, stream));
                found.push(c.to_storage().unwrap());
            }
            assert!(found[0] == found[1], "{what:?}: other bits");
            assert_matrix(&what, &found[0], (rows, n, n), |r, c| problem.expected(x, r, c));
        }
    }
}

/// Rows too long for bundles, by length class, some of them split and some empty. Their list is made on the GPU as
/// well.
#[test]
fn longer_rows_by_class() {
    let Some(gpu) = gpu() else { return };
    let rows = 17_000;
    let len = |row: usize| match row {
        _ if row % 2999 == 2998 => 3000,
        _ if row % 50 == 7 => 0,
        _ => 30 + row * 37 % 97,
    };
    let pattern = spread(&(0..rows).map(len).collect::<Vec<_>>(), 3000);
    let problem = Problem::<f32>::integers(pattern, 5, 36);
    let x = &Expression::all()[0];
    let a = gpu.upload(problem.sparse("csr")).unwrap();
    let b = gpu.upload_dense(&problem.b(36)).unwrap();
    for row in products_here().filter(|row| row.name == "spmm_csr_f32_n32") {
        let start = problem.start(x, 36);
        let mut c = gpu.upload_strided(&start, 36, GUARD as f32).unwrap();
        let mut operands: Vec<(&str, Operand<'_, f32>)> =
            vec![("A", (&a).into()), ("B", (&b).into())];
        let biases = upload(&gpu, [&problem.bias_rows, &problem.bias_columns(36)]);
        x.operands(&mut operands, biases.each_ref());
        let plan = plan_of(&gpu, &x.text(), &operands, &force(row));
        assert!(!is_bundled(&plan.to_string()), "{plan}");
        assert_eq!(rows_cut(&plan), Some(5), "{plan}");
        finish(&gpu, |stream| plan.run(&operands, &mut c, stream));
        let found = c.to_storage().unwrap();
        assert_matrix(&row.name, &found, (rows, 36, 36), |r, c| problem.expected(x, r, c));
    }
}

/// Whether the text of a plan reports bundles.
fn is_bundled(plan: &str) -> bool {
    let count = plan.split_once(" of them bundles").map(|(head, _)| head);
    let count = count.and_then(|head| head.rsplit(' ').next());
    count.is_some_and(|count| count != "0")
}

macro_rules! suites {
    ($($dtype:ident: $element:ty, $name:ident;)*) => {$(
        #[test]
        fn $name() {
            if let Some(gpu) = gpu() {
                bundled::<$element>(&gpu, Dtype::$dtype);
            }
        }
    )*};
}

suites! {
    F32: f32, short_rows_f32;
    F64: f64, short_rows_f64;
    F16: einsparse::formats::f16, short_rows_f16;
    Bf16: einsparse::formats::bf16, short_rows_bf16;
}
