//! Products of dense matrices at the blocks of a pattern (SDDMM). Every row of the table that computes them, and the
//! CPU, are compared with exact integers.

use crate::support::assert_error;
use crate::support::dense::{transposed, upload};
use crate::support::einsum::{Given, samples_agree};
use crate::support::rows::{by_type, kernels_here, named};
use crate::support::runs::{finish, sampled_plan_of};
use crate::support::{fill_blocks, gpu, spread, stored};
use std::sync::Arc;

use einsparse::formats::{AnySparse, Csr, Dense, f16};
use einsparse::registry::{Operation, Row, Scalar};
use einsparse::{Context, Error, Operand, Tensor};

/// Returns small integers, so that every sum is exact.
fn integer(i: usize) -> f64 {
    (i * 7919 % 5) as f64 - 2.0
}

struct Case<T: Scalar> {
    csr: Csr<T>,
    format: String,
    x: Dense<T>,
    y: Dense<T>,
    by_column: bool,
}

impl<T: Scalar> Case<T> {
    /// Creates blocks of `block` with `lens` blocks per block row, `gap` short of whole blocks at the ends. x and y are
    /// `[m,k]` or `[k,m]`.
    fn new(lens: &[usize], block: (usize, usize), gap: usize, k: usize, by_column: bool) -> Self {
        let (bm, bk) = block;
        let blocks = lens.iter().max().unwrap() * 2 + 1;
        let (m, n) = (lens.len() * bm - gap, blocks * bk - gap);
        let pattern = fill_blocks(&spread(lens, blocks), block, m, n);
        let nnz = pattern.columns().len();
        let values: Vec<T> = (0..nnz).map(|i| T::from_f64(integer(3 * i + 1))).collect();
        let dense = |rows: usize, seed: usize| {
            let at = |i: &[usize]| T::from_f64(integer((i[0] * k + i[1]) * 3 + seed));
            let dense = Dense::from_fn([rows, k], at).unwrap();
            if by_column { transposed(&dense) } else { dense }
        };
        Case {
            csr: Csr::new(pattern, values).unwrap(),
            format: format!("blockgroupcoo:{bm}x{bk}:2"),
            x: dense(m, 1),
            y: dense(n, 2),
            by_column,
        }
    }

    fn s(&self) -> AnySparse<T> {
        stored(self.csr.clone(), &self.format)
    }
}

/// Uploads `dense` with a row stride of its columns rounded up to eight, plus eight.
fn strided<T: Scalar>(context: &Context, dense: &Dense<T>) -> Tensor<T> {
    let leading = dense.shape()[1].next_multiple_of(8) + 8;
    let gap = T::from_f64(f64::NAN);
    context.upload_strided(dense, leading, gap).unwrap()
}

/// Checks `S (= | +=) ...` with and without a mask and a factor, by the row named `wanted`.
fn check<T: Scalar>(context: &Context, case: &Case<T>, wanted: &str) {
    let given = [("X", Given::Dense(case.x.clone())), ("Y", Given::Dense(case.y.clone()))];
    let factors = if case.by_column { "X[k,m] * Y[k,n]" } else { "X[m,k] * Y[n,k]" };
    let options = named(context.is_cuda().then_some(wanted));
    for head in ["S[m,n] = ", "S[m,n] += ", "S[m,n] = 0.5 * P[m,n] * ", "S[m,n] += -2 * P[m,n] * "]
    {
        let (text, of) = (format!("{head}{factors}"), (&case.csr, &case.csr, &*case.format));
        let plan = samples_agree(context, &text, &given, of, (&options, &case.x.shape()));
        assert_eq!(plan.variant(), wanted, "{text}");
    }
}

/// Checks patterns and extents that a row of the table must compute.
fn cases<T: Scalar>(context: &Context, row: &Row) {
    let by_column = row.order & einsparse::kernels::abi::A_COLUMNS != 0;
    let piece = row.block.1 as usize;
    let blocks: &[(usize, usize)] = match piece {
        64 => &[(64, 64), (128, 128), (32, 64), (16, 128)],
        32 => &[(32, 32), (64, 32), (16, 96)],
        _ => &[(16, 16), (48, 16), (32, 48)],
    };
    for &block in blocks {
        let lens: Vec<usize> =
            (0..(330 / block.0).max(4)).map(|r| r * 5 % 4 * (1 + r % 2)).collect();
        // The last case is split along k.
        for (gap, k) in [(0, 64), (5, 72), (3, 8), (0, 1100)] {
            let case = Case::<T>::new(&lens, block, gap, k, by_column);
            check(context, &case, row.name);
        }
    }
}

#[test]
fn every_row_samples_products_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for row in kernels_here().filter(|r| r.operation == Operation::Sampled && r.module == "sampled")
    {
        by_type!(row.dtype, cases(&gpu, row));
    }
}

