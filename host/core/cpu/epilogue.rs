//! Epilogue: bias and activation of finished sums, and the single rounding.

use std::borrow::Cow;

use einsparse_formats::Accumulator;

use super::operands::{AnyOperands, Output, View};
use crate::einsum::{Activation, Mode};
use crate::error::{Error, Result};
use crate::indirect::IndirectEinsum;
use crate::parallel;
use crate::values::Sum;

/// `relu(sum + bias)` or `relu_grad(sum + bias, gate)`, each part optional.
pub(super) struct Epilogue<'a, A: Clone> {
    bias: Option<Beside<'a, A>>,
    /// Output axis of each axis of the bias.
    axes: Vec<usize>,
    activation: Activation,
    gate: Option<Beside<'a, A>>,
}

/// Tensor that is read at the indices of the output.
struct Beside<'a, A: Clone> {
    strides: Vec<usize>,
    values: Cow<'a, [A]>,
}

impl<'a, A: Sum> Beside<'a, A> {
    fn of(view: &View<'a>) -> Self {
        Beside { strides: view.strides.clone(), values: view.values.widen() }
    }
}

/// Applies the activation to a finished sum. NaN stays NaN, so that faults in the data stay visible. An infinity gives
/// the limit: +Inf or 0.
#[inline(always)]
pub fn activate<A: Accumulator>(activation: Activation, v: A) -> A {
    match activation {
        Activation::Identity => v,
        Activation::Relu if v < A::ZERO => A::ZERO,
        Activation::Relu => v,
        Activation::Gelu => A::from_f64(gelu(v.to_f64())),
    }
}

/// Returns x / 2 (1 + erf(x / sqrt 2)). For -Inf returns the limit 0, because the product would be NaN.
pub fn gelu(x: f64) -> f64 {
    if x == f64::NEG_INFINITY {
        return 0.0;
    }
    0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2))
}

/// Returns the slope of [`gelu`].
pub fn gelu_slope(x: f64) -> f64 {
    let below = 0.5 * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2));
    let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    // Outside of this range the density is 0, and 0 times Inf would be NaN.
    below + x.clamp(-64.0, 64.0) * density
}

impl<'a, A: Sum> Epilogue<'a, A> {
    pub fn bind(e: &IndirectEinsum, operands: &AnyOperands<'a>, out: &[usize]) -> Result<Self> {
        let gate = match &e.gate {
            Some(name) => Some(Beside::of(gate(name, operands, out)?)),
            None => None,
        };
        let Some(bias) = &e.bias else {
            return Ok(Epilogue { bias: None, axes: Vec::new(), activation: e.activation, gate });
        };
        let view = operands.tensor(&bias.tensor)?;
        let name = || bias.tensor.clone();
        if view.shape.len() != bias.axes.len() {
            return Err(Error::Shape {
                index: name(),
                left: format!("{} indices in the expression", bias.axes.len()),
                right: format!("the operand has {} axes, {:?}", view.shape.len(), view.shape),
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
            bias: Some(Beside::of(view)),
            axes: bias.axes.clone(),
            activation: e.activation,
            gate,
        })
    }

    /// Writes every element of `out` from the row-major `sums`.
    pub fn store(&self, sums: &[A], mode: Mode, out: Output<'_, A>) {
        if sums.is_empty() {
            return;
        }
        let row = out.shape.last().copied().unwrap_or(1);
        let pitch = match out.strides.as_slice() {
            [.., pitch, _] => *pitch,
            _ => row,
        };
        let last = out.shape.len().saturating_sub(1);
        let all: Vec<usize> = (0..=last).collect();
        let end = out.values.len().min(sums.len() / row * pitch);
        parallel::chunks(&mut out.values[..end], pitch, &|r, out_row| {
            let sums = &sums[r * row..][..row];
            let (base, step) = row_of(self.bias.as_ref(), &self.axes, r, &out.shape[..last], last);
            let (gate_base, gate_step) =
                row_of(self.gate.as_ref(), &all, r, &out.shape[..last], last);
            for (i, (slot, &sum)) in out_row.iter_mut().zip(sums).enumerate() {
                let mut v = sum;
                if let Some(bias) = &self.bias {
                    v += bias.values[base + i * step];
                }
                v = activate(self.activation, v);
                if let Some(gate) = &self.gate {
                    let open = gate.values[gate_base + i * gate_step] > A::ZERO;
                    v = if open { v } else { A::ZERO };
                }
                *slot = match mode {
                    Mode::Assign => v,
                    Mode::Accumulate => *slot + v,
                };
            }
        });
    }
}

/// Returns the tensor `gate`, which must have the output's shape.
fn gate<'o, 'a>(name: &str, operands: &'o AnyOperands<'a>, out: &[usize]) -> Result<&'o View<'a>> {
    let view = operands.tensor(name)?;
    if view.shape == out {
        return Ok(view);
    }
    Err(Error::Shape {
        index: name.into(),
        left: format!("the operand of relu_grad has shape {:?}", view.shape),
        right: format!("the output {out:?}"),
    })
}

/// Offset of output row `r` in a tensor whose axes are the output axes `axes`, and the step along the row.
fn row_of<A: Clone>(
    view: Option<&Beside<'_, A>>,
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
