//! Affine indices on the CPU: plans of convolutions equal loops exactly. Sparse operands in the same expressions, and
//! refused expressions.

use crate::support::assert_error;
use einsparse::cpu::{Operands, Output, run_listed};
use einsparse::dynamic::Dynamic;
use einsparse::einsum::Einsum;
use einsparse::formats::{Dense, bf16, f16};
use einsparse::indirect::rewrite_dense;
use einsparse::{Context, Error, Operand, einsum};

use crate::support::dense::upload;
use crate::support::windows::{entries, windows};
use crate::support::{by_loops, whole, windows_agree};

#[test]
fn windows_are_what_loops_give() {
    let cpu = Context::cpu();
    windows_agree::<f32>(&cpu, |_, _| {});
    windows_agree::<f64>(&cpu, |_, _| {});
    windows_agree::<f16>(&cpu, |_, _| {});
    windows_agree::<bf16>(&cpu, |_, _| {});
}

/// Runs the steps of the general GPU kernels, for every assignment of lanes.
#[test]
fn windows_are_what_loops_give_by_the_steps_of_kernels() {
    for (text, shapes, out) in windows() {
        let dense = shapes.iter().map(|(name, shape)| (*name, whole(shape, 9)));
        let dense: Vec<(&str, Dense<f64>)> = dense.collect();
        let e = Einsum::parse(text).unwrap();
        let shapes = dense.iter().map(|(n, d)| (n.to_string(), d.shape().to_vec()));
        let arrays = e.sum_arrays(&e.check(&shapes.collect()).unwrap()).unwrap();
        let indirect = rewrite_dense(&e).unwrap();
        let mut operands = Operands::new();
        for (name, dense) in &dense {
            operands.dense(name, dense);
        }
        for array in &arrays {
            operands.index(&array.name, &array.shape, &array.slots).unwrap();
        }
        let wanted = by_loops(text, &dense);
        let (mut way, mut ways) = (0, 1);
        while way < ways {
            let mut found = vec![f64::NAN; wanted.values().len()];
            let output = Output::new(&out, &mut found).unwrap();
            ways = run_listed(&indirect, &operands, output, way).unwrap();
            assert_eq!(found, wanted.values(), "{text}, way {way}");
            way += 1;
        }
    }
}

fn vector(values: &[f32]) -> Dense<f32> {
    Dense::new([values.len()], values.to_vec()).unwrap()
}

#[test]
fn windows_worked_by_hand() {
    let cpu = Context::cpu();
    let a = vector(&[1.0, 2.0, 3.0, 4.0, 5.0]);
    let b = vector(&[1.0, 10.0, 100.0]);
    let run = |text: &str| {
        let c = einsum!(cpu, text, A = &a, B = &b).unwrap();
        c.to_dense().unwrap().values().to_vec()
    };
    assert_eq!(run("C[x] = A[x+i] * B[i]"), [321.0, 432.0, 543.0]);
    assert_eq!(run("C[x] = A[2*x+i] * B[i]"), [321.0, 543.0]);
    assert_eq!(run("C[x] = A[x+2*i] * B[i]"), [531.0]);
    assert_eq!(run("C[x] = A[2*x] * B[x]"), [1.0 + 0.0, 30.0, 500.0]);
}

/// A given output determines the extent of an index. Strides are distinguished although the shapes agree.
#[test]
fn outputs_that_are_given_tell_extents() {
    let cpu = Context::cpu();
    let (a, b) = (vector(&[1.0, 2.0, 3.0, 4.0, 5.0]), vector(&[1.0, 10.0]));
    let start = vector(&[0.5, 0.5]);
    let run = |text: &str| {
        let c = einsum!(cpu, text, A = &a, B = &b, C = &start).unwrap();
        c.to_dense().unwrap().values().to_vec()
    };
    assert_eq!(run("C[x] += A[x+i] * B[i]"), [21.5, 32.5]);
    assert_eq!(run("C[x] += A[2*x+i] * B[i]"), [21.5, 43.5]);
    assert_eq!(run("C[x] += A[3*x+i] * B[i]"), [21.5, 54.5]);
    let far = einsum!(cpu, "C[x] += A[4*x+i] * B[i]", A = &a, B = &b, C = &start);
    assert_error!(
        far.unwrap_err(),
        Error::Shape { index, left, .. }
            if index == "4*x+i" && left.contains("requires 6 elements")
    );
}

