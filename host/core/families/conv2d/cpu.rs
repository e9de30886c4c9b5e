//! CPU implementation of the convolution, accumulated in f64 and rounded once.

use super::Conv2dShape;
use crate::parallel;
use crate::registry::Scalar;

/// Host operands: the input with its channel stride in elements, the weights, and the bias.
pub(crate) type HostOperands<'a, T> = ((&'a [T], usize), &'a [T], Option<&'a [T]>);

/// Computes `out[m,n,y,x] = window of input * weights[m] + bias[m]`. `out` has a channel stride in elements.
pub(crate) fn conv2d<T: Scalar>(
    shape: &Conv2dShape,
    relu: bool,
    ((input, pitch), weights, bias): HostOperands<'_, T>,
    (out, out_pitch): (&mut [T], usize),
) {
    let [height, width] = shape.size;
    let [out_height, out_width] = shape.out_size;
    let [rows, columns] = shape.window;
    let taps = shape.each() * rows * columns;
    let one = |output: usize, image: usize, [y, x]: [usize; 2]| {
        let weights = &weights[output * taps..][..taps];
        let mut sum = bias.map_or(0.0, |bias| bias[output].to_f64());
        for (tap, weight) in weights.iter().enumerate() {
            let (c, i, j) = (tap / (rows * columns), tap / columns % rows, tap % columns);
            let c = if shape.depthwise { output } else { c };
            let at = |from: usize, step: usize, padding: usize, extent: usize| {
                (from * shape.stride + step).checked_sub(padding).filter(|at| *at < extent)
            };
            let place = at(y, i, shape.padding[0], height).zip(at(x, j, shape.padding[1], width));
            let value = place
                .map_or(0.0, |(y, x)| input[c * pitch + (image * height + y) * width + x].to_f64());
            sum += weight.to_f64() * value;
        }
        if relu && sum < 0.0 { 0.0 } else { sum }
    };
    let [_, places] = shape.places();
    if places == 0 {
        return;
    }
    parallel::chunks(out, out_pitch, &|output, to| {
        for (at, to) in to.iter_mut().enumerate().take(places) {
            let (plane, x) = (at / out_width, at % out_width);
            let (image, y) = (plane / out_height, plane % out_height);
            *to = T::from_f64(one(output, image, [y, x]));
        }
    });
}