#[test]
fn the_cpu_samples_products_in_every_order_of_axes() {
    for by_column in [false, true] {
        let case = Case::<f32>::new(&[2, 0, 1], (16, 32), 3, 7, by_column);
        check(&Context::unchecked_cpu(), &case, "cpu");
        // Explicit zeros are entries too.
        let values = (0..case.csr.values().len()).map(|i| integer(i) as f32);
        let csr = Csr::new(Arc::clone(case.csr.pattern()), values.collect()).unwrap();
        let csr = Case { csr, format: "csr".into(), ..case };
        check(&Context::unchecked_cpu(), &csr, "cpu");
    }
}

#[test]
fn sampled_bits_repeat_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let mut case = Case::<f16>::new(&[3, 1, 2], (64, 64), 0, 4096, false);
    for (i, v) in case.x.values_mut().iter_mut().enumerate() {
        *v = f16::from_f64((i % 1013) as f64 * 0.01 - 3.0);
    }
    let (x, y) = (strided(&gpu, &case.x), strided(&gpu, &case.y));
    let operands = [("X", (&x).into()), ("Y", (&y).into())];
    let mut s = gpu.upload(case.s()).unwrap();
    let plan = sampled_plan_of(&gpu, "S[m,n] = X[m,k] * Y[n,k]", &operands, &s);
    assert!(!plan.to_string().contains(" 1 parts"), "{plan}: not cut along k");
    let mut first = None;
    for _ in 0..20 {
        finish(&gpu, |stream| plan.run(&operands, &mut s, stream));
        let found = s.to_host().unwrap();
        let bits: Vec<u16> = found.values().iter().map(|v| v.to_bits()).collect();
        assert_eq!(first.get_or_insert_with(|| bits.clone()), &bits);
    }
}

#[test]
fn sampled_plans_refuse_what_does_not_fit() {
    let cpu = Context::unchecked_cpu();
    let case = Case::<f32>::new(&[1, 1], (16, 16), 0, 4, false);
    let [x, y] = upload(&cpu, [&case.x, &case.y]);
    let s = cpu.upload(case.s()).unwrap();
    let plan = |text: &str| {
        let operands = [("X", (&x).into()), ("Y", (&y).into())];
        let plan = cpu.plan(text).operands(&operands).sparse_output(&s);
        plan.build().unwrap_err()
    };
    let twice = plan("S[m,n] = X[m,k] * X[m,k]");
    assert_error!(twice, Error::Shape { index, .. } if index == "n");
    let read = plan("S[m,n] = S[m,n] * X[m,k] * Y[n,k]");
    assert_error!(read, Error::Operand { name, .. } if name == "S");
    let shape = plan("S[m,n] = X[n,k] * Y[m,k]");
    assert_error!(shape, Error::Shape { .. });
    let operands = [("X", (&x).into()), ("Y", (&y).into()), ("S", (&s).into())];
    let given = cpu.plan("S[m,n] = X[m,k] * Y[n,k]").operands(&operands);
    let given = given.sparse_output(&s).build().unwrap_err();
    assert_error!(given, Error::Operand { name, .. } if name == "S");
}

#[test]
fn runs_of_sampled_plans_refuse_what_was_not_planned() {
    let cpu = Context::unchecked_cpu();
    let case = Case::<f32>::new(&[1, 1], (16, 16), 0, 4, false);
    let other = Case::<f32>::new(&[1, 0], (16, 16), 0, 4, false);
    let (x, y) = (strided(&cpu, &case.x), strided(&cpu, &case.y));
    let mask = cpu.upload(case.s()).unwrap();
    let mut s = cpu.upload(case.s()).unwrap();
    let stream = cpu.stream().unwrap();
    let plan = {
        let operands = [("X", (&x).into()), ("Y", (&y).into()), ("P", (&mask).into())];
        let text = "S[m,n] = P[m,n] * X[m,k] * Y[n,k]";
        sampled_plan_of(&cpu, text, &operands, &s)
    };
    let mut refused = |[x, y, mask]: [Operand<'_, f32>; 3]| {
        let operands = [("X", x), ("Y", y), ("P", mask)];
        plan.run(&operands, &mut s, &stream).unwrap_err()
    };
    let small = cpu.zeros::<f32>(&[31, 4]).unwrap();
    let shape = refused([(&small).into(), (&y).into(), (&mask).into()]);
    assert_error!(shape, Error::Shape { right, .. } if right.contains("[31, 4]"));
    let dense = cpu.zeros::<f32>(mask.shape()).unwrap();
    let kind = refused([(&x).into(), (&y).into(), (&dense).into()]);
    assert_error!(kind, Error::OperandKind { name, .. } if name == "P");
    let moved = cpu.upload(other.s()).unwrap();
    assert_eq!(moved.shape(), mask.shape());
    let moved = refused([(&x).into(), (&y).into(), (&moved).into()]);
    assert_error!(moved, Error::OtherPattern { name, .. } if name == "P");
}
