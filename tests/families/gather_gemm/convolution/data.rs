//! Operands of convolutions, and expected results.

use einsparse::dynamic::ConvolutionAxis::{self, Channels, Filters};
use einsparse::dynamic::{ConvolutionOptions, ConvolutionShape, DynamicConvolution};
use einsparse::formats::Dense;
use einsparse::{Context, Result, Scalar};
use rayon::prelude::*;

use crate::support::dense::integers;

/// Reference: a plain loop in f64.
pub fn reference<T: Scalar>(s: &ConvolutionShape, a: &Dense<T>, b: &Dense<T>) -> Vec<f64> {
    let [out_x, out_y] = s.out().unwrap();
    let a = a.values();
    // Converted once: a conversion costs as much as many products.
    let b: Vec<f64> = b.values().iter().map(|w| w.to_f64()).collect();
    let mut c = vec![0.0; s.images * out_x * out_y * s.filters];
    let places = c.par_chunks_mut(s.filters.max(1)).enumerate();
    places.for_each(|(place, sums)| {
        let n = place / (out_x * out_y);
        let x = place / out_y % out_x;
        let y = place % out_y;
        for i in 0..s.window[0] {
            for j in 0..s.window[1] {
                let own_x = (x * s.stride[0] + i * s.dilation[0]).wrapping_sub(s.padding[0]);
                let own_y = (y * s.stride[1] + j * s.dilation[1]).wrapping_sub(s.padding[1]);
                if own_x >= s.size[0] || own_y >= s.size[1] {
                    continue;
                }
                let from = ((n * s.size[0] + own_x) * s.size[1] + own_y) * s.channels;
                for m in 0..s.channels {
                    let x = a[from + m].to_f64();
                    if x == 0.0 {
                        continue;
                    }
                    let line = &b[((i * s.window[1] + j) * s.channels + m) * s.filters..];
                    for (sum, w) in sums.iter_mut().zip(line) {
                        *sum += x * w;
                    }
                }
            }
        }
    });
    c
}

/// Returns small integers. Per `rows` rows, `per_mille` of 1000 columns are nonzero, and the others are zero.
fn columns<T: Scalar>(shape: [usize; 4], rows: usize, per_mille: u64, seed: u64) -> Dense<T> {
    let width = shape[3];
    let all: usize = shape[..3].iter().product();
    let mut values = integers::<T>(&[all, width], seed).values().to_vec();
    for (i, value) in values.iter_mut().enumerate() {
        let group = (i / width.max(1) / rows.max(1)) as u64;
        let column = (i % width.max(1)) as u64;
        let mixed = (group * 1_000_003 + column + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // A nonzero column may contain some zeros, but never only zeros.
        if (mixed >> 32) % 1000 >= per_mille {
            *value = T::ZERO;
        }
    }
    Dense::new(shape.to_vec(), values).unwrap()
}

pub fn shapes(s: &ConvolutionShape) -> [[usize; 4]; 2] {
    let [h, w] = s.size;
    let [i, j] = s.window;
    [[s.images, h, w, s.channels], [i, j, s.channels, s.filters]]
}

/// Returns operands. The one that is sparse along the axis is filled to `per_mille` of 1000.
pub fn operands<T: Scalar>(
    s: &ConvolutionShape,
    axis: ConvolutionAxis,
    per_mille: u64,
    seed: u64,
) -> [Dense<T>; 2] {
    let [a, b] = shapes(s);
    match axis {
        Channels => [columns(a, a[1] * a[2], per_mille, seed), columns(b, 1, 1000, seed + 1)],
        Filters => [columns(a, 1, 1000, seed), columns(b, b[0] * b[1] * b[2], per_mille, seed + 1)],
    }
}

/// Returns a convolution of this shape.
pub fn convolution<T: Scalar>(
    context: &Context,
    s: &ConvolutionShape,
    axis: ConvolutionAxis,
) -> Result<DynamicConvolution<T>> {
    let options = ConvolutionOptions {
        axis,
        stride: s.stride,
        dilation: s.dilation,
        padding: s.padding,
        ..ConvolutionOptions::default()
    };
    let [a, b] = shapes(s);
    DynamicConvolution::new(context, a, b, &options)
}

pub fn plain(a: [usize; 4], window: [usize; 2], filters: usize) -> ConvolutionShape {
    ConvolutionShape::new(a, window, filters)
}
