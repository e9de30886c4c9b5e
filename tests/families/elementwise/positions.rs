//! Queries and keys rotated by position.

use super::{shape_of, values, with_gaps, within};
use crate::support::bounds::assert_near;
use crate::support::dense::{upload_values, wide};
use crate::support::runs::finish;
use crate::support::{on_both, on_gpu};
use einsparse::formats::{bf16, f16};
use einsparse::nn::{Rotary, RotaryOptions};
use einsparse::{Context, Scalar};

const HEADS: [[usize; 4]; 5] =
    [[1, 1, 1, 16], [5, 4, 2, 64], [16, 8, 8, 128], [3, 3, 1, 48], [0, 2, 1, 32]];

fn positions<T: Scalar>(
    ctx: &Context,
    [tokens, heads, key_heads, dim]: [usize; 4],
    columns: bool,
    gap: usize,
) -> Vec<Vec<f64>> {
    let options = RotaryOptions {
        tokens,
        heads,
        key_heads,
        dim,
        tokens_in_columns: columns,
        ..RotaryOptions::default()
    };
    let rotary = Rotary::<T>::new(ctx, &options).unwrap();
    let shape = shape_of(columns, [tokens, (heads + 2 * key_heads) * dim]);
    let x = with_gaps(ctx, &values::<T>(&shape, 5), gap);
    let lengths = (0..tokens).map(|t| [1, 2, 77, 32_769, 1_000_000][t % 5]).collect();
    let lengths = upload_values(ctx, &[tokens], lengths);
    let part = |heads: usize| ctx.zeros::<T>(&[tokens, heads, dim]).unwrap();
    let [mut q, mut k, mut v] = [heads, key_heads, key_heads].map(part);
    finish(ctx, |stream| rotary.forward(&x, &lengths, [&mut q, &mut k, &mut v], stream));
    [q, k, v].iter().map(wide).collect()
}

fn positions_agree<T: Scalar>(gpu: &Context) {
    for heads in HEADS {
        for (columns, gap) in [(false, 0), (true, 0), (false, 8), (true, 3)] {
            let found = positions::<T>(gpu, heads, columns, gap);
            let wanted = positions::<T>(&Context::unchecked_cpu(), heads, columns, gap);
            for (found, wanted) in found.iter().zip(&wanted) {
                assert_near(&format!("{heads:?}, columns {columns}"), found, wanted, within::<T>());
            }
        }
    }
}

#[test]
fn positions_on_the_gpu() {
    on_gpu(&[positions_agree::<f32>, positions_agree::<f16>, positions_agree::<bf16>]);
}

/// The score of two positions depends only on their distance, and values are unchanged.
#[test]
fn scores_depend_on_the_distance() {
    let options = RotaryOptions { tokens: 2, dim: 32, ..RotaryOptions::default() };
    let cpu = Context::unchecked_cpu();
    let rotary = Rotary::<f64>::new(&cpu, &options).unwrap();
    let one = values::<f64>(&[1, 96], 6).into_values();
    let x = upload_values(&cpu, &[2, 96], [one.clone(), one.clone()].concat());
    let score = |from: i32, to: i32| {
        let lengths = upload_values(&cpu, &[2], vec![from, to]);
        let mut parts = [0; 3].map(|_| cpu.zeros(&[2, 1, 32]).unwrap());
        rotary.forward(&x, &lengths, parts.each_mut(), &cpu.stream().unwrap()).unwrap();
        let [q, k, v] = parts.map(|part| wide(&part));
        assert_eq!(v[..32], one[64..]);
        q[..32].iter().zip(&k[32..]).map(|(a, b)| a * b).sum::<f64>()
    };
    assert!((score(5, 9) - score(105, 109)).abs() < 1e-9);
    assert!((score(5, 9) - score(5, 10)).abs() > 1e-3);
    // The first position is not rotated.
    let straight: f64 = one[..32].iter().zip(&one[32..64]).map(|(a, b)| a * b).sum();
    assert!((score(1, 1) - straight).abs() < 1e-12);
}

/// Values are copied. A rotation by angle 0 would multiply their pairs by 0, and 0 times Inf is NaN.
fn special_values<T: Scalar>(context: &Context) {
    let options = RotaryOptions { tokens: 2, dim: 16, ..RotaryOptions::default() };
    let special = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.0, 3.0];
    let x = (0..96).map(|at| T::from_f64(special[at % 5])).collect();
    let x = upload_values::<T>(context, &[2, 48], x);
    let lengths = upload_values(context, &[2], vec![1, 7]);
    let mut parts = [0; 3].map(|_| context.zeros(&[2, 1, 16]).unwrap());
    let rotary = Rotary::<T>::new(context, &options).unwrap();
    finish(context, |stream| rotary.forward(&x, &lengths, parts.each_mut(), stream));
    // A GPU has only one NaN.
    let bits = |x: &f64| if x.is_nan() { u64::MAX } else { x.to_bits() };
    let bits = |values: &[f64]| values.iter().map(bits).collect::<Vec<_>>();
    let (x, v) = (wide(&x), wide(&parts[2]));
    assert_eq!(bits(&v), bits(&[&x[32..48], &x[80..]].concat()));
}

on_both! {
    values_without_a_position_are_as_they_were: cpu [special_values::<f32>, special_values::<f16>, special_values::<bf16>],
        gpu [special_values::<f32>, special_values::<f16>, special_values::<bf16>];
}
