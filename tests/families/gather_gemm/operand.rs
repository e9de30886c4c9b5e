//! Dynamic operands of ordinary expressions: what plans select for them, and that results equal those of dense
//! operands.

use einsparse::dynamic::{Dynamic, SparsityHint};
use einsparse::formats::{Csr, CsrPattern, bf16, f16};
use einsparse::{Context, Operand, Plan, Scalar, Tensor, einsum};

use super::matmul::{dynamic, integers, product};
use crate::support::dense::poisoned;
use crate::support::gpu;
use crate::support::rows::{here, here_on, named};
use crate::support::runs::{finish, plan_of, sampled_plan_of};

const LINE: &str = "C[m,n] = A[m,k] * B[k,n]";

fn plan<T: Scalar>(
    context: &Context,
    line: &str,
    (a, b): (Operand<'_, T>, &Tensor<T>),
    variant: Option<&str>,
) -> Plan<T> {
    let operands = [("A", a), ("B", b.into())];
    plan_of(context, line, &operands, &named(variant))
}

/// The fuller an operand is, the less time skipping saves. A dense operand is never scanned.
#[test]
fn dynamic_operands_are_chosen_for_by_their_share() {
    let cpu = Context::unchecked_cpu();
    let a = cpu.zeros::<f16>(&[4096, 4096]).unwrap();
    let b = cpu.zeros::<f16>(&[4096, 4096]).unwrap();
    let first = |a: Operand<'_, f16>| plan(&cpu, LINE, (a, &b), None).choice().candidates[0].name;
    let expecting = |expected| first(Dynamic::new(&a).expecting(expected).into());
    let full = expecting(SparsityHint::MicroTiles(1.0));
    // With stand-ins another height may be fastest, and skipping may be faster at higher shares too.
    if here_on(&cpu.machine(), "pit_f16_128x1") == "pit_f16_128x1" {
        assert_eq!(first(Dynamic::new(&a).into()), "pit_f16_128x1");
        assert_eq!(expecting(SparsityHint::MicroTiles(0.02)), "pit_f16_128x1");
        // At this share of elements, 0.47, 0.27 and 0.15 of the micro-tiles of 128, 64 and 32 rows are nonempty. Fewer
        // rows mean fewer products, and fewer rows that share a row of B.
        assert_eq!(expecting(SparsityHint::Elements(0.005)), "pit_f16_64x1");
        assert_eq!(expecting(SparsityHint::Elements(0.014)), full);
    }
    assert!(expecting(SparsityHint::MicroTiles(0.02)).starts_with("pit"));
    assert!(!full.starts_with("pit"), "{full}");
    let choice = plan(
        &cpu,
        LINE,
        (Dynamic::new(&a).expecting(SparsityHint::MicroTiles(1.0)).into(), &b),
        None,
    );
    let choice = choice.choice().to_string();
    assert!(choice.contains("nearly all micro-tiles"), "{choice}");
    assert_eq!(first((&a).into()), full);
    let choice = plan(&cpu, LINE, ((&a).into(), &b), None);
    let choice = choice.choice().to_string();
    assert!(!choice.contains("pit"), "{choice}");
}

/// Expressions that the kernels do not compute use dense kernels, and the plan states the reason.
#[test]
fn dynamic_operands_of_other_expressions_are_dense() {
    let cpu = Context::unchecked_cpu();
    let square = |n: usize| cpu.zeros::<f16>(&[n, n]).unwrap();
    let (a, b, odd) = (square(64), square(64), square(63));
    let said = |line: &str, (a, b): (&Tensor<f16>, &Tensor<f16>)| {
        let plan = plan(&cpu, line, (Dynamic::new(a).into(), b), None);
        plan.choice().to_string()
    };
    for (line, operands, reason) in [
        ("C[m,n] = 2 * A[m,k] * B[k,n]", (&a, &b), "without factors"),
        ("C[m,n] = relu(A[m,k] * B[k,n])", (&a, &b), "without factors"),
        ("C[n,m] = A[m,k] * B[k,n]", (&a, &b), "computes C[m,n]"),
        ("C[m,n] = B[m,k] * A[k,n]", (&a, &b), "of the first matrix"),
        (LINE, (&odd, &odd), "by 16 bytes"),
    ] {
        let found = said(line, operands);
        assert!(found.contains(reason), "{line}: {found}");
        assert!(!found.contains("pit_f16"), "{line}: {found}");
    }
    let wide = cpu.zeros::<f32>(&[64, 64]).unwrap();
    let plan = plan(&cpu, LINE, (Dynamic::new(&wide).into(), &wide), None);
    let found = plan.choice().to_string();
    assert!(found.contains("f16 and bf16"), "{found}");
}

fn agree<T: Scalar>(context: &Context, variants: &[Option<&str>]) {
    let [m, k, n] = [300, 200, 264];
    let b = integers::<T>([k, n], 5);
    let b_there = context.upload_dense(&b).unwrap();
    let mut a_there = context.zeros::<T>(&[m, k]).unwrap();
    for &variant in variants {
        let plan = plan(context, LINE, (Dynamic::new(&a_there).into(), &b_there), variant);
        if let Some(variant) = variant {
            assert_eq!(plan.variant(), variant);
        }
        for per_mille in [1000, 0, 100, 30] {
            let a = dynamic::<T>([m, k], 64, per_mille, 7 + per_mille);
            a_there.write(&a).unwrap();
            let mut c = poisoned::<T>(context, &[m, n]);
            let operands = [("A", Dynamic::new(&a_there).into()), ("B", (&b_there).into())];
            finish(context, |stream| plan.run(&operands, &mut c, stream));
            let wanted: Vec<T> = product(&a, &b).into_iter().map(T::from_f64).collect();
            let found = c.to_dense().unwrap();
            assert!(found.values() == wanted, "{plan}, {per_mille}");
        }
    }
    let once = einsum!(*context, LINE, A = Dynamic::new(&a_there), B = &b_there).unwrap();
    let dense = einsum!(*context, LINE, A = &a_there, B = &b_there).unwrap();
    assert!(once.to_dense().unwrap().values() == dense.to_dense().unwrap().values());
}

#[test]
fn dynamic_operands_on_the_cpu() {
    agree::<f32>(&Context::unchecked_cpu(), &[None]);
    agree::<bf16>(&Context::unchecked_cpu(), &[None]);
}

#[test]
fn dynamic_operands_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let named = [here("pit_f16_128x1"), here("pit_f16_64x1"), here("pit_f16_32x1")].map(Some);
    agree::<f16>(&gpu, &named);
    agree::<bf16>(&gpu, &[None, Some(here("pit_bf16_128x1"))]);
    agree::<f32>(&gpu, &[None]);
}

