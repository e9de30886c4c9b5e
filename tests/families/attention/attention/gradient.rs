//! Gradients of attention. Those of the CPU are compared with finite differences of its forward run, those of the GPU
//! with the CPU's in f64.

use super::case::Case;
use super::{plain, uneven};
use crate::support::assert_error;
use crate::support::dense::{nan, strided, upload};
use crate::support::runs::finish;
use crate::support::{fill_blocks, on_gpu, spread};
use einsparse::formats::{CsrPattern, Dense, bf16, f16};
use einsparse::ops::{AttentionGradient, AttentionOptions, SparseAttention};
use einsparse::registry::Scalar;
use einsparse::{Context, Error, Tensor};

/// Converts the operands to f64.
fn exact<T: Scalar>(case: &Case<T>) -> Case<f64> {
    Case {
        patterns: case.patterns.clone(),
        options: case.options.clone(),
        q: case.q.map(T::to_f64),
        k: case.k.map(T::to_f64),
        v: case.v.map(T::to_f64),
    }
}

/// Returns the gradients of queries, keys and values. Outputs start as NaN, with gaps between their rows.
fn gradients<T: Scalar>(
    context: &Context,
    case: &Case<T>,
    format: &str,
    upstream: &Dense<T>,
) -> [Dense<T>; 3] {
    let masks = case.masks(context, format);
    let masks: Vec<_> = masks.iter().collect();
    let mut gradient = AttentionGradient::new(context, &masks, &case.options).unwrap();
    let [q, k, v, from] = upload(context, [&case.q, &case.k, &case.v, upstream]);
    let poisoned = |like: &Tensor<T>| {
        let leading = like.leading() + 8;
        strided(context, &nan(like.shape()), leading, T::from_f64(7.0))
    };
    let [mut dq, mut dk, mut dv] = [poisoned(&q), poisoned(&k), poisoned(&v)];
    let stream = context.stream().unwrap();
    // The second run must not depend on what the first one left.
    for _ in 0..2 {
        let outputs = [&mut dq, &mut dk, &mut dv];
        gradient.backward([&q, &k, &v], &from, outputs, &stream).unwrap();
    }
    stream.synchronize().unwrap();
    [dq, dk, dv].map(|t| t.to_dense().unwrap())
}

/// Returns the gradients of operands with the heads adjacent in each row, in the order of heads. Outputs start as NaN.
fn gradients_in_rows<T: Scalar>(
    context: &Context,
    case: &Case<T>,
    format: &str,
    upstream: &Dense<T>,
) -> [Dense<T>; 3] {
    let masks = case.masks(context, format);
    let masks: Vec<_> = masks.iter().collect();
    let mut gradient = AttentionGradient::new(context, &masks, &case.options).unwrap();
    let all = [&case.q, &case.k, &case.v];
    let (m, d) = (case.q.shape()[1], case.q.shape()[2]);
    let beside = |parts: &[&Dense<T>]| {
        let heads = |part: &Dense<T>| (0..part.shape()[0]).collect::<Vec<_>>();
        let columns: Vec<_> = (parts.iter())
            .flat_map(|&part| heads(part).into_iter().map(move |head| (part, head)))
            .collect();
        let rows = (0..m).flat_map(|row| {
            let of = |&(part, head): &(&Dense<T>, usize)| {
                let first = (head * m + row) * d;
                part.values()[first..first + d].to_vec()
            };
            columns.iter().flat_map(of).collect::<Vec<_>>()
        });
        Dense::new([m, columns.len() * d], rows.collect()).unwrap()
    };
    let upload = |dense: &Dense<T>| {
        let leading = dense.shape()[1] + 8;
        strided(context, dense, leading, T::from_f64(f64::NAN))
    };
    let (qkv, from) = (upload(&beside(&all)), upload(&beside(&[upstream])));
    let mut out = upload(&nan(qkv.shape()));
    finish(context, |stream| gradient.backward_in_rows(&qkv, &from, &mut out, stream));
    let out = out.to_dense().unwrap();
    let width = out.shape()[1];
    let mut first = 0;
    all.map(|like| {
        let start = first;
        first += like.shape()[0] * d;
        let at = |i: &[usize]| out.values()[i[1] * width + start + i[0] * d + i[2]];
        Dense::from_fn(like.shape().to_vec(), at).unwrap()
    })
}

