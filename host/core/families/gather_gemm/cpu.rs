//! CPU implementation of sparse convolutions. One thread computes a row of the output, or of the weights' gradient.
//! Missing neighbours are not multiplied.

use std::borrow::Cow;

use crate::families::gather_gemm::kernel_map::{ABSENT, MapArrays};
use crate::tensor::AnyTensor;
use crate::values::{Sum, with_sums};

/// Matrix or stack of matrices: elements, and row stride.
struct Rows<'a, A: Clone> {
    values: Cow<'a, [A]>,
    leading: usize,
}

impl<'a, A: Sum> Rows<'a, A> {
    fn of(tensor: &'a AnyTensor) -> Self {
        let values = tensor.host().map(|values| values.widen());
        Rows { values: values.unwrap_or_default(), leading: tensor.leading() }
    }

    fn row(&self, row: usize, width: usize) -> &[A] {
        &self.values[row * self.leading..][..width]
    }
}

/// Operands of a convolution's product. The weights are `[t, c, m]`, or `[t, m, c]` if `turned`.
pub(crate) struct HostConv<'a> {
    pub map: &'a MapArrays<Vec<u32>>,
    /// Channels of the input and of the output.
    pub channels: [usize; 2],
    pub input: &'a AnyTensor,
    pub weights: &'a AnyTensor,
    pub turned: bool,
    pub bias: Option<&'a AnyTensor>,
    pub relu: bool,
}

impl HostConv<'_> {
    pub(crate) fn run(&self, out: &mut AnyTensor) {
        with_sums!(out.dtype(), A => self.run_in::<A>(out));
    }

    fn run_in<A: Sum>(&self, out: &mut AnyTensor) {
        let stride = self.map.order.len();
        let mut positions = vec![0u32; stride];
        for (position, &o) in self.map.order.iter().enumerate() {
            if o != ABSENT {
                positions[o as usize] = position as u32;
            }
        }
        let ([c, m], rows) = (self.channels, out.shape()[0]);
        let (input, weights) = (Rows::<A>::of(self.input), Rows::<A>::of(self.weights));
        let bias = self.bias.map(Rows::<A>::of);
        out.store_rows(rows, m, &|row, sums: &mut [A]| {
            let of_offsets = self.map.neighbours[positions[row] as usize..].iter().step_by(stride);
            for (t, &neighbour) in of_offsets.enumerate() {
                if neighbour != ABSENT {
                    self.add(t, input.row(neighbour as usize, c), &weights, sums);
                }
            }
            if let Some(bias) = &bias {
                let bias = bias.row(0, m).iter();
                sums.iter_mut().zip(bias).for_each(|(sum, &x)| *sum += x);
            }
            // NaN is kept: it is not less than zero.
            for sum in sums.iter_mut().filter(|sum| self.relu && **sum < A::ZERO) {
                *sum = A::ZERO;
            }
        });
    }

    /// Adds the product of an input row and the matrix of an offset.
    fn add<A: Sum>(&self, t: usize, row: &[A], weights: &Rows<'_, A>, sums: &mut [A]) {
        let [c, m] = self.channels;
        if self.turned {
            for (column, sum) in sums.iter_mut().enumerate() {
                let weights = weights.row(t * m + column, c);
                row.iter().zip(weights).for_each(|(&x, &w)| *sum += x * w);
            }
        } else {
            for (channel, &x) in row.iter().enumerate() {
                let weights = weights.row(t * c + channel, m);
                let each = sums.iter_mut().zip(weights);
                each.for_each(|(sum, &w)| *sum += x * w);
            }
        }
    }
}

/// Computes `dW[t,c,m] = In[i,c] * dOut[o,m]`, summed over the pairs of an offset in the map's order.
pub(crate) fn weight_gradient(
    map: &MapArrays<Vec<u32>>,
    channels: [usize; 2],
    operands: [&AnyTensor; 2],
    out: &mut AnyTensor,
) {
    with_sums!(out.dtype(), A => weights_in::<A>(map, channels, operands, out));
}

fn weights_in<A: Sum>(
    map: &MapArrays<Vec<u32>>,
    [c, m]: [usize; 2],
    operands: [&AnyTensor; 2],
    out: &mut AnyTensor,
) {
    let [input, gradient] = operands.map(Rows::<A>::of);
    let (stride, rows) = (map.order.len(), out.shape()[0] * c);
    out.store_rows(rows, m, &|row, sums: &mut [A]| {
        let (t, channel) = (row / c, row % c);
        let line = map.neighbours[t * stride..].iter().zip(&map.order);
        for (&neighbour, &o) in line.filter(|(n, _)| **n != ABSENT) {
            let x = input.row(neighbour as usize, c)[channel];
            let gradient = gradient.row(o as usize, m);
            let each = sums.iter_mut().zip(gradient);
            each.for_each(|(sum, &g)| *sum += x * g);
        }
    });
}
