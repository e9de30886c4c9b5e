//! Bias and activation on the finished sums, and the one rounding.

use einsparse_formats::{Accumulator, Element};
use rayon::prelude::*;

use super::operands::{Operands, Output, View};
use crate::einsum::{Activation, Mode};
use crate::error::{Error, Result};
use crate::indirect::IndirectEinsum;

/// `relu(sum + bias)`, either part optional.
pub(super) struct Epilogue<'a, T> {
    bias: Option<View<'a, T>>,
    /// For each axis of the bias the axis of the output.
    axes: Vec<usize>,
    activation: Activation,
}

/// The activation of a finished sum. NaN stays NaN, so that a fault in the data is seen.
#[inline(always)]
pub(super) fn activate<A: Accumulator>(activation: Activation, v: A) -> A {
    match activation {
        Activation::Identity => v,
        Activation::Relu if v < A::ZERO => A::ZERO,
        Activation::Relu => v,
        Activation::Gelu => {
            let x = v.to_f64();
            A::from_f64(0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)))
        }
    }
}

impl<'a, T: Element> Epilogue<'a, T> {
    pub fn bind(e: &IndirectEinsum, operands: &Operands<'a, T>, out: &[usize]) -> Result<Self> {
        let Some(bias) = &e.bias else {
            return Ok(Epilogue {
                bias: None,
                axes: Vec::new(),
                activation: e.activation,
            });
        };
        let view = operands.tensor(&bias.tensor)?.clone();
        let name = || bias.tensor.clone();
        if view.shape.len() != bias.axes.len() {
            return Err(Error::Shape {
                index: name(),
                left: format!("{} indices in the expression", bias.axes.len()),
                right: format!(
                    "the operand has {} axes, {:?}",
                    view.shape.len(),
                    view.shape
                ),
            });
        }
        for (&axis, &extent) in bias.axes.iter().zip(&view.shape) {
            let wanted = out.get(axis).copied().unwrap_or(1);
            if extent != wanted {
                return Err(Error::Shape {
                    index: name(),
                    left: format!("{extent} in the bias"),
                    right: format!("{wanted} in axis {axis} of the output"),
                });
            }
        }
        Ok(Epilogue {
            bias: Some(view),
            axes: bias.axes.clone(),
            activation: e.activation,
        })
    }

    /// Writes every element of `out` from the row-major `sums`.
    pub fn store(&self, sums: &[T::Acc], mode: Mode, out: Output<'_, T>) {
        if sums.is_empty() {
            return;
        }
        let row = out.shape.last().copied().unwrap_or(1);
        let pitch = match out.strides.as_slice() {
            [.., pitch, _] => *pitch,
            _ => row,
        };
        let last = out.shape.len().saturating_sub(1);
        let rows = out
            .values
            .par_chunks_mut(pitch)
            .zip(sums.par_chunks(row))
            .enumerate();
        rows.for_each(|(r, (out_row, sums))| {
            let (base, step) = self.bias_row(r, &out.shape[..last], last);
            for (i, (slot, &sum)) in out_row.iter_mut().zip(sums).enumerate() {
                let mut v = sum;
                if let Some(bias) = &self.bias {
                    v += bias.values[base + i * step].to_acc();
                }
                v = activate(self.activation, v);
                *slot = T::from_acc(match mode {
                    Mode::Assign => v,
                    Mode::Accumulate => slot.to_acc() + v,
                });
            }
        });
    }

    /// Where the bias of output row `r` starts, and its step along the row.
    fn bias_row(&self, mut r: usize, outer: &[usize], last: usize) -> (usize, usize) {
        let Some(bias) = &self.bias else {
            return (0, 0);
        };
        let stride_of = |axis: usize| -> usize {
            let along = self
                .axes
                .iter()
                .zip(&bias.strides)
                .filter(|(a, _)| **a == axis);
            along.map(|(_, s)| *s).sum()
        };
        let mut base = 0;
        for (axis, &extent) in outer.iter().enumerate().rev() {
            base += r % extent * stride_of(axis);
            r /= extent;
        }
        (base, stride_of(last))
    }
}
