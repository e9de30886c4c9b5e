//! Products at the places of a sparse output on the CPU: operands found, the executor called.

use std::sync::Arc;

use super::SampledPlan;
use super::product::{Pattern, Product, pattern};
use crate::cpu::sampled::{Slots, Strided, sampled};
use crate::einsum::Mode;
use crate::error::{Error, Result};
use crate::indirect::SampledFactor;
use crate::plan::bind::{elsewhere, find, wrong};
use crate::registry::{Scalar, block_of};
use crate::tensor::{Operand, SparseTensor};

impl<T: Scalar, Out: Scalar> SampledPlan<T, Out> {
    pub(super) fn run_cpu(
        &self,
        product: &Product,
        operands: &[(&str, Operand<'_, T>)],
        out: &mut SparseTensor<Out>,
        alpha: f64,
    ) -> Result<()> {
        let x = strided(operands, &product.form.x)?;
        let y = strided(operands, &product.form.y)?;
        if out.host().is_none() {
            return Err(elsewhere(&product.form.output));
        }
        let planned = pattern(&product.form.output, out)?;
        let mask = match &product.form.mask {
            None => None,
            Some(name) => Some(host_mask(operands, name, out, &planned)?),
        };
        let runs = Arc::clone(planned.runs);
        let columns = planned.columns.to_vec();
        let slots = Slots {
            runs: &runs,
            columns: &columns,
            block: block_of(&out.format()),
            extents: (self.out_shape[0], self.out_shape[1]),
        };
        let (k, accumulate) = (product.extents.k, product.form.mode == Mode::Accumulate);
        if T::DTYPE == Out::DTYPE {
            // One type has one DTYPE.
            let values: &mut [T] = bytemuck::cast_slice_mut(out.host_values_mut());
            sampled((x, y), k, slots, (alpha, mask, accumulate), values);
            return Ok(());
        }
        // Everything as f64, one rounding.
        let wide = |values: &[T]| -> Vec<f64> { values.iter().map(|v| v.to_f64()).collect() };
        let (own_x, own_y, mask) = (wide(x.values), wide(y.values), mask.map(wide));
        let factors = (x.with(&own_x), y.with(&own_y));
        let own = out.host_values_mut();
        let mut values: Vec<f64> = own.iter().map(|v| v.to_f64()).collect();
        let more = (alpha, mask.as_deref(), accumulate);
        sampled(factors, k, slots, more, &mut values);
        for (to, from) in own.iter_mut().zip(values) {
            *to = Out::from_f64(from);
        }
        Ok(())
    }
}

/// A dense factor on the host, by its own index and k.
fn strided<'a, T: Scalar>(
    operands: &'a [(&str, Operand<'_, T>)],
    factor: &SampledFactor,
) -> Result<Strided<'a, T>> {
    let name = factor.name.as_str();
    let (values, leading) = match find(operands, name)? {
        Operand::Dense(d) => (d.host().ok_or_else(|| elsewhere(name))?, d.leading()),
        Operand::HostDense(d) => (d.values(), d.shape()[1]),
        other => return Err(wrong(name, "a dense tensor", other)),
    };
    let (row, k) = if factor.columns {
        (1, leading)
    } else {
        (leading, 1)
    };
    Ok(Strided { values, row, k })
}

/// The values of a mask on the host, whose pattern is the output's.
fn host_mask<'a, T: Scalar, Out: Scalar>(
    operands: &'a [(&str, Operand<'_, T>)],
    name: &str,
    out: &SparseTensor<Out>,
    planned: &Pattern<'_>,
) -> Result<&'a [T]> {
    let Operand::Sparse(mask) = find(operands, name)? else {
        return Err(wrong(
            name,
            "an uploaded sparse tensor",
            find(operands, name)?,
        ));
    };
    let own = pattern(name, mask)?;
    let same =
        mask.format() == out.format() && own.runs == planned.runs && own.columns == planned.columns;
    if !same {
        return Err(Error::Operand {
            name: name.into(),
            reason: "has not the pattern or the format of the output".into(),
        });
    }
    let mask = mask.host().ok_or_else(|| elsewhere(name))?;
    Ok(mask.values())
}
