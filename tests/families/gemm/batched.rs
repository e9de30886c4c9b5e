//! One block-sparse matrix times a batch of dense ones, against exact integers. If the batch is stored as one matrix,
//! one launch computes it.

use crate::support::runs::{output_of, plan_and_run};
use crate::support::{fill_blocks, gpu, on_gpu, spread};
use einsparse::formats::{AnySparse, Csr, Dense, bf16, f16};
use einsparse::{Context, Operand, Options, Scalar};

fn integer(i: usize) -> f64 {
    (i * 7919 % 7) as f64 - 3.0
}

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
    let nnz = pattern.columns().len();
    let values: Vec<T> = (0..nnz).map(|i| T::from_f64(integer(i))).collect();
    let csr = Csr::new(pattern, values).unwrap();
    let format = format!("blockgroupcoo:{bm}x{bk}:2").parse().unwrap();
    let a = context.upload(AnySparse::from(csr.clone()).convert(format).unwrap()).unwrap();
    for [a_text, b_text, c_text] in TEXTS {
        let transposed = a_text == "A[k,m]";
        if transposed && bm != bk {
            continue;
        }
        let (m, k) = if transposed { (columns, rows) } else { (rows, columns) };
        let at = |item: usize, k: usize, n: usize| integer(item * 31 + k * 13 + n * 5);
        let (b_swapped, c_swapped) = (b_text == "n,k", c_text == "n,m");
        let b_shape = if b_swapped { [items, n, k] } else { [items, k, n] };
        let b = Dense::from_fn(b_shape.to_vec(), |i| {
            let (k, n) = if b_swapped { (i[2], i[1]) } else { (i[1], i[2]) };
            T::from_f64(at(i[0], k, n))
        })
        .unwrap();
        // Elements between rows belong to no matrix.
        let leading = b_shape[2].next_multiple_of(8) + 8;
        let gap_value = T::from_f64(f64::NAN);
        let b = context.upload_strided(&b, leading, gap_value).unwrap();
        let bias = Dense::from_fn(vec![m], |i| T::from_f64(integer(i[0]))).unwrap();
        let bias = context.upload_dense(&bias).unwrap();
        let text = format!("C[z,{c_text}] = {a_text} * B[z,{b_text}] + bias[m]");
        let operands: Vec<(&str, Operand<'_, T>)> =
            vec![("A", (&a).into()), ("B", (&b).into()), ("bias", (&bias).into())];
        let plan = context.plan(&text).operands(&operands).build().unwrap();
        let c = output_of(context, &plan, &operands);
        let c = c.to_dense().unwrap();
        for item in 0..items {
            let mut sums = vec![0f64; m * n];
            for r in 0..rows {
                for p in csr.pattern().row(r) {
                    let column = csr.pattern().columns()[p] as usize;
                    let (m_at, k_at) = if transposed { (column, r) } else { (r, column) };
                    let x = csr.values()[p].to_f64();
                    for j in 0..n {
                        sums[m_at * n + j] += x * at(item, k_at, j);
                    }
                }
            }
            for (i, sum) in sums.iter().enumerate() {
                let (m_at, j) = (i / n, i % n);
                let place = if c_swapped { [item, j, m_at] } else { [item, m_at, j] };
                let wanted = T::from_f64(sum + integer(m_at));
                let found = c.get(&place).unwrap();
                assert_eq!(
                    found,
                    wanted,
                    "{text} at {place:?}, {bm}x{bk} {gap} {n}, {}",
                    plan.variant()
                );
            }
        }
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

#[test]
fn nan_stays_in_its_item_on_the_gpu() {
    on_gpu(&[nan_stays::<f16>, nan_stays::<bf16>]);
}

#[test]
fn nan_stays_in_its_item_on_the_cpu() {
    nan_stays::<f16>(&Context::unchecked_cpu());
}

#[test]
fn batches_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for edge in [16, 32, 64, 128] {
        // If k is not a multiple of a block, the batch does not form one matrix.
        for (gap, n) in [(0, 72), (5, 40), (0, 264)] {
            check::<f16>(&gpu, (edge, edge), gap, n, 3);
            check::<bf16>(&gpu, (edge, edge), gap, n, 2);
        }
    }
    // Blocks that kernels split into pieces of 64 x 64.
    for block in [(256, 256), (128, 64), (64, 128), (192, 64)] {
        check::<f16>(&gpu, block, 3, 72, 2);
        check::<bf16>(&gpu, block, 0, 40, 1);
    }
}

#[test]
fn batches_on_the_cpu() {
    for (gap, n) in [(0, 5), (3, 8)] {
        check::<f32>(&Context::unchecked_cpu(), (8, 8), gap, n, 3);
    }
    check::<f64>(&Context::unchecked_cpu(), (4, 2), 0, 3, 0);
}
