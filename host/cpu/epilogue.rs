//! Bias and activation on the finished sums, and the one rounding.

use einsparse_formats::{Accumulator, Element};
use rayon::prelude::*;

use super::operands::{Operands, Output, View};
use crate::einsum::{Activation, Mode};
use crate::error::{Error, Result};
use crate::indirect::IndirectEinsum;

/// `relu(sum + bias)` or `relu_grad(sum + bias, gate)`, each part optional.
pub(super) struct Epilogue<'a, T> {
    bias: Option<View<'a, T>>,
    /// For each axis of the bias the axis of the output.
    axes: Vec<usize>,
    activation: Activation,
    gate: Option<View<'a, T>>,
}

/// The activation of a finished sum. NaN stays NaN, so that a fault in the data is seen; of an infinity comes the limit: +Inf or 0.
#[inline(always)]
pub(crate) fn activate<A: Accumulator>(activation: Activation, v: A) -> A {
    match activation {
        Activation::Identity => v,
        Activation::Relu if v < A::ZERO => A::ZERO,
        Activation::Relu => v,
        Activation::Gelu => A::from_f64(gelu(v.to_f64())),
    }
}

/// x / 2 (1 + erf(x / sqrt 2)); of -Inf the limit, 0, where the product would be NaN.
pub(crate) fn gelu(x: f64) -> f64 {
    if x == f64::NEG_INFINITY {
        return 0.0;
    }
    0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2))
}

impl<'a, T: Element> Epilogue<'a, T> {
    pub fn bind(e: &IndirectEinsum, operands: &Operands<'a, T>, out: &[usize]) -> Result<Self> {
        let gate = match &e.gate {
            Some(name) => Some(gate(name, operands, out)?),
            None => None,
        };
        let Some(bias) = &e.bias else {
            return Ok(Epilogue {
                bias: None,
                axes: Vec::new(),
                activation: e.activation,
                gate,
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
            gate,
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
        let all: Vec<usize> = (0..=last).collect();
        rows.for_each(|(r, (out_row, sums))| {
            let (base, step) = row_of(self.bias.as_ref(), &self.axes, r, &out.shape[..last], last);
            let (gate_base, gate_step) =
                row_of(self.gate.as_ref(), &all, r, &out.shape[..last], last);
            for (i, (slot, &sum)) in out_row.iter_mut().zip(sums).enumerate() {
                let mut v = sum;
                if let Some(bias) = &self.bias {
                    v += bias.values[base + i * step].to_acc();
                }
                v = activate(self.activation, v);
                if let Some(gate) = &self.gate {
                    let open = gate.values[gate_base + i * gate_step].to_acc() > T::Acc::ZERO;
                    v = if open { v } else { T::Acc::ZERO };
                }
                *slot = T::from_acc(match mode {
                    Mode::Assign => v,
                    Mode::Accumulate => slot.to_acc() + v,
                });
            }
        });
    }
}

/// The gate, of the output's shape.
fn gate<'a, T: Element>(
    name: &str,
    operands: &Operands<'a, T>,
    out: &[usize],
) -> Result<View<'a, T>> {
    let view = operands.tensor(name)?.clone();
    if view.shape == out {
        return Ok(view);
    }
    Err(Error::Shape {
        index: name.into(),
        left: format!("the gate has {:?}", view.shape),
        right: format!("the output {out:?}"),
    })
}

/// Where output row `r` starts in a tensor whose axes are these of the output, and the step along the row.
fn row_of<T>(
    view: Option<&View<'_, T>>,
    axes: &[usize],
    mut r: usize,
    outer: &[usize],
    last: usize,
) -> (usize, usize) {
    let Some(view) = view else {
        return (0, 0);
    };
    let stride_of = |axis: usize| -> usize {
        let along = axes.iter().zip(&view.strides).filter(|(a, _)| **a == axis);
        along.map(|(_, s)| *s).sum()
    };
    let mut base = 0;
    for (axis, &extent) in outer.iter().enumerate().rev() {
        base += r % extent * stride_of(axis);
        r /= extent;
    }
    (base, stride_of(last))
}
