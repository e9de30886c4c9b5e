//! The norms of tokens, behind a residual sum or not.

use super::{EXTENTS, gaps_are_left, near, shape_of, values, with_gaps, within};
use crate::support::dense::wide;
use crate::support::on_gpu;
use crate::support::runs::finish;
use einsparse::formats::{bf16, f16};
use einsparse::nn::RmsNorm;
use einsparse::{Context, Scalar};

/// The norm of x, the sum x + y, its norm.
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
        for (columns, gap) in [
            (false, 0),
            (true, 0),
            (false, 8),
            (true, 8),
            (false, 3),
            (true, 1),
        ] {
            let found = norms::<T>(gpu, extents, columns, gap);
            let wanted = norms::<T>(&Context::cpu(), extents, columns, gap);
            let what = format!("{extents:?}, columns {columns}, gap {gap}");
            for (found, wanted) in found.iter().zip(&wanted) {
                near::<T>(&what, found, wanted, within::<T>());
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
        let [first, sum, second] = norms::<f64>(&Context::cpu(), [tokens, width], columns, 2);
        let shape = shape_of(columns, [tokens, width]);
        let [x, y] = [1, 2].map(|seed| values::<f64>(&shape, seed).into_values());
        let factor = values::<f64>(&[width], 3).into_values();
        let at = |t: usize, f: usize| {
            if columns {
                f * tokens + t
            } else {
                t * width + f
            }
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