/// A dynamic operand is treated as its dense tensor. Several factors are contracted pairwise.
#[test]
fn dynamic_operands_may_be_read_at_sums() {
    let cpu = Context::cpu();
    let text = "C[x,f] = A[x+i,m] * B[i,m,f]";
    let (a, b) = (whole(&[9, 4], 1), whole(&[3, 4, 5], 2));
    let [on_a, on_b] = upload(&cpu, [&a, &b]);
    let c = einsum!(cpu, text, A = Dynamic::new(&on_a), B = &on_b).unwrap();
    let wanted = by_loops(text, &[("A", a.clone()), ("B", b.clone())]);
    assert_eq!(c.to_dense().unwrap(), wanted);
    let three = "C[x,g] = A[x+i,m] * B[i,m,f] * D[f,g]";
    let d = whole(&[5, 3], 3);
    let [on_d] = upload(&cpu, [&d]);
    let operands = [("A", (&on_a).into()), ("B", (&on_b).into()), ("D", (&on_d).into())];
    let path = cpu.contraction_path(three, &operands).unwrap().unwrap();
    assert!(path.starts_with("P0[i,m,g] = B[i,m,f] * D[f,g]; "), "{path}");
    let c = einsparse::ops::einsum(&cpu, three, &operands).unwrap();
    assert_eq!(c.to_dense().unwrap(), by_loops(three, &[("A", a), ("B", b), ("D", d)]));
}

#[test]
fn sums_may_stand_within_index_arrays() {
    let cpu = Context::cpu();
    let (a, b) = (vector(&[1.0, 2.0, 3.0]), vector(&[1.0, 10.0]));
    let turned = [2u32, 1, 0, 2];
    let operands: [(&str, Operand<'_, f32>); 3] =
        [("A", (&a).into()), ("B", (&b).into()), ("M", Operand::Index(&[4], &turned))];
    let c = einsparse::ops::einsum(&cpu, "C[x] = A[M[x+i]] * B[i]", &operands).unwrap();
    assert_eq!(c.to_dense().unwrap().values(), [23.0, 12.0, 31.0]);
}

#[test]
fn plans_print_the_expression_and_its_windows() {
    let cpu = Context::cpu();
    let (a, b) = (whole(&[1, 9, 9, 2], 1), whole(&[3, 3, 2, 4], 2));
    let operands: [(&str, Operand<'_, f64>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    let text = "C[n,x,y,f] = A[n,2*x+i,y+2*j,m] * B[i,j,m,f]";
    let plan = cpu.plan(text).operands(&operands).build().unwrap();
    assert_eq!(plan.einsum().to_string(), text);
    assert_eq!(
        plan.indirect().to_string(),
        "C[n,x,y,f] = A[n,(2*x+i)[x,i],(y+2*j)[y,j],m] * B[i,j,m,f]"
    );
    let said = plan.to_string();
    let windows = "a convolution of stride 2 x 1, dilation 1 x 2; (2*x+i) [4, 3], (y+2*j) [5, 3]";
    assert!(said.contains(windows), "{said}");
    let plan = cpu
        .plan("C[n,f] = A[n,x+i,y,m] * B[i,y,m,f]")
        .operands(&[("A", (&a).into()), ("B", (&whole(&[3, 9, 2, 4], 3)).into())])
        .build()
        .unwrap();
    let said = plan.to_string();
    assert!(said.contains("(x+i) [7, 3]") && !said.contains("convolution"), "{said}");
}

#[test]
fn sparse_operands_are_not_read_at_sums() {
    let cpu = Context::cpu();
    let (s, b) = (entries(&[5, 4]), whole(&[3, 4], 1));
    let s: einsparse::formats::AnySparse<f64> = s.into();
    let refused = einsum!(cpu, "C[x] = S[x+i,k] * B[i,k]", S = &s, B = &b);
    assert_error!(refused.unwrap_err(), Error::Operand { name, .. } if name == "S");
}
