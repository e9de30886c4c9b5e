//! The CPU executor against the naive reference: every format, expression, mode and element type, with exact equality.

mod contract;
mod gathers;
mod joined;
mod long;
mod paths;
mod problem;
mod windows;

use einsparse::einsum::Mode;
use einsparse::formats::{AnySparse, Csr, Format, bf16, f16, proptest as strategies};
use proptest::prelude::*;

use crate::support::sized;
use problem::{Problem, integers};

const MATRIX: &[&str] = &[
    "coo",
    "csr",
    "csc",
    "ell",
    "groupcoo:1",
    "groupcoo:4",
    "groupcoo",
    "groupcoo:3@1",
    "groupcoo:hybrid",
    "bsr:2x3",
    "bsr:4x4",
    "blockcoo:3x2",
    "blockgroupcoo:3x2:2",
    "blockgroupcoo:5x4",
    "nm:2:4",
    "bitmap",
    "bytemap",
    "sell",
];
const TENSOR3: &[&str] = &["coo", "groupcoo:2", "groupcoo:4@1", "groupcoo@2"];

/// Sparse operand, its formats, and expressions with the extents of their indices.
type Cases = (&'static str, &'static [&'static str], &'static [&'static str]);
const CASES: &[Cases] = &[
    (
        "A",
        MATRIX,
        &[
            "C[m,n] = A[m,k] * B[k,n], m 13, k 11, n 17",
            "C[m,n] = A[m,k] * B[k,n], m 9, k 7, n 101",
            "C[m,n] = A[m,k] * B[k,n], m 1, k 1, n 1",
            "C[m,n] = A[m,k] * B[k,n], m 0, k 5, n 4",
            "C[m,n] = A[m,k] * B[k,n], m 5, k 0, n 4",
            "C[m,n] = A[m,k] * B[k,n], m 5, k 4, n 0",
            "C[m,n] = relu(2 * A[m,k] * B[k,n] + b[m]), m 13, k 11, n 9",
            "C[m,n] = relu(A[m,k] * B[k,n] + b[n]), m 13, k 11, n 9",
            "C[m,n] = A[m,k] * B[k,n] + b[m,n], m 6, k 5, n 9",
            "C[m,n] = A[k,m] * B[k,n] + b[m], m 13, k 11, n 9",
            "C[n,m] = A[m,k] * B[k,n], m 13, k 11, n 9",
            "C[m,n] = A[m,k] * B[n,k], m 13, k 11, n 9",
            "C[m,n] = D[m,k] * A[k,n], m 6, k 11, n 12",
            "C[b,m,n] = A[m,k] * B[b,k,n], b 3, m 7, k 5, n 9",
            "C[m,n] = D[m] * A[m,k] * E[k] * B[k,n], m 7, k 5, n 9",
        ],
    ),
    (
        "S",
        MATRIX,
        &[
            "D[m,n] = S[m,n] * X[m,k] * Y[n,k], m 13, n 11, k 37",
            "D[m,n] = S[m,n] * X[m,k] * Y[k,n], m 13, n 11, k 3",
        ],
    ),
    (
        "A",
        MATRIX,
        &[
            "C[m,k] = A[m,k], m 13, k 11",
            "C[k,m] = relu(A[m,k]), m 13, k 11",
            "y[m] = A[m,k] * x[k], m 13, k 11",
            "r[m] = A[m,k], m 13, k 11",
            "r[k] = A[m,k], m 13, k 11",
            "s = x[m] * A[m,k] * y[k], m 13, k 11",
            "s = 3 * A[m,k], m 13, k 11",
            "d[i] = A[i,i], i 13",
            "s = A[i,i] * x[i], i 13",
            "D[m,m] = A[m,k], m 7, k 11",
            "C[m,k,n] = A[m,k] * x[n], m 5, k 4, n 6",
        ],
    ),
    (
        "T",
        TENSOR3,
        &[
            "M[i,r] = T[i,j,k] * B[j,r] * C[k,r], i 7, j 5, k 6, r 9",
            "M[j,r] = T[i,j,k] * B[i,r] * C[k,r], i 7, j 5, k 6, r 9",
            "Y[i,j,r] = T[i,j,k] * U[k,r], i 7, j 5, k 6, r 3",
        ],
    ),
    (
        "G",
        TENSOR3,
        &["O[b,k,w] = G[i,j,k] * X[b,i,u] * Y[b,j] * W[b,u,w], b 2, i 3, j 4, k 5, u 3, w 6"],
    ),
    ("T", TENSOR3, &["y[j] = T[i,j,i] * x[i], i 6, j 7"]),
    ("x", &["coo"], &["s = x[i] * y[i], i 40"]),
    (
        "",
        &[""],
        &[
            "C[m,n] = A[m,k] * B[k,n], m 13, k 11, n 9",
            "C[m,n] = A[k,m] * B[n,k] + b[n], m 13, k 11, n 9",
            "t = A[i,i], i 13",
            "y[n] = relu(a[n] * b[n] * c[n]), n 5000",
            "s = a[n] * b[n], n 300",
            "C[a,b,c,d] = x[a] * y[b] * z[c] * w[d], a 2, b 3, c 4, d 5",
        ],
    ),
];

fn every_case<T: einsparse::Scalar>() {
    let all = CASES.iter().flat_map(|&(operand, formats, lines)| {
        lines.iter().map(move |line| (operand, formats, line))
    });
    for (i, (operand, formats, line)) in all.enumerate() {
        let (text, extents) = line.split_once(", ").unwrap();
        let extents = sized(extents).into_iter();
        let extents: Vec<_> = extents.map(|(name, n)| (name, n[0])).collect();
        for mode in [Mode::Assign, Mode::Accumulate] {
            for format in formats {
                let mut p = Problem::<T>::new(text, mode, operand, &extents, i as u64);
                if !format.is_empty() {
                    p.convert(format.parse().unwrap());
                }
                p.assert_exact(&format!("{text} {mode} {format} {}", T::NAME));
            }
        }
    }
}

#[test]
fn exact_f32() {
    every_case::<f32>();
}

#[test]
fn exact_f64() {
    every_case::<f64>();
}

#[test]
fn exact_f16() {
    every_case::<f16>();
}

#[test]
fn exact_bf16() {
    // Sums of these cases fit in the 8 significant bits of bf16 only if the sums are short.
    for n in [1, 2, 3, 8, 33] {
        for format in MATRIX {
            for mode in [Mode::Assign, Mode::Accumulate] {
                let extents = [("m", 13), ("k", 11), ("n", n)];
                let mut p =
                    Problem::<bf16>::new("C[m,n] = A[m,k] * B[k,n]", mode, "A", &extents, n as u64);
                p.convert(format.parse().unwrap());
                p.assert_exact(&format!("{mode} {format}"));
            }
        }
    }
}

fn any_format() -> impl Strategy<Value = Format> {
    let block = || strategies::block(5);
    let group = || prop::option::of(1usize..6);
    prop_oneof![
        prop_oneof![
            Just(Format::Coo),
            Just(Format::Csr),
            Just(Format::Csc),
            Just(Format::Ell),
            Just(Format::Bitmap),
            Just(Format::Bytemap),
            Just(Format::SlicedEll),
            Just(Format::Nm { n: 2, m: 4 })
        ],
        (0usize..2, group()).prop_map(|(axis, group)| Format::GroupCoo { axis, group }),
        block().prop_map(|block| Format::Bsr { block }),
        block().prop_map(|block| Format::BlockCoo { block }),
        (block(), group()).prop_map(|(block, group)| Format::BlockGroupCoo { block, group }),
    ]
}

proptest! {
    #[test]
    fn every_format_gives_the_same(
        csr in strategies::csr::<f32>(24),
        format in any_format(),
        n in prop_oneof![0usize..5, 60usize..70],
        accumulate: bool,
        text in prop::sample::select(vec![
            "C[m,n] = A[m,k] * B[k,n]", "C[m,n] = relu(A[m,k] * B[k,n] + b[n])", "C[m,n] = B[k,n] * A[m,k] + b[m]",
            "C[k,n] = A[m,k] * B[m,n]", "C[m,k] = A[m,k] * B[m,n] * D[k,n]", "r[m] = A[m,k]", "s = A[m,k]",
        ]),
    ) {
        let any = AnySparse::Csr(Csr::clone(&csr));
        let mode = if accumulate { Mode::Accumulate } else { Mode::Assign };
        let mut extents = vec![("m", csr.shape()[0]), ("k", csr.shape()[1])];
        if text.contains('n') {
            extents.push(("n", n));
        }
        let mut p = Problem::<f32>::new(text, mode, "A", &extents, 1);
        p.sparse = Some(("A".into(), any));
        p.convert(format);
        p.assert_exact(&format!("{format}"));
    }

    #[test]
    fn tensors_of_any_order(order in 1usize..5, seed: u64, axis in 0usize..4, group in prop::option::of(1usize..5)) {
        let letters = ["i", "j", "k", "l"];
        let extents: Vec<(&str, usize)> = letters[..order].iter().enumerate().map(|(a, n)| (*n, 2 + a)).collect();
        let text = format!("y[{}] = T[{}] * x[{}]", letters[order - 1], letters[..order].join(","), letters[0]);
        let mut p = Problem::<f64>::new(&text, Mode::Assign, "T", &extents, seed % 1000);
        p.assert_exact("coo");
        if order > 1 {
            p.convert(Format::GroupCoo { axis: axis % order, group });
            p.assert_exact("groupcoo");
        }
    }
}