fn upstream<T: Scalar>(case: &Case<T>) -> Dense<T> {
    let value = |i: &[usize]| ((i[0] * 31 + i[1] * 17 + i[2] * 7919) % 23) as f64 / 11.0 - 1.0;
    Dense::from_fn(case.q.shape().to_vec(), |i| T::from_f64(value(i))).unwrap()
}

#[test]
fn gradients_are_those_of_finite_differences() {
    const STEP: f64 = 1e-5;
    let context = Context::unchecked_cpu();
    let options = AttentionOptions {
        key_heads: Some(1),
        causal: Some(1),
        lengths: Some(vec![5, 4]),
        scale: Some(0.7),
        ..plain(2, 3)
    };
    let case = Case::<f64>::new(vec![uneven(6, 5)], options, 1);
    let from = upstream(&case);
    let found = gradients(&context, &case, "csr", &from);
    let masks = case.masks(&context, "csr");
    let attention = SparseAttention::new(&context, &[&masks[0]], &case.options).unwrap();
    let stream = context.stream().unwrap();
    let operands = [&case.q, &case.k, &case.v];
    let loss = |operands: [&Dense<f64>; 3]| -> f64 {
        let [q, k, v] = upload(&context, operands);
        let mut out = context.zeros::<f64>(q.shape()).unwrap();
        attention.forward([&q, &k, &v], &mut out, None, &stream).unwrap();
        let out = out.to_dense().unwrap();
        out.values().iter().zip(from.values()).map(|(o, w)| o * w).sum()
    };
    for (which, found) in found.iter().enumerate() {
        for (i, found) in found.values().iter().enumerate() {
            let at = |step: f64| {
                let mut values = operands[which].values().to_vec();
                values[i] += step;
                let moved = Dense::new(operands[which].shape().to_vec(), values).unwrap();
                let mut all = operands;
                all[which] = &moved;
                loss(all)
            };
            let wanted = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            assert!((found - wanted).abs() < 1e-8, "{which} {i}: {found}, expected {wanted}");
        }
    }
}

/// Compares gradients on a GPU with the CPU's in f64, within a few roundings of the largest value.
fn check<T: Scalar>(context: &Context, case: &Case<T>, format: &str) {
    let from = upstream(case);
    let found = gradients(context, case, format, &from);
    if case.q.shape()[1] == case.k.shape()[1] {
        let in_rows = gradients_in_rows(context, case, format, &from);
        assert!(found == in_rows, "{:?}, in rows", case.options);
    }
    let wanted = gradients(&Context::unchecked_cpu(), &exact(case), format, &from.map(T::to_f64));
    let bound = match T::NAME {
        "bf16" => 0.5f64.powi(5),
        "f16" => 0.5f64.powi(8),
        _ => 1e-5,
    };
    for (which, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
        let largest = wanted.values().iter().fold(0f64, |a, x| a.max(x.abs()));
        for (i, (found, wanted)) in found.values().iter().zip(wanted.values()).enumerate() {
            let near = (found.to_f64() - wanted).abs() <= bound * largest;
            let what = (T::NAME, format, &case.options, which, i);
            assert!(near, "{what:?}: {found:?}, expected {wanted} of at most {largest}");
        }
    }
}

