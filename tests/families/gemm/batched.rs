//! One block-sparse matrix times a batch of dense ones, against exact integers. If the batch is stored as one matrix,
//! one launch computes it.

use crate::support::einsum::{Given, agrees};
use crate::support::runs::plan_and_run;
use crate::support::{Rng, fill_blocks, on_both, spread, stored};
use einsparse::formats::{AnySparse, Csr, Dense, bf16, f16};
use einsparse::{Context, Operand, Options, Scalar};

/// Index expressions of `A`, and of `B` and `C`; the last two without the batch index.
const TEXTS: [[&str; 3]; 4] = [
    ["A[m,k]", "k,n", "m,n"],
    ["A[k,m]", "k,n", "m,n"],
    ["A[m,k]", "n,k", "n,m"],
    ["A[k,m]", "n,k", "n,m"],
];

fn check<T: Scalar>(
    context: &Context,
    (bm, bk): (usize, usize),
    gap: usize,
    n: usize,
    items: usize,
) {
    let lens: Vec<usize> = (0..5).map(|r| r * 5 % 4).collect();
    let (rows, columns) = (5 * bm - gap, 7 * bk - gap);
    let pattern = fill_blocks(&spread(&lens, 7), (bm, bk), rows, columns);
    let csr = Csr::new(pattern.clone(), Rng(3).integers(pattern.columns().len())).unwrap();
    let a = Given::Sparse(stored(csr, &format!("blockgroupcoo:{bm}x{bk}:2")));
    for [a_text, b_text, c_text] in TEXTS {
        let transposed = a_text == "A[k,m]";
        if transposed && bm != bk {
            continue;
        }
        let (m, k) = if transposed { (columns, rows) } else { (rows, columns) };
        let shape = if b_text == "n,k" { [items, n, k] } else { [items, k, n] };
        let given = [
            ("A", a.clone()),
            ("B", Given::<T>::integers(&shape, 0)),
            ("bias", Given::integers(&[m], 0)),
        ];
        let text = format!("C[z,{c_text}] = {a_text} * B[z,{b_text}] + bias[m]");
        let what = (bm, bk, gap, n);
        agrees::<T, T>(context, &text, &given, &Options::default(), (|n| n, &what));
    }
}

/// A NaN affects no other item of the batch, although blocks at the edge extend past k.
fn nan_stays<T: Scalar>(context: &Context) {
    let (m, k, n, items) = (256, 192, 64, 3);
    let pattern = fill_blocks(&spread(&[2, 1], 2), (128, 128), m, k);
    let ones = vec![T::from_f64(1.0); pattern.columns().len()];
    let csr = AnySparse::from(Csr::new(pattern, ones).unwrap());
    let a = csr.convert("bsr:128x128".parse().unwrap()).unwrap();
    let a = context.upload(a).unwrap();
    for poisoned in 0..items {
        let value = |i: &[usize]| if i[0] == poisoned { f64::NAN } else { 1.0 };
        let b = Dense::from_fn([items, k, n], |i| T::from_f64(value(i))).unwrap();
        let b = context.upload_dense(&b).unwrap();
        let operands: [(&str, Operand<'_, T>); 2] = [("A", (&a).into()), ("B", (&b).into())];
        let text = "C[z,m,n] = A[m,k] * B[z,k,n]";
        let (plan, c) = plan_and_run(context, text, &operands, &Options::default());
        let c = c.to_dense().unwrap();
        for (item, c) in c.values().chunks(m * n).enumerate() {
            let nan = c.iter().filter(|x| x.to_f64().is_nan()).count();
            let wanted = if item == poisoned { m * n } else { 0 };
            assert_eq!(nan, wanted, "{}: NaN in {poisoned}, {item}", plan.variant());
        }
    }
}

on_both! {
    nan_stays_in_its_item: cpu [nan_stays::<f16>], gpu [nan_stays::<f16>, nan_stays::<bf16>];
}

on_both! {
    batches: cpu [|cpu| {
        for (gap, n) in [(0, 5), (3, 8)] {
            check::<f32>(cpu, (8, 8), gap, n, 3);
        }
        check::<f64>(cpu, (4, 2), 0, 3, 0);
    }], gpu [|gpu| {
        for edge in [16, 32, 64, 128] {
            // If k is not a multiple of a block, the batch does not form one matrix.
            for (gap, n) in [(0, 72), (5, 40), (0, 264)] {
                check::<f16>(gpu, (edge, edge), gap, n, 3);
                check::<bf16>(gpu, (edge, edge), gap, n, 2);
            }
        }
        // Blocks that kernels split into pieces of 64 x 64.
        for block in [(256, 256), (128, 64), (64, 128), (192, 64)] {
            check::<f16>(gpu, block, 3, 72, 2);
            check::<bf16>(gpu, block, 0, 40, 1);
        }
    }];
}