/// Plans of batches list the kernels whose micro-tiles end where items end.
#[test]
fn batches_are_chosen_for_by_their_share() {
    let cpu = Context::unchecked_cpu();
    let zeros = |shape: &[usize]| cpu.zeros::<f16>(shape).unwrap();
    let (a, b, odd) = (zeros(&[4, 1024, 1024]), zeros(&[4, 1024, 1024]), zeros(&[4, 96, 1024]));
    let line = "C[z,m,n] = A[z,m,k] * B[z,k,n]";
    let candidates = |line: &str, operands: [Operand<'_, f16>; 2]| {
        let [a, b] = operands;
        let plan = plan_of(&cpu, line, &[("A", a), ("B", b)], &named(None));
        let names: Vec<_> = plan.choice().candidates().map(|(name, _)| name).collect();
        (names, plan.choice().to_string())
    };
    let skips = |names: &[&str]| names.iter().any(|name| name.starts_with("pit_"));
    let on = |name: &str| here_on(&cpu.machine(), name);
    let (names, _) = candidates(line, [Dynamic::new(&a).into(), (&b).into()]);
    for height in [128, 64, 32] {
        let name = on(&format!("pit_f16_{height}x1"));
        assert!(names.contains(&name), "{names:?}");
    }
    let (names, _) = candidates(line, [Dynamic::new(&odd).into(), (&b).into()]);
    assert_eq!(names, [on("pit_f16_32x1")]);
    let by_columns = "C[z,m,n] = A[z,k,m] * B[z,k,n]";
    for line in [line, by_columns] {
        let (names, _) = candidates(line, [(&a).into(), Dynamic::new(&b).into()]);
        assert_eq!(names, [on("pit_right_f16_1x64")], "{line}");
    }
    // Other expressions and shares run as for dense operands.
    let full = Dynamic::new(&a).expecting(SparsityHint::MicroTiles(1.0));
    for (line, operands, reason) in [
        (by_columns, [Dynamic::new(&a).into(), (&b).into()], "not with A[z,k,m]"),
        (line, [full.into(), (&b).into()], "nearly all micro-tiles"),
        (
            "C[z,m,n] = relu(A[z,m,k] * B[z,k,n])",
            [Dynamic::new(&a).into(), (&b).into()],
            "epilogue",
        ),
    ] {
        let (names, choice) = candidates(line, operands);
        assert!(!skips(&names) && choice.contains(reason), "{line}: {choice}");
    }
}

