//! 2:4 sparsity with 8-bit integers: every row of the table forced over ragged shapes and types of C, exact; and
//! refusals.

use super::narrow::Case;
use super::nm::two_of_four;
use crate::support::rows::{as_on_hopper, force, kernels_here};
use crate::support::{assert_error, gpu, on_both, stored};
use einsparse::error::Refusal;
use einsparse::formats::{Csr, Dense};
use einsparse::registry::{Operation, Row, Scalar, WalkKind};
use einsparse::{Context, Error, Operand};

/// Rows and columns: around a group, a word of positions, a step, a stage, a pair of stages, a tile, and more stages
/// than are in flight.
const SHAPES: [[usize; 2]; 9] =
    [[0, 8], [3, 0], [1, 1], [5, 31], [64, 64], [129, 130], [257, 97], [300, 1500], [513, 640]];
const WIDTHS: [usize; 4] = [1, 16, 129, 264];
const PLAIN: &str = "C[m,n] = A[m,k] * B[n,k]";

fn rows() -> impl Iterator<Item = &'static Row> {
    kernels_here().filter(|row| row.operation == Operation::Narrow && row.walk == WalkKind::Nm)
}

fn case(shape: [usize; 2], full: bool, n: usize) -> Case<i8> {
    // 128 is saturated to 127.
    Case::new(two_of_four(shape, full, 31), "nm:2:4", n, 128)
}

on_both! {
    two_of_four_of_int8_is_exact: cpu [|cpu| {
        for shape in SHAPES {
            case(shape, true, 17).check::<i32>(cpu, "cpu", &[1.0, 1.0, -3.0]);
        }
    }], gpu [|gpu| {
        for shape in SHAPES {
            for n in WIDTHS {
                let mut case = case(shape, n != 129, n);
                for row in rows() {
                    case.options = force(row);
                    case.check::<i32>(gpu, row.name, &[1.0, 1.0, -3.0]);
                    if n > 16 {
                        case.check_outputs(gpu, row.name);
                    }
                }
            }
        }
    }];
}

/// Returns the reasons for which the kernels refuse an expression.
fn refused<Out: Scalar>(text: &str) -> Vec<Refusal> {
    let cpu = Context::unchecked_cpu();
    let case = case([32, 32], true, 32);
    let (a, b) = case.upload(&cpu);
    let bias = Dense::new(vec![32], vec![1i8; 32]).unwrap();
    let gate = Dense::new(vec![32, 32], vec![1i8; 1024]).unwrap();
    let mut operands: Vec<(&str, Operand<'_, i8>)> = vec![("A", (&a).into()), ("B", (&b).into())];
    for (name, operand) in [("bias", &bias), ("G", &gate)] {
        if text.contains(name) {
            operands.push((name, operand.into()));
        }
    }
    let plan = cpu.plan::<i8>(text).operands(&operands).output::<Out>();
    let plan = plan.build().unwrap();
    assert!(plan.choice().candidates.is_empty(), "{}", plan.choice());
    plan.choice().refused.clone()
}

#[test]
fn kernels_of_two_of_four_of_int8_say_what_they_refuse() {
    for (reason, found) in [
        ("no int8 output of int8", refused::<i8>(PLAIN)),
        ("adds no bias", refused::<f32>("C[m,n] = A[m,k] * B[n,k] + bias[m]")),
        ("no activation of an int32", refused::<i32>("C[m,n] = relu(A[m,k] * B[n,k])")),
        ("no relu_grad", refused::<f32>("C[m,n] = relu_grad(A[m,k] * B[n,k], G[m,n])")),
        ("computes", refused::<i32>("C[m,n] = A[m,k] * B[k,n]")),
    ] {
        let rows = kernels_here().filter(|row| as_on_hopper(row.name).contains("nm_int8"));
        assert!(rows.clone().next().is_some());
        for row in rows {
            let said = |r: &Refusal| r.name == row.name && r.reason.contains(reason);
            assert!(found.iter().any(said), "{} {reason}: {found:?}", row.name);
        }
    }
}

/// Rows of A whose sum may overflow i32.
#[test]
fn long_rows_of_two_of_four_of_int8_are_refused_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let k = 1 << 18;
    let pattern = two_of_four([1, k], true, 37);
    let ones = vec![1i8; pattern.columns().len()];
    let a = stored(Csr::new(pattern, ones).unwrap(), "nm:2:4");
    let a = gpu.upload(a).unwrap();
    let b = gpu.upload_dense(&Dense::<i8>::zeros(vec![16, k]).unwrap());
    let b = b.unwrap();
    let operands = [("A", (&a).into()), ("B", (&b).into())];
    let plan = gpu.plan::<i8>(PLAIN).operands(&operands).output::<i32>();
    let error = plan.build().unwrap_err();
    assert_error!(error, Error::Overflow { .. });
}
