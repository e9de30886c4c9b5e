//! CPU implementations, computed in f64 and rounded once. Matrices have a row stride in elements.

use super::Layout;
use crate::error::{Elsewhere, Result};
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// Matrix of tokens in host memory.
pub struct Host<'a, T> {
    pub(crate) values: &'a [T],
    pub(crate) leading: usize,
}

impl<'a, T: Scalar> Host<'a, T> {
    pub fn of(name: &str, tensor: &'a Tensor<T>) -> Result<Self> {
        let values = tensor.host().or_elsewhere(name)?;
        let leading = tensor.leading();
        Ok(Host { values, leading })
    }

    fn get(&self, layout: Layout, token: usize, feature: usize) -> f64 {
        self.values[layout.at(self.leading, token, feature)].to_f64()
    }
}

/// Computes `x += y`, rounded.
pub fn add<T: Scalar>(layout: Layout, (x, leading): (&mut [T], usize), y: &Host<'_, T>) {
    for token in 0..layout.tokens {
        for feature in 0..layout.width {
            let at = layout.at(leading, token, feature);
            x[at] = T::from_f64(x[at].to_f64() + y.get(layout, token, feature));
        }
    }
}

/// RMS norm: divides each token by the root of the mean of its squares and multiplies by one factor per feature.
pub fn rms_norm<T: Scalar>(
    layout: Layout,
    x: &Host<'_, T>,
    (factor, epsilon): (&[T], f64),
    (out, leading): (&mut [T], usize),
) {
    for token in 0..layout.tokens {
        let of = |feature| x.get(layout, token, feature);
        let squares: f64 = (0..layout.width).map(|f| of(f) * of(f)).sum();
        let scale = 1.0 / (squares / layout.width as f64 + epsilon).sqrt();
        for (feature, factor) in factor.iter().enumerate() {
            out[layout.at(leading, token, feature)] =
                T::from_f64(of(feature) * scale * factor.to_f64());
        }
    }
}

/// Gradients of the layer norm of x + y: of both summands at `out`. Returns the gradients of the factors and biases.
pub fn norm_gradient<T: Scalar>(
    layout: Layout,
    [x, y, dy]: &[Host<'_, T>; 3],
    (factor, epsilon): (&[T], f64),
    (out, leading): (&mut [T], usize),
) -> [Vec<f64>; 2] {
    let Layout { tokens, width, .. } = layout;
    let mut affine = [vec![0.0; width], vec![0.0; width]];
    let share = 1.0 / width as f64;
    for token in 0..tokens {
        let of = |matrix: &Host<'_, T>, f: usize| matrix.get(layout, token, f);
        let mut off: Vec<f64> = (0..width).map(|f| of(x, f) + of(y, f)).collect();
        let mean = off.iter().sum::<f64>() * share;
        off.iter_mut().for_each(|z| *z -= mean);
        let squares: f64 = off.iter().map(|z| z * z).sum();
        let by = 1.0 / (squares * share + epsilon).sqrt();
        let g: Vec<f64> = (0..width).map(|f| of(dy, f) * factor[f].to_f64()).collect();
        let level = g.iter().sum::<f64>() * share;
        let along = g.iter().zip(&off).map(|(g, off)| g * off).sum::<f64>() * share;
        for (f, (g, off)) in g.iter().zip(&off).enumerate() {
            affine[0][f] += of(dy, f) * off * by;
            affine[1][f] += of(dy, f);
            let own = (g - level - off * along * by * by) * by;
            out[layout.at(leading, token, f)] = T::from_f64(own);
        }
    }
    affine
}

/// Rotates queries and keys by their positions, and copies values.
pub fn rotary<T: Scalar>(
    layout: Layout,
    x: &Host<'_, T>,
    (lengths, turns, heads): (&[i32], &[f64], [usize; 2]),
    out: [&mut [T]; 3],
) {
    let half = turns.len();
    let dim = 2 * half;
    let mut first = 0;
    for (part, (out, heads)) in out.into_iter().zip([heads[0], heads[1], heads[1]]).enumerate() {
        for (index, to) in out.chunks_exact_mut(dim).take(layout.tokens * heads).enumerate() {
            let (token, head) = (index / heads, index % heads);
            let of = |i: usize| x.get(layout, token, first + head * dim + i);
            let position = f64::from(lengths[token]) - 1.0;
            if part == 2 {
                // Values are copied, not rotated by 0, because 0 times Inf is NaN.
                for (i, to) in to.iter_mut().enumerate() {
                    *to = T::from_f64(of(i));
                }
                continue;
            }
            for (i, turns) in turns.iter().enumerate() {
                let turned = turns * position;
                let angle = (turned - turned.round()) * std::f64::consts::TAU;
                let (sine, cosine) = angle.sin_cos();
                let [low, high] = [of(i), of(half + i)];
                to[i] = T::from_f64(low * cosine - high * sine);
                to[half + i] = T::from_f64(high * cosine + low * sine);
            }
        }
        first += heads * dim;
    }
}

/// Gated unit: combines the first features of a token with the features that follow them.
pub fn gated<T: Scalar>(
    layout: Layout,
    x: &Host<'_, T>,
    multiply: impl Fn(f64, f64) -> f64,
    (out, leading): (&mut [T], usize),
) {
    let both = Layout { width: 2 * layout.width, ..layout };
    for token in 0..layout.tokens {
        for feature in 0..layout.width {
            let of = |feature| x.get(both, token, feature);
            let value = multiply(of(feature), of(layout.width + feature));
            out[layout.at(leading, token, feature)] = T::from_f64(value);
        }
    }
}

/// Copies rows of a table; zeros for a token outside of the table.
pub fn embed<T: Scalar>(
    layout: Layout,
    (table, vocabulary): (&Host<'_, T>, usize),
    tokens: &[i32],
    (out, leading): (&mut [T], usize),
) {
    for (token, &number) in tokens.iter().enumerate().take(layout.tokens) {
        let row = usize::try_from(number).ok().filter(|&row| row < vocabulary);
        for feature in 0..layout.width {
            out[layout.at(leading, token, feature)] = match row {
                Some(row) => table.values[row * table.leading + feature],
                None => T::ZERO,
            };
        }
    }
}

/// Returns the index of the first max logit of each token. NaN is ignored.
pub fn greedy<T: Scalar>(layout: Layout, logits: &Host<'_, T>, tokens: &mut [i32]) {
    for (token, to) in tokens.iter_mut().enumerate().take(layout.tokens) {
        let mut largest = (f64::NEG_INFINITY, 0);
        for number in 0..layout.width {
            let value = logits.get(layout, token, number);
            if value > largest.0 {
                largest = (value, number);
            }
        }
        *to = largest.1 as i32;
    }
}
