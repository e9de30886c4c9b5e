//! Operands that do not fit their plan: an error with position and numbers, before any launch.

use crate::support::assert_error;
use crate::support::on_both;
use crate::support::runs::plan_of;
use einsparse::formats::Dense;
use einsparse::{Context, Error, Operand, Options};

type Named<'a> = (&'a str, Operand<'a, f32>);

fn ones(shape: &[usize]) -> Dense<f32> {
    Dense::from_fn(shape.to_vec(), |_| 1.0).unwrap()
}

/// Returns the error of a plan, and checks that it names this operand.
fn refused(context: &Context, text: &str, operands: &[Named<'_>], name: &str) -> Error {
    let error = context.plan(text).operands(operands).build();
    let error = error.map(|plan| plan.to_string()).expect_err(text);
    assert_eq!(error.name(), Some(name), "{text}: {error}");
    error
}

/// Index arrays shorter or longer than their shape, in every family that reads them.
fn lengths(context: &Context) {
    let many = vec![0u32; 1000];
    let four = [0u32, 1, 2, 3];
    let [x, s] = [ones(&[4, 8]), ones(&[4])].map(|d| context.upload_dense(&d).unwrap());
    for slots in [&many[..], &four[..3]] {
        let operands = [
            ("X", (&x).into()),
            ("Y", (&x).into()),
            ("I", Operand::Index(&[4], &four)),
            ("J", Operand::Index(&[4], slots)),
            ("S", (&s).into()),
        ];
        refused(context, "S[p] += X[I[p],r] * Y[J[p],r]", &operands, "J");
    }
    let [input, weights, out] =
        [ones(&[4, 8]), ones(&[2, 8, 8]), ones(&[4, 8])].map(|d| context.upload_dense(&d).unwrap());
    for (slots, name) in [(&four[..2], "I"), (&four[..2], "T"), (&many[..], "Q")] {
        let of = |own: &str| Operand::Index(&[4], if own == name { slots } else { &[0, 1, 0, 1] });
        let operands = [
            ("In", (&input).into()),
            ("W", (&weights).into()),
            ("Q", of("Q")),
            ("I", of("I")),
            ("T", of("T")),
            ("Out", (&out).into()),
        ];
        let text = "Out[Q[p],n] += In[I[p],c] * W[T[p],c,n]";
        refused(context, text, &operands, name);
    }
    let [a, y, v] =
        [ones(&[3, 4, 8]), ones(&[3, 4]), ones(&[4])].map(|d| context.upload_dense(&d).unwrap());
    let out = context.upload_dense(&ones(&[3, 4, 8])).unwrap();
    let operands = [
        ("A", (&a).into()),
        ("Y", (&y).into()),
        ("V", (&v).into()),
        ("M", Operand::Index(&[4], &four)),
        ("K", Operand::Index(&[4], &four[..2])),
        ("J", Operand::Index(&[4], &four)),
        ("C", (&out).into()),
    ];
    let text = "C[z,M[p],u] += V[p] * A[z,K[p],u] * Y[z,J[p]]";
    refused(context, text, &operands, "K");
}

/// Two views of one array: the longer one is validated to its end.
fn contents(context: &Context) {
    let mut slots = vec![1u32; 300];
    slots[217] = 77;
    let [b, d, c] =
        [ones(&[4, 8]), ones(&[5, 8]), ones(&[8])].map(|d| context.upload_dense(&d).unwrap());
    let operands = [
        ("B", (&b).into()),
        ("D", (&d).into()),
        ("K", Operand::Index(&[100], &slots[..100])),
        ("L", Operand::Index(&[300], &slots)),
    ];
    let error = refused(context, "C[n] = B[K[p],n] * D[L[q],n]", &operands, "L");
    assert_error!(error, Error::InvalidIndex { position: 217, value: 77, bound: 5, .. });
    // Indices of the left side, and indices through another array.
    let (outer, inner) = ([0u32, 1, 2], [0u32, 3]);
    let operands = [
        ("B", (&b).into()),
        ("K", Operand::Index(&[3], &outer)),
        ("L", Operand::Index(&[2], &inner)),
    ];
    let error = refused(context, "C[q,n] = B[K[L[q]],n]", &operands, "L");
    assert_error!(error, Error::InvalidIndex { position: 1, value: 3, bound: 3, .. });
    let rows = [0u32, 8];
    let x = context.upload_dense(&ones(&[2])).unwrap();
    let operands = [("X", (&x).into()), ("R", Operand::Index(&[2], &rows)), ("C", (&c).into())];
    let error = refused(context, "C[R[p]] += X[p]", &operands, "R");
    assert_error!(error, Error::InvalidIndex { position: 1, bound: 8, .. });
}

/// Duplicate names, and values where indices are required.
fn names(context: &Context) {
    let [small, large] =
        [ones(&[2, 3]), ones(&[300, 3])].map(|d| context.upload_dense(&d).unwrap());
    let b = context.upload_dense(&ones(&[3, 4])).unwrap();
    let operands = [("A", (&small).into()), ("A", (&large).into()), ("B", (&b).into())];
    let text = "C[m,n] = A[m,k] * B[k,n]";
    refused(context, text, &operands, "A");
    let k = context.upload_dense(&ones(&[2])).unwrap();
    let operands = [("B", (&b).into()), ("K", (&k).into())];
    refused(context, "C[p,n] = B[K[p],n]", &operands, "K");
}

/// Index arrays are part of the plan.
fn runs(context: &Context) {
    let slots = [2u32, 0];
    let b = context.upload_dense(&ones(&[3, 4])).unwrap();
    let operands = [("B", (&b).into()), ("K", Operand::Index(&[2], &slots))];
    let text = "C[p,n] = B[K[p],n]";
    let plan = plan_of::<f32>(context, text, &operands, &Options::default());
    let mut c = context.zeros(plan.out_shape()).unwrap();
    let stream = context.stream().unwrap();
    let error = plan.run(&operands, &mut c, &stream).unwrap_err();
    assert_error!(error, Error::Operand { name, .. } if name == "K");
    plan.run(&operands[..1], &mut c, &stream).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(c.to_dense().unwrap().values(), [1.0; 8]);
}

on_both! {
    operands_that_do_not_fit_are_refused: cpu [lengths, contents, names, runs],
        gpu [lengths, contents, names, runs];
}
