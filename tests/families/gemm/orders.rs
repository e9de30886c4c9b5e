//! Products with transposed matrices and without a transposed copy: block-sparse times dense, and dense times
//! block-sparse. Every row of the table that computes one is compared with exact integers.

use crate::support::einsum::{Given, agrees, apart};
use crate::support::rows::{by_type, force, products_here};
use crate::support::{Rng, fill_blocks, gpu, spread, stored};
use einsparse::formats::Csr;
use einsparse::kernels::abi::{B_COLUMNS, C_COLUMNS};
use einsparse::registry::{Row, Scalar};
use einsparse::{Context, Options};

/// Whether each is transposed: the sparse matrix, the dense one, the output.
type Order = (bool, bool, bool);

fn access(name: &str, [a, b]: [&str; 2], swapped: bool) -> String {
    let (a, b) = if swapped { (b, a) } else { (a, b) };
    format!("{name}[{a},{b}]")
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
        let csr = Csr::new(pattern.clone(), Rng(3).integers(pattern.columns().len())).unwrap();
        let a = Given::Sparse(stored(csr, &format!("{format}:{edge}x{edge}")));
        let (m, k) = if order.0 { (columns, rows) } else { (rows, columns) };
        let b = Given::<T>::integers(&[k, n], 3);
        let b = if order.1 { b.transposed() } else { b };
        let [a_text, b_text, c_text] = [
            access("A", ["m", "k"], order.0),
            access("B", ["k", "n"], order.1),
            access("C", ["m", "n"], order.2),
        ];
        for (equals, bias) in [("=", ""), ("+=", ""), ("=", " + bias[m]"), ("=", " + bias[n]")] {
            let text = format!("{c_text} {equals} {a_text} * {b_text}{bias}");
            let mut given = vec![("A", a.clone()), ("B", b.clone())];
            if !bias.is_empty() {
                let length = if bias == " + bias[m]" { m } else { n };
                given.push(("bias", Given::integers(&[length], 0)));
            }
            agrees::<T, T>(context, &text, &given, options, (apart::<T>, &(what, n, format)));
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
