//! Errors use the names that a user gave: operands by name, and positions in index arrays.

use super::errors::{refused, two_by_three};
use crate::support::assert_error;
use einsparse::formats::{AnySparse, Dense};
use einsparse::{Context, Error, Operand};

/// Messages never contain the names that plans give to the arrays of A.
#[test]
fn a_missing_operand_is_told_by_its_own_name() {
    let cpu = Context::cpu();
    let (a, b) = two_by_three();
    let stream = cpu.stream().unwrap();
    for format in ["csr", "csc", "coo", "ell", "sell", "groupcoo", "bsr:1x1", "bitmap"] {
        let a = AnySparse::from(a.clone()).convert(format.parse().unwrap());
        let a = cpu.upload(a.unwrap()).unwrap();
        let (name, s) = ("A", Operand::Scalar(2.0));
        for text in ["C[m,n] = s * A[m,k] * B[k,n]", "C[m,n] = s * A[m,k] * B[k,n] + v[n]"] {
            let v = Dense::new([2], vec![1.0; 2]).unwrap();
            let mut operands = vec![(name, (&a).into()), ("B", (&b).into()), ("s", s.clone())];
            if text.contains('v') {
                operands.push(("v", (&v).into()));
            }
            let plan = cpu.plan(text).operands(&operands).build().unwrap();
            let mut c = cpu.zeros::<f32>(&[2, 2]).unwrap();
            for (missing, _) in &operands {
                let others = operands.iter().filter(|(own, _)| own != missing);
                let others: Vec<_> = others.cloned().collect();
                let error = plan.run(&others, &mut c, &stream).unwrap_err();
                assert_error!(error, Error::MissingOperand { name, .. } if name == missing);
            }
        }
    }
}

/// The index of padding is reserved for formats. In an index array of a user, it is out of range for every axis.
#[test]
fn the_index_of_padding_is_refused() {
    let v = Dense::new([3], vec![1.0f32; 3]).unwrap();
    let slots = [2u32, 0, u32::MAX, 1];
    let index = Operand::Index(&[4], &slots);
    let error = refused("C[p] = V[R[p]]", &[("V", (&v).into()), ("R", index.clone())]);
    let of = "axis 0 of `V[R[p]]`";
    let wanted = Error::InvalidIndex {
        array: "R".into(),
        position: 2,
        value: u32::MAX.into(),
        of: of.into(),
        bound: 3,
    };
    assert_eq!(error, wanted);
    let x = Dense::new([4], vec![1.0f32; 4]).unwrap();
    let out = Dense::new([9], vec![0.0f32; 9]).unwrap();
    let operands = [("X", (&x).into()), ("R", index.clone()), ("C", (&out).into())];
    let error = refused("C[R[p]] += X[p]", &operands);
    assert_error!(
        error,
        Error::InvalidIndex { position: 2, value: 4294967295, of, bound: 9, .. }
            if of == "axis 0 of `C[R[p]]`"
    );
    let q = [0u32, 1];
    let operands = [("V", (&v).into()), ("R", index.clone()), ("Q", Operand::Index(&[2], &q))];
    let error = refused("C[p] = V[R[Q[p]]]", &operands);
    assert_error!(
        error,
        Error::InvalidIndex { position: 2, of, .. } if of == "axis 0 of `V[R[Q[p]]]`"
    );
    let error = refused("C[p] = V[p]", &[("V", index)]);
    assert_error!(
        error,
        Error::OperandKind { name, found, .. }
            if name == "V" && found == "an index array of shape [4]"
    );
}
