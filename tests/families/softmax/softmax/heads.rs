//! Runs of short rows, and heads that share a pattern.

use super::{INF, check, same_bits, upload, values};
use crate::support::assert_error;
use crate::support::{Rng, small, spread};
use einsparse::formats::{AnySparse, Csr, Dense};
use einsparse::ops::{SoftmaxOptions, SparseSoftmax};
use einsparse::{Context, Error, Scalar};

/// Enough rows of every class that thread blocks process several.
pub fn many_rows<T: Scalar>(context: &Context) {
    let rows = if small() { 300 } else { 60_000 };
    let lens: Vec<usize> = (0..rows).map(|r| [3, 14, 0, 25, 50, 90][r % 6] + r % 3).collect();
    let pattern = spread(&lens, 120);
    let scores = Rng(9).units::<T>(pattern.columns().len());
    check(context, &pattern, &scores, &SoftmaxOptions::default());
}

/// More consecutive short rows than the GPU has warps: runs of all lengths, some of them full, with longer rows between
/// them.
pub fn short_rows<T: Scalar>(context: &Context) {
    let rows = if small() { 5000 } else { 50_000 };
    let random = Rng(11).units::<f64>(rows);
    let len = |(row, x): (usize, &f64)| match row / 1000 % 5 {
        0 => 16,
        1 => 32,
        2 if row % 97 == 0 => 33 + row % 300,
        3 => 1 + row % 3,
        _ => ((x.abs() * 33.0) as usize).min(32),
    };
    let lens: Vec<usize> = random.iter().enumerate().map(len).collect();
    let pattern = spread(&lens, 400);
    let scores = Rng(12).units::<T>(pattern.columns().len());
    for log in [false, true] {
        for causal in [None, Some(-(rows as i64) / 2)] {
            let o = SoftmaxOptions { scale: 3.0, log, causal, ..SoftmaxOptions::default() };
            check(context, &pattern, &scores, &o);
        }
    }
    // No score of a row may affect its neighbors.
    let mut planted = scores;
    for (i, value) in [f64::NAN, INF, -INF, f64::MAX].into_iter().enumerate() {
        for at in pattern.row(40 + 1000 * i) {
            planted[at] = T::from_f64(value);
        }
    }
    check(context, &pattern, &planted, &SoftmaxOptions::default());
}

/// Heads in one launch have the same bits as each head alone: rows of every class, also split ones, and runs of short
/// rows.
pub fn heads<T: Scalar>(context: &Context) {
    let heads = 3;
    let mut lens = vec![16; if small() { 4000 } else { 9000 }];
    lens.extend([70, 600, 0, 2000, 9001, 100, 33, 5]);
    let pattern = spread(&lens, 10_000);
    let slots = pattern.columns().len();
    let stride = slots.next_multiple_of(8) + 8;
    let all = Rng(21).units::<T>(heads * slots);
    let dy = Rng(22).units::<T>(heads * slots);
    let host = AnySparse::from(Csr::new(pattern, all[..slots].to_vec()).unwrap());
    let single = upload(context, &host, &all[..slots]);
    let options = SoftmaxOptions { scale: 1.5, causal: Some(3000), ..SoftmaxOptions::default() };
    let alone = SparseSoftmax::new(context, &single, &options.clone()).unwrap();
    let together = SoftmaxOptions { heads, ..options };
    let together = SparseSoftmax::new(context, &single, &together).unwrap();
    let stream = context.stream().unwrap();
    let strided = |values: &[T]| {
        let dense = Dense::new([heads, slots], values.to_vec()).unwrap();
        let gap = T::from_f64(7.0);
        context.upload_strided(&dense, stride, gap).unwrap()
    };
    let (scores, mut gradient) = (strided(&all), strided(&dy));
    let (mut out, mut in_place) = (strided(&all), strided(&all));
    together.forward_heads(&scores, &mut out, &stream).unwrap();
    together.forward_heads_in_place(&mut in_place, &stream).unwrap();
    together.backward_heads_in_place(&out, &mut gradient, &stream).unwrap();
    stream.synchronize().unwrap();
    let [out, in_place, gradient] = [out, in_place, gradient].map(|t| t.to_storage().unwrap());
    for head in 0..heads {
        let own = head * slots..(head + 1) * slots;
        let mut y = upload(context, &host, &all[own.clone()]);
        let mut dy = upload(context, &host, &dy[own]);
        alone.forward_in_place(&mut y, &stream).unwrap();
        alone.backward_in_place(&y, &mut dy, &stream).unwrap();
        let there = head * stride..head * stride + slots;
        assert!(same_bits(&values(&y), &out[there.clone()]), "{head}");
        assert!(same_bits(&values(&y), &in_place[there.clone()]), "{head}");
        assert!(same_bits(&values(&dy), &gradient[there.clone()]), "{head}");
        let gap = &out[there.end..(head + 1) * stride];
        assert!(gap.iter().all(|x| x.to_f64() == 7.0), "{head}");
    }
}

#[test]
fn heads_that_do_not_fit_are_refused() {
    let cpu = Context::unchecked_cpu();
    let host = AnySparse::from(Csr::new(spread(&[2, 1], 4), vec![1.0f32; 3]).unwrap());
    let scores = cpu.upload(host).unwrap();
    let options = SoftmaxOptions { heads: 2, ..SoftmaxOptions::default() };
    let softmax = SparseSoftmax::new(&cpu, &scores, &options).unwrap();
    let stream = cpu.stream().unwrap();
    let mut single = cpu.upload(scores.to_host().unwrap()).unwrap();
    let error = softmax.forward_in_place(&mut single, &stream).unwrap_err();
    assert_error!(error, Error::OperandKind { .. });
    let mut three = cpu.zeros::<f32>(&[3, 3]).unwrap();
    let error = softmax.forward_heads_in_place(&mut three, &stream).unwrap_err();
    assert_error!(error, Error::Shape { left, .. } if left.contains("[2, 3]"));
}