fn suite<T: Scalar>(context: &Context) {
    let dense = |rows: usize| spread(&vec![rows; rows], rows);
    let masks: Vec<CsrPattern> = (1..5).map(|i| spread(&[(i * 40) % 190; 190], 190)).collect();
    let hidden = AttentionOptions { causal: Some(2), lengths: Some(vec![100, 33]), ..plain(4, 64) };
    let grouped = AttentionOptions { key_heads: Some(2), ..plain(4, 64) };
    let all = [
        (vec![uneven(129, 200)], plain(3, 128)),
        (vec![uneven(64, 65)], plain(1, 40)),
        (vec![dense(120)], hidden),
        (vec![uneven(130, 140)], grouped.clone()),
        (masks.clone(), plain(4, 64)),
        (masks, grouped),
        (vec![spread(&[0; 9], 7)], plain(2, 64)),
    ];
    for (i, (masks, options)) in all.into_iter().enumerate() {
        check(context, &Case::<T>::new(masks, options, i as u64), "csr");
    }
    for format in ["ell", "coo", "bsr:16x16", "blockgroupcoo:16x16:2"] {
        let pattern = fill_blocks(&spread(&[0, 3, 6, 1], 6), (16, 16), 59, 89);
        check(context, &Case::<T>::new(vec![pattern], plain(2, 64), 9), format);
    }
}

#[test]
fn gradients_of_heads_in_rows_are_those_of_heads() {
    suite::<f64>(&Context::unchecked_cpu());
}

#[test]
fn gradients_on_the_gpu() {
    on_gpu(&[suite::<f32>, suite::<f16>, suite::<bf16>]);
}

/// Masks that fill blocks, whose products run on Tensor Cores. Extents are not multiples of a block.
fn of_blocks<T: Scalar>(context: &Context) {
    let dense = |rows: usize| spread(&vec![rows; rows], rows);
    let grouped = AttentionOptions { key_heads: Some(2), ..plain(4, 64) };
    let half = spread(&[350; 800], 700);
    let all = [(dense(600), plain(2, 128)), (dense(600), grouped), (half, plain(1, 40))];
    for (i, (mask, options)) in all.into_iter().enumerate() {
        let case = Case::<T>::new(vec![mask], options, i as u64);
        let masks = case.masks(context, "csr");
        let gradient = AttentionGradient::new(context, &[&masks[0]], &case.options).unwrap();
        let [.., dq, dk] = gradient.variants();
        let entries = |name: &str| name.contains("csr") || name.contains("permuted");
        assert!(!entries(dq) && !entries(dk), "{dq} {dk}");
        check(context, &case, "csr");
    }
}

#[test]
fn gradients_of_masks_that_fill_blocks() {
    on_gpu(&[of_blocks::<f16>, of_blocks::<bf16>]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let cpu = Context::unchecked_cpu();
    let case = Case::<f32>::new(vec![uneven(4, 5)], plain(2, 3), 1);
    let masks = case.masks(&cpu, "csr");
    let bad = AttentionOptions { scale: Some(-1.0), ..plain(2, 3) };
    let error = AttentionGradient::new(&cpu, &[&masks[0]], &bad).unwrap_err();
    assert_error!(error, Error::OutOfRange { name, value, .. } if name == "scale" && value == "-1");
    let mut gradient = AttentionGradient::new(&cpu, &[&masks[0]], &case.options).unwrap();
    let [q, k, v] = upload(&cpu, [&case.q, &case.k, &case.v]);
    let [mut dq, mut dk] = upload(&cpu, [&case.q, &case.k]);
    let mut short = cpu.zeros(&[2, 4, 3]).unwrap();
    let stream = cpu.stream().unwrap();
    let error =
        gradient.backward([&q, &k, &v], &q, [&mut dq, &mut dk, &mut short], &stream).unwrap_err();
    assert_error!(
        error,
        Error::Shape { left, right, .. }
            if left.contains("[2, 5, 3]") && right.contains("[2, 4, 3]")
    );
    assert_eq!(dq.to_dense().unwrap(), case.q);
}
