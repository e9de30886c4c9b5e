//! Norms of tokens, with and without a preceding residual sum.

use super::{EXTENTS, gaps_are_left, shape_of, values, with_gaps, within};
use crate::support::bounds::assert_near;
use crate::support::dense::wide;
use crate::support::on_gpu;
use crate::support::runs::finish;
use einsparse::formats::{bf16, f16};
use einsparse::nn::{ResidualNorm, ResidualNormGradient, RmsNorm};
use einsparse::{Context, Scalar};

/// Returns the norm of x, the sum x + y, and its norm.
fn norms<T: Scalar>(
    ctx: &Context,
    extents: [usize; 2],
    columns: bool,
    gap: usize,
) -> [Vec<f64>; 3] {
    let shape = shape_of(columns, extents);
    let norm = RmsNorm::<T>::new(ctx, extents, 1e-5, columns).unwrap();
    let mut x = with_gaps(ctx, &values::<T>(&shape, 1), gap);
    let y = with_gaps(ctx, &values::<T>(&shape, 2), gap);
    let factor = ctx.upload_dense(&values::<T>(&[extents[1]], 3)).unwrap();
    let nothing = values::<T>(&shape, 4);
    let [mut first, mut second] = [0, 1].map(|_| with_gaps(ctx, &nothing, gap));
    finish(ctx, |stream| {
        norm.forward(&x, &factor, &mut first, stream)?;
        norm.forward_residual([&mut x, &mut second], &y, &factor, stream)
    });
    gaps_are_left(&x);
    gaps_are_left(&second);
    [wide(&first), wide(&x), wide(&second)]
}

fn norms_agree<T: Scalar>(gpu: &Context) {
    for extents in EXTENTS {
        for (columns, gap) in [(false, 0), (true, 0), (false, 8), (true, 8), (false, 3), (true, 1)]
        {
            let found = norms::<T>(gpu, extents, columns, gap);
            let wanted = norms::<T>(&Context::unchecked_cpu(), extents, columns, gap);
            let what = format!("{extents:?}, columns {columns}, gap {gap}");
            for (found, wanted) in found.iter().zip(&wanted) {
                assert_near(&what, found, wanted, within::<T>());
            }
        }
    }
}

#[test]
fn norms_on_the_gpu() {
    on_gpu(&[norms_agree::<f32>, norms_agree::<f16>, norms_agree::<bf16>]);
}

#[test]
fn norms_are_those_written_out() {
    let [tokens, width] = [3, 40];
    for columns in [false, true] {
        let [first, sum, second] =
            norms::<f64>(&Context::unchecked_cpu(), [tokens, width], columns, 2);
        let shape = shape_of(columns, [tokens, width]);
        let [x, y] = [1, 2].map(|seed| values::<f64>(&shape, seed).into_values());
        let factor = values::<f64>(&[width], 3).into_values();
        let at = |t: usize, f: usize| {
            if columns { f * tokens + t } else { t * width + f }
        };
        for t in 0..tokens {
            let root = |of: &dyn Fn(usize) -> f64| {
                let squares: f64 = (0..width).map(|f| of(f) * of(f)).sum();
                (squares / width as f64 + 1e-5).sqrt()
            };
            let both = |f: usize| x[at(t, f)] + y[at(t, f)];
            let roots = [root(&|f| x[at(t, f)]), root(&both)];
            for f in 0..width {
                let wanted = [x[at(t, f)] / roots[0], both(f) / roots[1]].map(|x| x * factor[f]);
                assert!((first[at(t, f)] - wanted[0]).abs() < 1e-12);
                assert!((second[at(t, f)] - wanted[1]).abs() < 1e-12);
                assert_eq!(sum[at(t, f)], both(f));
            }
        }
    }
}

/// Returns gradients of the layer norm of x + y: of x, of factors, of summands.
fn gradients<T: Scalar, Out: Scalar>(
    ctx: &Context,
    extents: [usize; 2],
    gap: usize,
) -> [Vec<f64>; 3] {
    let gradient = ResidualNormGradient::<T, Out>::new(ctx, extents, 1e-5).unwrap();
    let [x, y, dy] = [1, 2, 5].map(|seed| with_gaps(ctx, &values::<T>(&extents, seed), gap));
    let factor = ctx.upload_dense(&values::<T>(&extents[1..], 3)).unwrap();
    let mut dx = with_gaps(ctx, &values::<T>(&extents, 4), gap);
    let affine = values::<Out>(&[2, extents[1]], 6);
    let mut affine = ctx.upload_dense(&affine).unwrap();
    let mut before = None;
    for _ in 0..2 {
        finish(ctx, |stream| {
            gradient.backward([&x, &y], &factor, &dy, &mut dx, &mut affine, stream)
        });
        let mut first = wide(&affine);
        let second = first.split_off(extents[1]);
        let found = [wide(&dx), first, second];
        assert!(before.is_none_or(|before| before == found), "{extents:?}");
        before = Some(found);
    }
    gaps_are_left(&dx);
    before.unwrap_or_default()
}

fn gradients_agree<T: Scalar>(gpu: &Context) {
    for extents in EXTENTS {
        for gap in [0, 8, 3] {
            let found = gradients::<T, f32>(gpu, extents, gap);
            let wanted = gradients::<T, f64>(&Context::unchecked_cpu(), extents, gap);
            let what = format!("{extents:?}, gap {gap}");
            // The deviation of one column is zero, and its inverse amplifies roundings.
            if extents[1] > 1 {
                assert_near(&what, &found[0], &wanted[0], within::<T>());
            }
            // These are sums over all rows.
            let sums = 1e-5 * (1.0 + extents[0] as f64).sqrt();
            assert_near(&what, &found[1], &wanted[1], sums);
            assert_near(&what, &found[2], &wanted[2], sums);
        }
    }
}

#[test]
fn gradients_of_layer_norms_on_the_gpu() {
    on_gpu(&[gradients_agree::<f32>, gradients_agree::<f16>, gradients_agree::<bf16>]);
}

#[test]
fn gradients_of_layer_norms_are_those_of_differences() {
    const STEP: f64 = 1e-6;
    let (cpu, extents) = (Context::unchecked_cpu(), [3, 7]);
    let found = gradients::<f64, f64>(&cpu, extents, 2);
    let norm = ResidualNorm::<f64>::new(&cpu, extents, 1e-5).unwrap();
    let start = [1, 2, 3, 4].map(|seed| match seed {
        1 | 2 => values::<f64>(&extents, seed),
        _ => values::<f64>(&extents[1..], seed),
    });
    let upstream = values::<f64>(&extents, 5).into_values();
    let loss = |which: usize, at: usize, by: f64| -> f64 {
        let mut all = start.clone();
        all[which].values_mut()[at] += by;
        let [x, y, factor, summand] = all.map(|dense| cpu.upload_dense(&dense).unwrap());
        let mut out = cpu.zeros(&extents).unwrap();
        finish(&cpu, |stream| norm.forward([&x, &y], [&factor, &summand], &mut out, stream));
        let sums = wide(&out);
        sums.iter().zip(&upstream).map(|(y, dy)| y * dy).sum()
    };
    for (which, found) in [&found[0], &found[0], &found[1], &found[2]].into_iter().enumerate() {
        for (at, found) in found.iter().enumerate() {
            let slope = (loss(which, at, STEP) - loss(which, at, -STEP)) / (2.0 * STEP);
            assert!((found - slope).abs() < 1e-7, "{which}, {at}: {found}, not {slope}");
        }
    }
}
