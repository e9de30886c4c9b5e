//! Errors of planning, of runs and of tensors: values with names and numbers, and unchanged outputs.

use super::TEXT;
use crate::support::dense::upload_values;
use crate::support::{assert_error, spread};
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, FormatError};
use einsparse::ops::{SoftmaxOptions, SparseSoftmax};
use einsparse::raw::{RawSpmm, RawStream};
use einsparse::{Context, Error, Operand, SparseTensor, Tensor, einsum};

/// A is 2 x 3, B is 3 x 2.
pub fn two_by_three() -> (Csr<f32>, Dense<f32>) {
    let pattern = CsrPattern::new(2, 3, vec![0, 1, 3], vec![2, 0, 1]).unwrap();
    let a = Csr::new(pattern, vec![2.0, 3.0, 4.0]).unwrap();
    (a, Dense::new([3, 2], vec![1.0; 6]).unwrap())
}

/// Returns the error of planning.
#[track_caller]
pub fn refused(text: &str, operands: &[(&str, Operand<'_, f32>)]) -> Error {
    Context::cpu()
        .plan(text)
        .operands(operands)
        .build()
        .map(|plan| plan.to_string())
        .expect_err("an error")
}

#[test]
fn planning_refuses_what_does_not_fit() {
    let (a, b) = two_by_three();
    let error = refused("C[m,n] = A[m,k * B[k,n]", &[("A", (&a).into()), ("B", (&b).into())]);
    assert_error!(error, Error::Parse { at: 15, .. });

    let wrong = Dense::<f32>::zeros([4, 2]).unwrap();
    let error = refused(TEXT, &[("A", (&a).into()), ("B", (&wrong).into())]);
    assert_error!(error, Error::Shape { index, .. } if index == "k");
    let cube = Dense::<f32>::zeros([3, 2, 1]).unwrap();
    let error = refused(TEXT, &[("A", (&a).into()), ("B", (&cube).into())]);
    assert_error!(error, Error::Shape { index, .. } if index == "B");
    let error = refused(TEXT, &[("A", (&a).into())]);
    assert_error!(error, Error::MissingOperand { name, .. } if name == "B");
    let error = refused(TEXT, &[("A", (&a).into()), ("B", (&b).into()), ("D", (&b).into())]);
    assert_error!(error, Error::UnknownOperand { name, .. } if name == "D");
    let error = refused("C[m,n] = A[m,k] * B[k,j]", &[("A", (&a).into()), ("B", (&b).into())]);
    assert_error!(error, Error::Shape { index, .. } if index == "n");
}

#[test]
fn running_refuses_what_was_not_planned() {
    let cpu = Context::cpu();
    let (a, b) = two_by_three();
    let operands = [("A", (&a).into()), ("B", (&b).into())];
    let plan = cpu.plan(TEXT).operands(&operands).build().unwrap();
    let stream = cpu.stream().unwrap();
    let mut c = upload_values(&cpu, &[2, 2], vec![7.0; 4]);
    let run = |operands: &[(&str, Operand<'_, f32>)], c: &mut Tensor<f32>| {
        plan.run(operands, c, &stream).unwrap_err()
    };
    let error = run(&[("A", (&a).into()), ("B", (&b).into()), ("D", (&b).into())], &mut c);
    assert_error!(error, Error::UnknownOperand { name, .. } if name == "D");
    // A run that read one operand of a duplicate name would ignore the other one.
    for twice in [["A", "B", "B"], ["B", "A", "A"], ["A", "A", "B"]] {
        let operand = |name| match name {
            "A" => ("A", (&a).into()),
            _ => ("B", (&b).into()),
        };
        let operands = twice.map(operand);
        let error = plan.update_values(&operands, &stream).unwrap_err();
        for error in [run(&operands, &mut c), error] {
            assert_error!(
                error,
                Error::Operand { reason, .. } if reason.starts_with("is given twice")
            );
        }
    }
    let tall = Dense::<f32>::zeros([4, 2]).unwrap();
    let error = run(&[("A", (&a).into()), ("B", (&tall).into())], &mut c);
    assert_error!(error, Error::Shape { index, .. } if index == "B");
    for (given, missing) in [("A", "B"), ("B", "A")] {
        let operand = if given == "A" { (&a).into() } else { (&b).into() };
        let error = run(&[(given, operand)], &mut c);
        assert_error!(error, Error::MissingOperand { name, .. } if name == missing);
    }
    let mut wide = cpu.zeros::<f32>(&[2, 5]).unwrap();
    let error = run(&operands, &mut wide);
    assert_error!(error, Error::Shape { index, .. } if index == "C");
    assert_eq!(c.to_dense().unwrap().values(), [7.0; 4], "outputs are untouched");
    // SAFETY: a CPU plan launches no kernel.
    let error = unsafe { plan.run_raw(&RawSpmm::default(), RawStream::LEGACY) }.unwrap_err();
    assert_error!(error, Error::Cuda { code: None, .. });
}

#[test]
fn a_named_factor_must_be_a_number() {
    let cpu = Context::cpu();
    let (a, b) = two_by_three();
    let text = "C[m,n] = s * A[m,k] * B[k,n]";
    let error = refused(text, &[("A", (&a).into()), ("B", (&b).into()), ("s", (&b).into())]);
    assert_eq!(error.name(), Some("s"), "{error}");
    let given: [(&str, Operand<'_, f32>); 3] =
        [("A", (&a).into()), ("B", (&b).into()), ("s", 2.0.into())];
    let plan = cpu.plan(text).operands(&given).build().unwrap();
    let mut c = cpu.zeros(plan.out_shape()).unwrap();
    let stream = cpu.stream().unwrap();
    let error = plan.run(&given[..2], &mut c, &stream).unwrap_err();
    assert_error!(error, Error::MissingOperand { name, .. } if name == "s");
    plan.run(&given, &mut c, &stream).unwrap();
    assert_eq!(c.to_dense().unwrap().values(), [4.0, 4.0, 14.0, 14.0]);
}

#[test]
fn tensors_refuse_what_does_not_fit() {
    let cpu = Context::cpu();
    let (a, b) = two_by_three();
    let error = cpu.upload_strided(&b, 1, 0.0).unwrap_err();
    assert_error!(error, Error::RowStride { found: 1, .. });
    let mut tensor = cpu.upload_dense(&b).unwrap();
    let error = tensor.write(&Dense::zeros([2, 3]).unwrap()).unwrap_err();
    assert_error!(
        error,
        Error::Shape { left, right, .. } if left.contains("[3, 2]") && right.contains("[2, 3]")
    );
    let mut sparse = cpu.upload(a).unwrap();
    let error = sparse.set_values(&[1.0]).unwrap_err();
    assert_error!(error, Error::Format(FormatError::Length { found: 1, expected: 3, .. }));
    let error = cpu.zeros::<f32>(&[usize::MAX / 2, 16]).unwrap_err();
    let Error::Overflow { value, limit, .. } = error else { panic!("{error:?}") };
    assert!(value == (usize::MAX / 2) as u128 * 16 && limit < value);
    let error = Error::from(Dense::new([2, 2], vec![1.0f32]).unwrap_err());
    assert_error!(error, Error::Format(FormatError::Length { found: 1, expected: 4, .. }));
}

#[test]
fn an_index_past_its_axis_is_named() {
    let b = Dense::new([3, 2], vec![1.0f32; 6]).unwrap();
    let v = Dense::new([2], vec![1.0f32; 2]).unwrap();
    let cpu = Context::cpu();
    let error = einsum!(
        cpu,
        "C[p,n] = V[p] * B[I[p],n]",
        V = &v,
        B = &b,
        I = (&[2usize][..], &[1u32, 9][..])
    )
    .unwrap_err();
    let Error::InvalidIndex { array, position, value, bound, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!((array.as_str(), *position, *value, *bound), ("I", 1, 9, 3));
}

#[test]
fn adding_wants_something_to_add_to() {
    let (a, b) = two_by_three();
    let cpu = Context::cpu();
    let text = "C[m,n] += A[m,k] * B[k,n]";
    let error = einsum!(cpu, text, A = &a, B = &b).unwrap_err();
    assert_error!(error, Error::MissingOperand { name, .. } if name == "C");
    let start = Dense::new([2, 2], vec![10.0f32; 4]).unwrap();
    let c = einsum!(cpu, text, A = &a, B = &b, C = &start).unwrap();
    assert_eq!(c.to_dense().unwrap().values(), [12.0, 12.0, 17.0, 17.0]);
}

#[test]
fn a_missing_gpu_has_a_reason() {
    let error = Context::cuda(999).map(|c| c.to_string()).unwrap_err();
    let Error::Cuda { call, reason, .. } = &error else { panic!("{error:?}") };
    assert!(!call.is_empty() && !reason.is_empty());
}

#[test]
fn a_softmax_refuses_what_does_not_fit() {
    let context = Context::cpu();
    let make = |lens: &[usize]| {
        let pattern = spread(lens, 6);
        let ones = vec![1f32; pattern.columns().len()];
        AnySparse::from(Csr::new(pattern, ones).unwrap())
    };
    let tensor = context.upload(make(&[2, 3])).unwrap();
    let plan = |t: &SparseTensor<f32>, lengths: Option<Vec<usize>>| {
        let o = SoftmaxOptions { lengths, ..Default::default() };
        SparseSoftmax::new(&context, t, &o)
    };
    let error = plan(&tensor, Some(vec![1, 2, 3])).unwrap_err();
    assert_error!(
        error,
        Error::OutOfRange { name, value, .. } if name == "lengths" && value == "3"
    );
    let blocks = make(&[2, 3]).convert("bsr:2x2".parse().unwrap()).unwrap();
    let error = plan(&context.upload(blocks).unwrap(), None).unwrap_err();
    assert_error!(error, Error::StorageFormat { found, .. } if found.starts_with("bsr:2x2"));
    let softmax = plan(&tensor, None).unwrap();
    let stream = context.stream().unwrap();
    let run = |lens: &[usize]| {
        let mut other = context.upload(make(lens)).unwrap();
        softmax.forward(&tensor, &mut other, &stream).unwrap_err()
    };
    assert_error!(
        run(&[2, 2]),
        Error::OtherPattern { planned, found, .. } if planned == "5 entries" && found == "4 entries"
    );
    assert_error!(run(&[2, 3, 0]), Error::Shape { left, .. } if left.contains("[2, 6]"));
}

/// A plan supports one pattern only, on the CPU as on a GPU.
#[test]
fn another_pattern_than_planned_is_refused() {
    let ctx = Context::cpu();
    let matrix = |columns: Vec<u32>| {
        let pattern = CsrPattern::new(2, 3, vec![0, 1, 3], columns).unwrap();
        Csr::new(pattern, vec![1.0f32, 2.0, 3.0]).unwrap()
    };
    let (a, same, other) = (matrix(vec![0, 1, 2]), matrix(vec![0, 1, 2]), matrix(vec![1, 1, 2]));
    let b = Dense::from_fn([3, 4], |_| 1.0f32).unwrap();
    let uploaded = [&a, &same, &other].map(|a| ctx.upload(a.clone()).unwrap());
    let plan = ctx.plan(TEXT).operand("A", &uploaded[0]);
    let plan = plan.operand("B", &b).build().unwrap();
    let mut c = ctx.zeros::<f32>(&[2, 4]).unwrap();
    let stream = ctx.stream().unwrap();
    let mut run = |a: Operand<'_, f32>| plan.run(&[("A", a), ("B", (&b).into())], &mut c, &stream);
    run((&uploaded[1]).into()).unwrap();
    run((&same).into()).unwrap();
    let refused = [run((&uploaded[2]).into()), run((&other).into())];
    for error in refused {
        assert_error!(error.unwrap_err(), Error::OtherPattern { name, .. } if name == "A");
    }
}

#[test]
fn numbers_are_taken_as_they_are_written() {
    let ((a, b), cpu) = (two_by_three(), Context::cpu());
    let text = "C[m,n] = s * A[m,k] * B[k,n]";
    let half = 0.5f32;
    for (c, wanted) in [
        (einsum!(cpu, text, s = 2, A = &a, B = &b), 4.0),
        (einsum!(cpu, text, s = -1.0, A = &a, B = &b), -2.0),
        (einsum!(cpu, text, s = half, A = &a, B = &b), 1.0),
    ] {
        assert_eq!(c.unwrap().to_dense().unwrap().values()[0], wanted);
    }
}

#[test]
fn a_sparse_output_is_told_its_way() {
    let ((a, b), cpu) = (two_by_three(), Context::cpu());
    let text = "A[m,k] = X[m,n] * Y[k,n]";
    let x = Dense::<f32>::zeros([2, 2]).unwrap();
    let error = einsum!(cpu, text, A = &a, X = &x, Y = &b).unwrap_err();
    assert_error!(error, Error::Operand { name, .. } if name == "A");
    let uploaded = cpu.upload(&a).unwrap();
    let operands = [("A", (&uploaded).into()), ("X", (&x).into()), ("Y", (&b).into())];
    assert_error!(refused(text, &operands), Error::Operand { name, .. } if name == "A");
}

/// A plan is made from shapes; a run requires the tensors.
#[test]
fn a_shape_is_for_planning_only() {
    for ctx in [Context::cpu(), Context::absent()] {
        let matrix = Csr::new(
            CsrPattern::new(2, 3, vec![0, 1, 3], vec![0, 1, 2]).unwrap(),
            vec![1.0f32, 2.0, 3.0],
        );
        let a = ctx.upload(matrix.unwrap()).unwrap();
        let plan =
            ctx.plan(TEXT).operand("A", &a).operand("B", Operand::Shape(&[3, 4])).build().unwrap();
        let (b, stream) = (ctx.zeros::<f32>(&[3, 4]).unwrap(), ctx.stream().unwrap());
        let mut c = ctx.zeros::<f32>(plan.out_shape()).unwrap();
        let mut run =
            |b: Operand<'_, f32>| plan.run(&[("A", (&a).into()), ("B", b)], &mut c, &stream);
        run((&b).into()).unwrap();
        let error = run(Operand::Shape(&[3, 4])).unwrap_err();
        assert_error!(error, Error::OperandKind { name, .. } if name == "B");
        let other = ctx.zeros::<f32>(&[3, 5]).unwrap();
        assert_error!(run((&other).into()).unwrap_err(), Error::Shape { index, .. } if index == "B");
    }
}
