//! Products with transposed matrices and without a transposed copy: block-sparse times dense, and dense times
//! block-sparse. Every row of the table that computes one is compared with exact integers.

use crate::support::dense::strided;
use crate::support::rows::{by_type, force, products_here};
use crate::support::runs::{finish, plan_of};
use crate::support::{GUARD, assert_matrix, fill_blocks, gpu, spread};
use einsparse::formats::{AnySparse, Csr, Dense};
use einsparse::kernels::abi::{B_COLUMNS, C_COLUMNS};
use einsparse::registry::{Row, Scalar};
use einsparse::{Context, Operand, Options};

/// Returns small integers, so that every sum is exact.
fn integer(i: usize) -> f64 {
    (i * 7919 % 9) as f64 - 4.0
}

/// Whether each is transposed: the sparse matrix, the dense one, the output.
type Order = (bool, bool, bool);

fn access(name: &str, [a, b]: [&str; 2], swapped: bool) -> String {
    let (a, b) = if swapped { (b, a) } else { (a, b) };
    format!("{name}[{a},{b}]")
}

/// A matrix of `rows` x `columns`, or its transpose, with its row stride.
struct Stored {
    shape: [usize; 2],
    leading: usize,
    swapped: bool,
}

impl Stored {
    fn new(rows: usize, columns: usize, swapped: bool) -> Stored {
        let shape = if swapped { [columns, rows] } else { [rows, columns] };
        Stored { shape, leading: shape[1].next_multiple_of(8) + 8, swapped }
    }

    fn dense<T: Scalar>(&self, f: impl Fn(usize, usize) -> f64 + Sync) -> Dense<T> {
        let value = |i: &[usize]| {
            let (r, c) = if self.swapped { (i[1], i[0]) } else { (i[0], i[1]) };
            T::from_f64(f(r, c))
        };
        Dense::from_fn(self.shape.to_vec(), value).unwrap()
    }
}

/// Checks `C (= | +=) A * B` for ragged extents, several widths and formats, with a bias along either axis.
fn check<T: Scalar>(context: &Context, edge: usize, order: Order, options: &Options, what: &str) {
    let lens: Vec<usize> = (0..300usize.div_ceil(edge)).map(|r| r * 5 % 4).collect();
    let blocks = 400usize.div_ceil(edge);
    // The last case allows whole vectors along both axes of C.
    for (n, format, [below, beside]) in [
        (8, "bsr", [3, 5]),
        (72, "blockcoo", [3, 5]),
        (264, "bsr", [3, 5]),
        (130, "blockcoo", [3, 5]),
        (88, "bsr", [8, 8]),
    ] {
        let (rows, columns) = (lens.len() * edge - below, blocks * edge - beside);
        let pattern = fill_blocks(&spread(&lens, blocks), (edge, edge), rows, columns);
        let nnz = pattern.columns().len();
        let values: Vec<T> = (0..nnz).map(|i| T::from_f64(integer(i))).collect();
        let csr = Csr::new(pattern, values).unwrap();
        let (m, k) = if order.0 { (columns, rows) } else { (rows, columns) };
        let a = AnySparse::from(csr.clone())
            .convert(format!("{format}:{edge}x{edge}").parse().unwrap())
            .unwrap();
        let a = context.upload(a).unwrap();
        let at = |k: usize, n_at: usize| integer(k * n + n_at + 3);
        let mut sums = vec![0f64; m * n];
        for r in 0..rows {
            for p in csr.pattern().row(r) {
                let c = csr.pattern().columns()[p] as usize;
                let (m_at, k_at) = if order.0 { (c, r) } else { (r, c) };
                let x = csr.values()[p].to_f64();
                for j in 0..n {
                    sums[m_at * n + j] += x * at(k_at, j);
                }
            }
        }
        let b = Stored::new(k, n, order.1);
        let gap = T::from_f64(f64::NAN);
        let b = strided(context, &b.dense(at), b.leading, gap);
        let c = Stored::new(m, n, order.2);
        let product =
            format!("{} * {}", access("A", ["m", "k"], order.0), access("B", ["k", "n"], order.1));
        for (tail, equals, axis) in
            [("", "=", ' '), ("", "+=", ' '), (" + bias[m]", "=", 'm'), (" + bias[n]", "=", 'n')]
        {
            let start = |m_at: usize, n_at: usize| match equals {
                "=" => f64::NAN,
                _ => (m_at * 3 + n_at * 2) as f64 % 11.0 - 5.0,
            };
            let text = format!("{} {equals} {product}{tail}", access("C", ["m", "n"], order.2));
            let bias = |i: usize| f64::from(i as u32 % 5) - 2.0;
            let length = if axis == 'm' { m } else { n };
            let add = Dense::from_fn(vec![length], |i| T::from_f64(bias(i[0]))).unwrap();
            let add = context.upload_dense(&add).unwrap();
            let operands = || {
                let mut list: Vec<(&str, Operand<'_, T>)> =
                    vec![("A", (&a).into()), ("B", (&b).into())];
                if axis != ' ' {
                    list.push(("bias", (&add).into()));
                }
                list
            };
            let first = c.dense(start);
            let guard = T::from_f64(GUARD);
            let mut out = context.upload_strided(&first, c.leading, guard).unwrap();
            let mut planned = operands();
            planned.push(("C", (&out).into()));
            let plan = plan_of(context, &text, &planned, options);
            finish(context, |stream| plan.run(&operands(), &mut out, stream));
            let found = out.to_storage().unwrap();
            let [height, width] = c.shape;
            assert_matrix(&(what, &text, n, format), &found, (height, width, c.leading), |r, j| {
                let (m_at, n_at) = if order.2 { (j, r) } else { (r, j) };
                let more = match axis {
                    'm' => bias(m_at),
                    'n' => bias(n_at),
                    _ => 0.0,
                };
                let before = match start(m_at, n_at) {
                    x if x.is_nan() => 0.0,
                    x => x,
                };
                T::from_f64(sums[m_at * n + n_at] + before + more)
            });
        }
    }
}

fn rows() -> impl Iterator<Item = &'static Row> {
    products_here().filter(|row| !row.is_plain())
}

fn order(row: &Row) -> Order {
    let has = |flag: u32| row.order & flag != 0;
    (row.transposes(), has(B_COLUMNS), has(C_COLUMNS))
}

#[test]
fn every_row_of_another_order_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for row in rows() {
        // Pieces of 64 x 64 also form larger blocks.
        let edges: &[usize] = if row.block.0 == 64 { &[64, 128] } else { &[row.block.0 as usize] };
        for &edge in edges {
            let (order, options) = (order(row), force(row));
            by_type!(row.dtype, check(&gpu, edge, order, &options, row.name));
        }
    }
}

#[test]
fn the_cpu_multiplies_in_every_order() {
    for bits in 0..8 {
        let order = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
        check::<f32>(&Context::unchecked_cpu(), 16, order, &Options::default(), "cpu");
    }
    assert!(rows().count() > 0);
}
