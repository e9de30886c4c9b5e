//! Products with the transpose of a matrix with unstructured nonzeros, and batches of products, against exact integers:
//! every row of family `batched`, forced by name.

use crate::support::assert_error;
use crate::support::dense::{assert_exact, upload_values};
use crate::support::einsum::{Given, agrees, apart, integer};
use crate::support::rows::{force, products_here};
use crate::support::runs::{plan_and_run, plan_of};
use crate::support::{gpu, on_both, on_gpu, small, spread, stored};
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, bf16, f16};
use einsparse::registry::{Row, WalkKind};
use einsparse::{Context, Error, Operand, Options, Scalar};

const FORMATS: [&str; 6] = ["csr", "coo", "ell", "groupcoo:1", "groupcoo:4", "groupcoo:3"];

pub fn matrix<T: Scalar>(pattern: CsrPattern) -> Csr<T> {
    let nnz = pattern.columns().len();
    Csr::new(pattern, (0..nnz).map(|i| T::from_f64(integer(i))).collect()).unwrap()
}

/// Returns patterns with rows of many lengths. In the second, every row has column 0 and the last one, so that two
/// columns are long.
fn patterns() -> [CsrPattern; 4] {
    let long: Vec<usize> = (0..3000).map(|r| 2 + r % 3).collect();
    [
        spread(&[0, 3, 17, 0, 40, 1, 8, 5, 4, 2, 0], 41),
        spread(&long, 37),
        spread(&[0, 0, 0], 5),
        spread(&[300, 1, 290, 7], 300),
    ]
}

/// Returns the sum over k of a(m,k) b(k,n), with A or its transpose.
pub fn product<T: Scalar>(
    a: &Csr<T>,
    transposed: bool,
    n: usize,
    b: impl Fn(usize, usize) -> f64,
) -> Vec<f64> {
    let m = if transposed { a.pattern().cols() } else { a.pattern().rows() };
    let mut sums = vec![0f64; m * n];
    for row in 0..a.pattern().rows() {
        for p in a.pattern().row(row) {
            let column = a.pattern().columns()[p] as usize;
            let (to, from) = if transposed { (column, row) } else { (row, column) };
            let x = a.values()[p].to_f64();
            for j in 0..n {
                sums[to * n + j] += x * b(from, j);
            }
        }
    }
    sums
}

/// Runs one expression. With `items`, it is a batch.
fn check<T: Scalar>(
    context: &Context,
    options: &Options,
    (csr, format): (&Csr<T>, &str),
    (transposed, items): (bool, Option<usize>),
    n: usize,
) {
    let [rows, columns] = [csr.shape()[0], csr.shape()[1]];
    let (m, k) = if transposed { (columns, rows) } else { (rows, columns) };
    let shape: Vec<usize> = items.into_iter().chain([k, n]).collect();
    let given = [
        ("A", Given::Sparse(stored(csr.clone(), format))),
        ("B", Given::integers(&shape, 0)),
        ("bias", Given::integers(&[m], 0)),
    ];
    let z = if items.is_some() { "z," } else { "" };
    let a_text = if transposed { "A[k,m]" } else { "A[m,k]" };
    let text = format!("C[{z}m,n] += 2 * {a_text} * B[{z}k,n] + bias[m]");
    agrees::<T, T>(context, &text, &given, options, (apart::<T>, &(format, rows, columns, n)));
}

fn rows(dtype: &str) -> impl Iterator<Item = &'static Row> {
    let dtype = dtype.to_owned();
    products_here().filter(move |row| row.module == "batched" && row.dtype.name() == dtype)
}

fn every_row<T: Scalar>(context: &Context) {
    for row in rows(T::DTYPE.name()) {
        let transposed = row.walk == WalkKind::Permuted;
        let vector = row.vector as usize;
        for (i, pattern) in patterns().into_iter().enumerate() {
            let csr = matrix::<T>(pattern);
            let widths = [vector, row.columns as usize + vector, 3 * vector];
            for (j, n) in widths.into_iter().enumerate() {
                let format = FORMATS[(i + j * 2) % FORMATS.len()];
                let items = [None, Some(3), Some(1)][(i + j) % 3];
                check(context, &force(row), (&csr, format), (transposed, items), n);
            }
            if small() {
                break;
            }
        }
    }
}

