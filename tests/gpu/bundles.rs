//! Many short rows: plans bundle neighbours, and cut what is long among them. Exact on integers, every row of the table that
//! bundles, over the epilogues in turn; the same bits again.

use super::rows::{force, formats, rows_cut};
use crate::support::{Expression, GUARD, Problem, assert_matrix, gpu, small, spread};
use einsparse::formats::CsrPattern;
use einsparse::registry::{Dtype, Scalar, WalkKind, products};
use einsparse::{Context, Operand};

/// Empty rows in runs, rows of every short length, a few that are cut, one of them last.
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
    // With two tiles enough for every row of the table on 132 multiprocessors.
    let rows = 22_000;
    let problem = Problem::<T>::integers(pattern(rows), 5, 264);
    let expressions = Expression::all();
    let stream = context.stream().unwrap();
    let of_type = products().filter(|row| {
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
        let a = context
            .upload(problem.sparse(names[turn % names.len()]))
            .unwrap();
        let n = (row.columns + row.vector) as usize;
        let b = context.upload_dense(&problem.b(n)).unwrap();
        let biases = [&problem.bias_rows, &problem.bias_columns(n)]
            .map(|d| context.upload_dense(d).unwrap());
        for at in [2 * turn, 2 * turn + 7] {
            let x = &expressions[at % expressions.len()];
            let what = (row.name, x.text(), n, turn);
            let mut found = Vec::new();
            for _ in 0..2 {
                let mut c = context
                    .upload_strided(&problem.start(x, n), n, T::from_f64(GUARD))
                    .unwrap();
                let mut operands: Vec<(&str, Operand<'_, T>)> =
                    vec![("A", (&a).into()), ("B", (&b).into())];
                x.operands(&mut operands, biases.each_ref());
                let plan = context.plan(&x.text(), &operands, &force(row)).unwrap();
                assert!(is_bundled(&plan.to_string()), "{what:?}: {plan}");
                assert_eq!(rows_cut(&plan), Some(6), "{what:?}: {plan}");
                plan.run(&operands, &mut c, &stream).unwrap();
                stream.synchronize().unwrap();
                found.push(c.to_storage().unwrap());
            }
            assert!(found[0] == found[1], "{what:?}: other bits");
            assert_matrix(&what, &found[0], (rows, n, n), |r, c| {
                problem.expected(x, r, c)
            });
        }
    }
}

/// Whether a plan says that items are bundles.
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
