//! Gated linear units, and the same functions applied to every element, with their gradients.

use super::{EXTENTS, gaps_are_left, shape_of, values, with_gaps, within};
use crate::support::bounds::assert_near;
use crate::support::dense::{upload_values, wide};
use crate::support::runs::finish;
use crate::support::{on_both, on_gpu};
use einsparse::dynamic::Gate;
use einsparse::formats::{Dense, bf16, f16};
use einsparse::nn::{Activation, Glu};
use einsparse::{Context, Scalar};

fn gated<T: Scalar>(
    ctx: &Context,
    gate: Gate,
    [tokens, width]: [usize; 2],
    columns: bool,
    gap: usize,
) -> Vec<f64> {
    let glu = Glu::<T>::new(ctx, gate, [tokens, width], columns).unwrap();
    let x = with_gaps(ctx, &values::<T>(&shape_of(columns, [tokens, 2 * width]), 7), gap);
    let mut out = with_gaps(ctx, &values::<T>(&shape_of(columns, [tokens, width]), 8), gap);
    finish(ctx, |stream| glu.forward(&x, &mut out, stream));
    gaps_are_left(&out);
    wide(&out)
}

fn gates_agree<T: Scalar>(gpu: &Context) {
    for gate in [Gate::Silu, Gate::Gelu, Gate::Relu] {
        for extents in EXTENTS {
            for (columns, gap) in [(false, 0), (true, 0), (false, 8), (true, 1)] {
                let found = gated::<T>(gpu, gate, extents, columns, gap);
                let wanted = gated::<T>(&Context::unchecked_cpu(), gate, extents, columns, gap);
                assert_near(
                    &format!("{gate:?} {extents:?}, columns {columns}"),
                    &found,
                    &wanted,
                    within::<T>(),
                );
            }
        }
    }
}

#[test]
fn gates_on_the_gpu() {
    on_gpu(&[gates_agree::<f32>, gates_agree::<f16>, gates_agree::<bf16>]);
}

#[test]
fn gates_are_those_written_out() {
    let x = values::<f64>(&[3, 80], 7).into_values();
    let found = gated::<f64>(&Context::unchecked_cpu(), Gate::Silu, [3, 40], false, 0);
    for (at, found) in found.iter().enumerate() {
        let [gate, other] = [0, 40].map(|by| x[at / 40 * 80 + by + at % 40]);
        assert!((found - gate / (1.0 + (-gate).exp()) * other).abs() < 1e-12);
    }
}

/// Applies a function to every element, and its gradient.
fn activated<T: Scalar>(ctx: &Context, gate: Gate, extents: [usize; 2], gap: usize) -> Vec<f64> {
    let x = with_gaps(ctx, &values::<T>(&extents, 3), gap);
    let dy = with_gaps(ctx, &values::<T>(&extents, 4), gap);
    let mut y = with_gaps(ctx, &Dense::zeros(extents).unwrap(), gap);
    let mut dx = with_gaps(ctx, &Dense::zeros(extents).unwrap(), gap);
    let function = Activation::new(ctx, gate, extents).unwrap();
    finish(ctx, |stream| {
        function.forward(&x, &mut y, stream)?;
        function.backward(&x, &dy, &mut dx, stream)
    });
    gaps_are_left(&y);
    gaps_are_left(&dx);
    let mut all = wide(&y);
    all.extend(wide(&dx));
    all
}

fn activations_agree<T: Scalar>(gpu: &Context) {
    for gate in [Gate::Silu, Gate::Gelu, Gate::Relu] {
        for extents in EXTENTS {
            for gap in [0, 8, 1] {
                let found = activated::<T>(gpu, gate, extents, gap);
                let wanted = activated::<T>(&Context::unchecked_cpu(), gate, extents, gap);
                assert_near(&format!("{gate:?} {extents:?}"), &found, &wanted, within::<T>());
            }
        }
    }
}

#[test]
fn activations_on_the_gpu() {
    on_gpu(&[activations_agree::<f32>, activations_agree::<f16>, activations_agree::<bf16>]);
}

#[test]
fn activations_are_those_written_out() {
    let [x, dy] = [3, 4].map(|seed| values::<f64>(&[3, 40], seed).into_values());
    let found = activated::<f64>(&Context::unchecked_cpu(), Gate::Silu, [3, 40], 2);
    for (at, (x, dy)) in x.iter().zip(&dy).enumerate() {
        let s = 1.0 / (1.0 + (-x).exp());
        assert!((found[at] - x * s).abs() < 1e-12);
        assert!((found[120 + at] - dy * (s + x * s * (1.0 - s))).abs() < 1e-12);
    }
}

/// Infinities and NaN: ReLU masks the gradient, and the slope of GELU has limits.
fn gradients_at_the_ends<T: Scalar>(context: &Context) {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for (gate, x, dy, wanted) in [
        (
            Gate::Relu,
            [-1.0, 0.0, -inf, -2.0, 1.0, inf],
            [inf, nan, -inf, 3.0, inf, 2.0],
            [0.0, 0.0, 0.0, 0.0, inf, 2.0],
        ),
        (
            Gate::Gelu,
            [inf, -inf, inf, -inf, 200.0, -200.0],
            [2.0, 2.0, -3.0, 0.0, 5.0, 5.0],
            [2.0, 0.0, -3.0, 0.0, 5.0, 0.0],
        ),
    ] {
        let [x, dy] = [x, dy].map(|all| {
            let all = all.map(T::from_f64).to_vec();
            upload_values(context, &[1, 6], all)
        });
        let mut dx = context.zeros::<T>(&[1, 6]).unwrap();
        let function = Activation::new(context, gate, [1, 6]).unwrap();
        finish(context, |stream| function.backward(&x, &dy, &mut dx, stream));
        assert_eq!(wide(&dx), wanted, "{gate:?}");
    }
}

on_both! {
    gradients_of_activations_have_limits: cpu [gradients_at_the_ends::<f32>, gradients_at_the_ends::<f16>, gradients_at_the_ends::<bf16>],
        gpu [gradients_at_the_ends::<f32>, gradients_at_the_ends::<f16>, gradients_at_the_ends::<bf16>];
}