/// Rows that walk CSR compute the transpose after a separate pass has ordered its values.
fn ahead<T: Scalar>(context: &Context) {
    let walks =
        |row: &&Row| row.module == "spmm" && row.walk == WalkKind::Csr && row.dtype == T::DTYPE;
    for row in products_here().filter(walks) {
        let csr = matrix::<T>(patterns()[0].clone());
        let n = row.columns as usize + row.vector as usize;
        check(context, &force(row), (&csr, "csr"), (true, None), n);
        check(context, &force(row), (&csr, "ell"), (true, None), row.vector as usize);
    }
}

#[test]
fn values_are_ordered_ahead() {
    on_gpu(&[ahead::<f32>, ahead::<f64>, ahead::<f16>, ahead::<bf16>]);
}

/// Values are ordered in tiles: enough values that two passes pay, in several tiles, the last of which is partial.
/// Successive runs with other values share the memory between the passes.
fn by_tiles<T: Scalar>(context: &Context, (pattern, row): (CsrPattern, &'static Row)) {
    let n = row.vector as usize;
    let csr = matrix::<T>(pattern);
    let (rows, columns) = (csr.shape()[0], csr.shape()[1]);
    let mut a = context.upload(&csr).unwrap();
    let b = Dense::from_fn([rows, n], |i| T::from_f64(integer(i[0] * 3 + i[1]))).unwrap();
    let ones = context.upload_dense(&b).unwrap();
    let text = "C[m,n] = A[k,m] * B[k,n]";
    let operands = [("A", (&a).into()), ("B", (&ones).into())];
    let plan = plan_of(context, text, &operands, &force(row));
    let stream = context.stream().unwrap();
    let mut found: Vec<_> = (0..4).map(|_| context.zeros::<T>(&[columns, n]).unwrap()).collect();
    for (turn, c) in found.iter_mut().enumerate() {
        let values = (0..csr.values().len()).map(|i| T::from_f64(integer(i + turn)));
        a.set_values(&values.collect::<Vec<_>>()).unwrap();
        let operands = [("A", (&a).into()), ("B", (&ones).into())];
        plan.run(&operands, c, &stream).unwrap();
        plan.run(&operands, c, &stream).unwrap();
        stream.synchronize().unwrap();
    }
    for (turn, c) in found.iter().enumerate() {
        let mut own = csr.clone();
        let values = own.values_mut().iter_mut().enumerate();
        values.for_each(|(i, v)| *v = T::from_f64(integer(i + turn)));
        let wanted = product(&own, true, n, |k, j| integer(k * 3 + j));
        assert_exact(c, &wanted, &format!("{}, run {turn}", row.name));
    }
}

#[test]
fn values_are_ordered_by_tiles() {
    let Some(gpu) = gpu() else { return };
    use einsparse::formats::generate;
    let of = |name: &str| einsparse::registry::find(name).unwrap();
    // Equal rows and columns; and hubs, where some pairs of tiles exchange no values.
    let uniform = generate::uniform(1500, 700, 0.29, 7).unwrap();
    let hubs = generate::rmat(15, 16, 7).unwrap();
    for pattern in [uniform, hubs] {
        assert!(pattern.columns().len() > 1 << 18);
        by_tiles::<f32>(&gpu, (pattern.clone(), of("spmm_csr_f32_n32")));
        by_tiles::<f64>(&gpu, (pattern.clone(), of("spmm_csr_f64_n32")));
        by_tiles::<f16>(&gpu, (pattern.clone(), of("spmm_csr_f16_n32")));
        by_tiles::<bf16>(&gpu, (pattern, of("spmm_csr_bf16_n32")));
        if small() {
            return;
        }
    }
    // Larger tiles.
    let large = generate::uniform(1 << 18, 1 << 18, 17.0 / (1 << 18) as f64, 7).unwrap();
    assert!(large.columns().len() > 4 << 20);
    by_tiles::<f32>(&gpu, (large.clone(), of("spmm_csr_f32_n32")));
    by_tiles::<f64>(&gpu, (large.clone(), of("spmm_csr_f64_n32")));
    by_tiles::<f16>(&gpu, (large, of("spmm_csr_f16_n32")));
}

#[test]
fn every_row_of_the_family() {
    on_gpu(&[every_row::<f32>, every_row::<f64>, every_row::<f16>, every_row::<bf16>]);
}

fn every_format<T: Scalar>(context: &Context) {
    for pattern in patterns() {
        let csr = matrix::<T>(pattern);
        for format in FORMATS {
            for items in [None, Some(0), Some(2)] {
                for n in [1, 5, 64] {
                    let options = Options::default();
                    check(context, &options, (&csr, format), (true, items), n);
                    check(context, &options, (&csr, format), (false, items), n);
                }
            }
            if small() {
                break;
            }
        }
    }
}

on_both! {
    every_format: cpu [every_format::<f32>], gpu [every_format::<f32>, every_format::<f16>];
}

/// A NaN in B reaches the rows of the transpose that have an entry there, no other rows, and no other item of the
/// batch.
#[test]
fn nan_reaches_its_rows_alone() {
    let Some(gpu) = gpu() else { return };
    let (n, items) = (12, 2);
    let csr = matrix::<f32>(spread(&[3, 0, 5, 2], 9));
    let value = |i: &[usize]| {
        if i[0] == 1 && i[1] == 2 { f32::NAN } else { 1.0 }
    };
    let b = Dense::from_fn([items, 4, n], value).unwrap();
    let b = gpu.upload_dense(&b).unwrap();
    let text = "C[z,m,n] = A[k,m] * B[z,k,n]";
    let owns = |m: usize| csr.pattern().columns()[csr.pattern().row(2)].contains(&(m as u32));
    let permuted = rows("f32").filter(|row| row.walk == WalkKind::Permuted);
    for options in permuted.map(force).chain([Options::default()]) {
        // With padding, and without.
        for format in ["csr", "ell", "groupcoo:4"] {
            let a = AnySparse::from(csr.clone()).convert(format.parse().unwrap());
            let a = gpu.upload(a.unwrap()).unwrap();
            let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
            let (plan, c) = plan_and_run(&gpu, text, &operands, &options);
            for (i, x) in c.to_dense().unwrap().values().iter().enumerate() {
                let (z, m) = (i / n / 9, i / n % 9);
                let what = (plan.variant(), format, z, m, i % n);
                assert_eq!(x.is_nan(), z == 1 && owns(m), "{what:?}: {x}");
            }
        }
    }
}

/// Another matrix with the same row lengths is not the pattern that was transposed.
#[test]
fn another_pattern_is_refused() {
    let Some(gpu) = gpu() else { return };
    let [a, same, other] = [vec![0, 2], vec![0, 2], vec![1, 2]].map(|columns| {
        let pattern = CsrPattern::new(2, 3, vec![0, 1, 2], columns).unwrap();
        gpu.upload(matrix::<f32>(pattern)).unwrap()
    });
    let b = upload_values(&gpu, &[2, 4], vec![1f32; 8]);
    let with = |a| [("A", Operand::Sparse(a)), ("B", (&b).into())];
    let text = "C[m,n] = A[k,m] * B[k,n]";
    let plan = gpu.plan(text).operands(&with(&a)).build().unwrap();
    let mut c = gpu.zeros::<f32>(plan.out_shape()).unwrap();
    let stream = gpu.stream().unwrap();
    plan.run(&with(&same), &mut c, &stream).unwrap();
    let error = plan.run(&with(&other), &mut c, &stream).unwrap_err();
    assert_error!(error, Error::OtherPattern { name, .. } if name == "A");
    stream.synchronize().unwrap();
}