/// The CPU multiplies elements up to the threshold too.
#[test]
fn thresholds_on_the_cpu() {
    let cpu = Context::unchecked_cpu();
    let a = integers::<f32>([9, 7], 1);
    let b = integers::<f32>([7, 5], 2);
    let (a_there, b_there) = (cpu.upload_dense(&a).unwrap(), cpu.upload_dense(&b).unwrap());
    let small = Dynamic::new(&a_there).threshold(100.0);
    let c = einsum!(cpu, LINE, A = small, B = &b_there).unwrap();
    let wanted: Vec<f32> = product(&a, &b).into_iter().map(|x| x as f32).collect();
    assert!(c.to_dense().unwrap().values() == wanted);
    let plan = cpu.plan(LINE).operand("A", Dynamic::new(&a_there).threshold(-1.0));
    let error = plan.operand("B", &b_there).build().unwrap_err();
    assert!(error.to_string().contains("threshold -1"), "{error}");
}

/// If no kernel detects micro-tiles, a dynamic operand is used as a dense tensor.
#[test]
fn dynamic_operands_of_other_plans_are_dense() {
    let cpu = Context::unchecked_cpu();
    let x = cpu.upload_dense(&integers::<f32>([2, 3], 1)).unwrap();
    let pattern = CsrPattern::new(2, 2, vec![0, 1, 2], vec![1, 0]).unwrap();
    let zeros = Csr::new(pattern, vec![0f32; 2]).unwrap();
    let line = "S[m,n] = X[m,k] * Y[n,k]";
    let sampled = |x_is: Operand<'_, f32>| {
        let mut s = cpu.upload(&zeros).unwrap();
        let operands = [("X", x_is), ("Y", (&x).into())];
        let plan = sampled_plan_of(&cpu, line, &operands, &s);
        plan.run(&operands, &mut s, &cpu.stream().unwrap()).unwrap();
        s.to_host().unwrap().values().to_vec()
    };
    assert_eq!(sampled(Dynamic::new(&x).into()), sampled((&x).into()));
    let wide = cpu.upload_dense(&integers::<f32>([3, 400], 2)).unwrap();
    let tall = cpu.upload_dense(&integers::<f32>([400, 2], 3)).unwrap();
    let path = |first: Operand<'_, f32>| {
        let operands = [("A", first), ("B", (&wide).into()), ("C", (&tall).into())];
        let line = "Y[m,n] = A[m,k] * B[k,l] * C[l,n]";
        cpu.contraction_path(line, &operands).unwrap()
    };
    let found = path(Dynamic::new(&x).into());
    assert!(found.is_some());
    assert_eq!(found, path((&x).into()));
}
