//! Gradients of plans: errors, names, and the values of sparse tensors.

use super::TEXT;
use super::errors::two_by_three;
use crate::support::assert_error;
use crate::support::dense::upload_values;
use einsparse::formats::Dense;
use einsparse::{Context, Error, Operand, Plan, SparseTensor, Tensor};

fn planned(context: &Context, text: &str) -> Plan<f32> {
    let (a, b) = two_by_three();
    context.plan(text).operand("A", &a).operand("B", &b).build().unwrap()
}

#[test]
fn gradients_are_refused_with_the_reason() {
    let cpu = Context::cpu();
    let plan = planned(&cpu, TEXT);
    assert_error!(plan.gradients(&["X"]).unwrap_err(), Error::UnknownOperand { name, .. } if name == "X");
    assert_error!(plan.gradients(&["C"]).unwrap_err(), Error::Operand { name, .. } if name == "C");
    assert_error!(plan.gradients(&["A", "A"]).unwrap_err(), Error::Operand { name, .. } if name == "A");

    let bytes = Dense::<i8>::zeros([4, 16]).unwrap();
    let plan = cpu.plan::<i8>("C[m,n] = A[m,k] * B[n,k]").operand("A", &bytes).operand("B", &bytes);
    let error = plan.output::<i8>().build().unwrap().gradients(&["A"]).unwrap_err();
    assert_error!(error, Error::ElementType { found, .. } if found == "int8");
}

#[test]
fn runs_of_gradients_check_the_operands() {
    let cpu = Context::cpu();
    let (a, b) = two_by_three();
    let (a, b) = (cpu.upload(a).unwrap(), cpu.upload_dense(&b).unwrap());
    let mut gradients = planned(&cpu, TEXT).gradients(&["B"]).unwrap();
    let stream = cpu.stream().unwrap();
    let dc = upload_values(&cpu, &[2, 2], vec![1.0; 4]);
    let mut run = |operands: &[(&str, Operand<'_, f32>)]| gradients.run(operands, &stream);
    assert_error!(run(&[("A", (&a).into())]).unwrap_err(), Error::MissingOperand { name, .. } if name == "dC");
    let error = run(&[("A", (&a).into()), ("dC", (&dc).into()), ("D", (&b).into())]);
    assert_error!(error.unwrap_err(), Error::UnknownOperand { name, .. } if name == "D");
    let error = run(&[("A", (&a).into()), ("dC", (&b).into())]);
    assert_error!(error.unwrap_err(), Error::Shape { index, .. } if index == "dC");
    // B is an operand of the plan that its own gradient does not read.
    run(&[("A", (&a).into()), ("B", (&b).into()), ("dC", (&dc).into())]).unwrap();
    assert_eq!(
        gradients.dense("B").unwrap().to_dense().unwrap().values(),
        [3.0, 3.0, 4.0, 4.0, 2.0, 2.0]
    );
    assert_error!(gradients.sparse("B").unwrap_err(), Error::OperandKind { name, .. } if name == "B");
    assert_error!(gradients.dense("A").unwrap_err(), Error::MissingOperand { name, .. } if name == "A");
}

/// The names of gradients differ from those of operands.
#[test]
fn names_that_are_taken_get_a_prime() {
    let cpu = Context::cpu();
    let shape = Operand::Shape(&[2, 2]);
    let plan = cpu.plan::<f32>("C[m,n] = dC[m,k] * dB[k,n]");
    let plan = plan.operand("dC", shape.clone()).operand("dB", shape).build().unwrap();
    let gradients = plan.gradients(&["dB", "dC"]).unwrap();
    let wanted = "ddB[k,n] = dC[m,k] * dC'[m,n]; ddC[m,k] = dC'[m,n] * dB[k,n]";
    assert_eq!(gradients.to_string(), wanted);
}

#[test]
fn values_of_a_sparse_tensor_are_a_tensor() {
    let cpu = Context::cpu();
    let mut a = cpu.upload(two_by_three().0).unwrap();
    assert_eq!(a.values().unwrap().to_dense().unwrap().values(), [2.0, 3.0, 4.0]);
    a.values_mut().unwrap().write(&Dense::new([3], vec![5.0, 6.0, 7.0]).unwrap()).unwrap();
    assert_eq!(a.to_host().unwrap().values(), [5.0, 6.0, 7.0]);
    a.set_values(&[1.0, 2.0, 3.0]).unwrap();
    assert_eq!(a.values().unwrap().to_dense().unwrap().values(), [1.0, 2.0, 3.0]);
}

/// A tensor without values is refused by every operation.
#[test]
fn values_that_are_taken_away_are_refused() {
    let cpu = Context::cpu();
    let b = upload_values(&cpu, &[3, 2], vec![1.0f32; 6]);
    let refused = |mut a: SparseTensor<f32>| {
        assert_error!(a.to_host().unwrap_err(), Error::Operand { name, .. } if name == "values");
        assert_error!(a.values().unwrap_err(), Error::Operand { name, .. } if name == "values");
        assert_error!(a.values_mut().unwrap_err(), Error::Operand { name, .. } if name == "values");
        let operands = [("A", (&a).into()), ("B", (&b).into())];
        let plan = planned(&cpu, TEXT);
        let mut c: Tensor<f32> = cpu.zeros(&[2, 2]).unwrap();
        assert!(plan.run(&operands, &mut c, &cpu.stream().unwrap()).is_err());
        let built = cpu.plan(TEXT).operands(&operands).build();
        let run = built.and_then(|plan| plan.run(&operands, &mut c, &cpu.stream()?));
        assert!(run.is_err());
        // Over lists of positions.
        let operands = [("A", (&a).into()), ("S", (&a).into())];
        let built = cpu.plan::<f32>("C[m] = A[m,k] * S[m,k]").operands(&operands).build();
        let mut c: Tensor<f32> = cpu.zeros(&[2]).unwrap();
        let run = built.and_then(|plan| plan.run(&operands, &mut c, &cpu.stream()?));
        assert_error!(run.unwrap_err(), Error::Operand { name, .. } if name == "values");
    };
    let mut a = cpu.upload(two_by_three().0).unwrap();
    std::mem::forget(a.values_mut().unwrap());
    refused(a);
    let mut a = cpu.upload(two_by_three().0).unwrap();
    let mut other = upload_values(&cpu, &[3], vec![0.0f32; 3]);
    std::mem::swap(&mut *a.values_mut().unwrap(), &mut other);
    assert_eq!(other.to_dense().unwrap().values(), [2.0, 3.0, 4.0]);
    refused(a);
}
