//! Products at the places of a sparse output on the CPU: operands found, the executor called.

use std::sync::Arc;

use super::AnySampledPlan;
use super::product::{Pattern, Product, pattern};
use crate::einsum::Mode;
use crate::error::{Error, Result};
use crate::families::sddmm::cpu::{Slots, Strided, sampled};
use crate::indirect::SampledFactor;
use crate::offer::bind::{elsewhere, find, wrong};
use crate::registry::block_of;
use crate::tensor::{AnyOperand, AnySparseTensor};
use crate::values::Slice;

impl AnySampledPlan {
    pub(super) fn run_cpu(
        &self,
        product: &Product,
        operands: &[(&str, AnyOperand<'_>)],
        out: &mut AnySparseTensor,
        alpha: f64,
    ) -> Result<()> {
        let x = strided(operands, &product.form.x)?;
        let y = strided(operands, &product.form.y)?;
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
            extents: (self.expression.out_shape[0], self.expression.out_shape[1]),
        };
        let (k, accumulate) = (product.extents.k, product.form.mode == Mode::Accumulate);
        let values = out
            .host_mut()
            .ok_or_else(|| elsewhere(&product.form.output))?;
        sampled([x, y], k, slots, (alpha, mask, accumulate), values);
        Ok(())
    }
}

/// A dense factor on the host, by its own index and k.
fn strided<'a>(
    operands: &'a [(&str, AnyOperand<'_>)],
    factor: &SampledFactor,
) -> Result<Strided<'a>> {
    let name = factor.name.as_str();
    let (values, leading) = match find(operands, name)? {
        AnyOperand::Dense(d) => (d.host().ok_or_else(|| elsewhere(name))?, d.leading()),
        AnyOperand::HostDense(shape, values) => (*values, shape[1]),
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
fn host_mask<'a>(
    operands: &'a [(&str, AnyOperand<'_>)],
    name: &str,
    out: &AnySparseTensor,
    planned: &Pattern<'_>,
) -> Result<Slice<'a>> {
    let AnyOperand::Sparse(mask) = find(operands, name)? else {
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
    mask.host().ok_or_else(|| elsewhere(name))
}
