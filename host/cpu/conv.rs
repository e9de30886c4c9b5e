//! Sparse convolutions on the CPU: a row of the output, or a matrix of the weights' gradient, is the work of one thread. A
//! neighbour that is not there is not multiplied.

use einsparse_formats::{Accumulator, Element};
use rayon::prelude::*;

use crate::kernel_map::{ABSENT, MapArrays};

/// A stack of matrices or a matrix: elements, and from one row to the next.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, T> {
    pub values: &'a [T],
    pub leading: usize,
}

impl<'a, T> Rows<'a, T> {
    fn row(&self, row: usize, width: usize) -> &'a [T] {
        &self.values[row * self.leading..][..width]
    }
}

/// What a convolution's product is made of; the weights are `[t, c, m]`, or `[t, m, c]` with `turned`.
pub(crate) struct HostConv<'a, T> {
    pub map: &'a MapArrays<Vec<u32>>,
    /// Channels of the input and of the output.
    pub channels: [usize; 2],
    pub input: Rows<'a, T>,
    pub weights: Rows<'a, T>,
    pub turned: bool,
    pub bias: Option<&'a [T]>,
    pub relu: bool,
}

impl<T: Element> HostConv<'_, T> {
    /// All rows of the output, `leading` elements apart.
    pub(crate) fn run(&self, out: &mut [T], leading: usize) {
        let stride = self.map.order.len();
        let mut positions = vec![0u32; stride];
        for (position, &o) in self.map.order.iter().enumerate() {
            if o != ABSENT {
                positions[o as usize] = position as u32;
            }
        }
        let [c, m] = self.channels;
        if m == 0 {
            return;
        }
        out.par_chunks_mut(leading)
            .zip(&positions)
            .for_each(|(out, &position)| {
                let mut sums = vec![<T::Acc as Accumulator>::ZERO; m];
                let of_offsets = self.map.neighbours[position as usize..]
                    .iter()
                    .step_by(stride);
                for (t, &neighbour) in of_offsets.enumerate() {
                    if neighbour != ABSENT {
                        let row = self.input.row(neighbour as usize, c);
                        self.add(t, row, &mut sums);
                    }
                }
                self.finish(&sums, &mut out[..m]);
            });
    }

    /// Adds an input row times the matrix of an offset.
    fn add(&self, t: usize, row: &[T], sums: &mut [T::Acc]) {
        let [c, m] = self.channels;
        if self.turned {
            for (column, sum) in sums.iter_mut().enumerate() {
                let weights = self.weights.row(t * m + column, c);
                for (x, w) in row.iter().zip(weights) {
                    *sum += x.to_acc() * w.to_acc();
                }
            }
        } else {
            for (channel, x) in row.iter().enumerate() {
                let weights = self.weights.row(t * c + channel, m);
                for (sum, w) in sums.iter_mut().zip(weights) {
                    *sum += x.to_acc() * w.to_acc();
                }
            }
        }
    }

    fn finish(&self, sums: &[T::Acc], out: &mut [T]) {
        for (column, (to, &sum)) in out.iter_mut().zip(sums).enumerate() {
            let mut x = sum;
            if let Some(bias) = self.bias {
                x += bias[column].to_acc();
            }
            // NaN passes.
            if self.relu && x < <T::Acc as Accumulator>::ZERO {
                x = <T::Acc as Accumulator>::ZERO;
            }
            *to = T::from_acc(x);
        }
    }
}

/// `dW[t,c,m] = In[i,c] * dOut[o,m]`, summed over the pairs of an offset in the map's order; rows of `out` `leading`
/// elements apart.
pub(crate) fn weight_gradient<T: Element>(
    map: &MapArrays<Vec<u32>>,
    [c, m]: [usize; 2],
    [input, gradient]: [Rows<'_, T>; 2],
    out: &mut [T],
    leading: usize,
) {
    let stride = map.order.len();
    if c * m == 0 {
        return;
    }
    let matrices = out.par_chunks_mut(leading * c).enumerate();
    matrices.for_each(|(t, out)| {
        let mut sums = vec![<T::Acc as Accumulator>::ZERO; c * m];
        let line = map.neighbours[t * stride..].iter().zip(&map.order);
        for (&neighbour, &o) in line.filter(|(n, _)| **n != ABSENT) {
            let row = input.row(neighbour as usize, c);
            let gradient = gradient.row(o as usize, m);
            for (x, sums) in row.iter().zip(sums.chunks_mut(m)) {
                for (sum, g) in sums.iter_mut().zip(gradient) {
                    *sum += x.to_acc() * g.to_acc();
                }
            }
        }
        for (to, from) in out.chunks_mut(leading).zip(sums.chunks(m)) {
            for (to, &from) in to.iter_mut().zip(from) {
                *to = T::from_acc(from);
            }
        }
    });
}
