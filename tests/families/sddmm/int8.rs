//! SDDMM of 8-bit integers at unstructured nonzeros. Every row of the table that computes it, and the CPU, are compared
//! with exact integers.

use crate::families::spmm::int8::{FORMATS, LENS, whole};
use crate::support::einsum::{Given, samples_agree};
use crate::support::rows::{force, kernels_here};
use crate::support::{Rng, on_both, spread};
use einsparse::Context;
use einsparse::formats::{Csr, Dense, bf16, f16};
use einsparse::registry::{Operation, Row, Scalar};

fn sddmm_rows() -> impl Iterator<Item = &'static Row> {
    kernels_here().filter(|row| row.operation == Operation::SampledNarrow)
}

/// Checks SDDMM of a pattern with `k` terms exactly, masked and not, into one type.
fn samples<Out: Scalar>(
    context: &Context,
    row: Option<&Row>,
    (k, format): (usize, &str),
    (text, alpha): (&str, f64),
    mut value: impl FnMut() -> i8,
) {
    let pattern = spread(&LENS, 700);
    let entries = pattern.columns().len();
    let mut some = |n: usize| -> Vec<i8> { (0..n).map(|_| value()).collect() };
    let (mask, x, y) = (some(entries), some(LENS.len() * k), some(700 * k));
    let old: Vec<Out> = (0..entries).map(|p| Out::from_f64((p % 7) as f64 - 3.0)).collect();
    let (old, mask) = (Csr::new(pattern.clone(), old).unwrap(), Csr::new(pattern, mask).unwrap());
    let leading =
        if row.is_some_and(|row| row.vector > 1) { k.next_multiple_of(16) } else { k + 3 };
    let apart = |values: Vec<i8>, rows: usize| {
        Given::Apart(Dense::new([rows, k], values).unwrap(), leading)
    };
    let given = [("X", apart(x, LENS.len())), ("Y", apart(y, 700)), ("s", Given::Number(alpha))];
    let options = row.map(force).unwrap_or_default();
    let of = (&old, &mask, format);
    let plan = samples_agree::<i8, Out>(context, text, &given, of, (&options, &k));
    if let (Some(row), true) = (row, context.is_cuda()) {
        assert_eq!(plan.variant(), row.name);
    }
}

const SDDMM: [&str; 4] = [
    "S[m,n] = s * X[m,k] * Y[n,k]",
    "S[m,n] += s * X[m,k] * Y[n,k]",
    "S[m,n] = s * P[m,n] * X[m,k] * Y[n,k]",
    "S[m,n] += s * P[m,n] * Y[n,k] * X[m,k]",
];

fn every_sample(context: &Context, row: Option<&Row>) {
    let mut rng = Rng(11);
    let vector = row.map_or(1, |row| row.vector as usize);
    for k in [0, 1, 5, 8, 16, 64, 77, 128, 192, 250, 512, 600] {
        if k % vector != 0 {
            continue;
        }
        for text in SDDMM {
            // Some products of mask and factor overflow i32.
            samples::<i32>(context, row, (k, "csr"), (text, -40.0), || whole(&mut rng));
        }
        samples::<f32>(context, row, (k, "csr"), (SDDMM[1], 0.5), || (rng.word() >> 61) as i8 - 4);
    }
    for format in FORMATS {
        let case = (64, format);
        samples::<i32>(context, row, case, (SDDMM[3], 1.0), || whole(&mut rng));
    }
    let mut few = || (rng.word() >> 61) as i8 - 4;
    samples::<f16>(context, row, (16, "csr"), (SDDMM[2], 1.0), &mut few);
    samples::<bf16>(context, row, (16, "csr"), (SDDMM[0], 1.0), || 1);
    // The max number of terms, each i8::MIN squared.
    let most = ((1 << 17) - 1) / vector * vector;
    if row.is_some() {
        samples::<i32>(context, row, (most, "csr"), (SDDMM[0], 1.0), || i8::MIN);
    }
}

on_both! {
    int8_at_entries_is_exact: cpu [|cpu| every_sample(cpu, None)], gpu [|gpu| {
        for row in sddmm_rows() {
            every_sample(gpu, Some(row));
        }
    }];
}
