//! The products at the places of a sparse output that have kernels of their own (SDDMM).

use std::sync::Arc;

use super::{AnySampledPlan, Exec};
use crate::context::Context;
use crate::error::{Error, Refusal, Result};
use crate::families::sddmm::offers::sampling;
use crate::families::sddmm::{Places, SampledExtents, SampledLaunch};
use crate::indirect::{IndirectEinsum, SampledForm, rewrite_sampled};
use crate::offer::bind::find;
use crate::offer::{Types, sums_fit};
use crate::plan::Choice;
use crate::plan::choose::known_variant;
use crate::plan::joined::{Asked, sparse_among, sparse_factors};
use crate::registry::{block_of, find as row_of};
use crate::tensor::AnySparseTensor;
use crate::worklist::Runs;

/// A product of two dense matrices at the places of a matrix in row order.
#[derive(Debug)]
pub(super) struct Product {
    pub(super) form: SampledForm,
    pub(super) extents: SampledExtents,
    pub(super) block: (usize, usize),
}

impl Exec {
    /// The first of the candidates, launched; `None` where a GPU has none.
    fn new(
        (context, types): (&Context, Types),
        choice: &Choice,
        product: Product,
        places: Places<'_>,
    ) -> Result<Option<Self>> {
        let Some(device) = context.device() else {
            return Ok(Some(Exec::Cpu(product)));
        };
        let Some(row) = choice.candidates.first().and_then(|c| row_of(c.name)) else {
            return Ok(None);
        };
        let out = (product.form.mode, types.out);
        let launch = SampledLaunch::new(device, row, product.extents, out, places)?;
        Ok(Some(Exec::Gpu(product, Box::new(launch))))
    }
}

/// The array that kernels read of a sparse matrix in row order: columns of blocks or of entries.
pub(super) struct Pattern<'a> {
    pub(super) runs: &'a Arc<Runs>,
    pub(super) columns: &'a [u32],
}

pub(super) fn pattern<'a>(name: &str, s: &'a AnySparseTensor) -> Result<Pattern<'a>> {
    let (runs, columns) = s.row_order().ok_or_else(|| Error::Operand {
        name: name.into(),
        reason: format!("is {}, and a sparse output is in row order", s.format()),
    })?;
    Ok(Pattern { runs, columns })
}

impl AnySampledPlan {
    /// The product that has kernels of its own; else why it is none of those.
    pub(super) fn product(
        asked: &Asked<'_, '_>,
        out: &AnySparseTensor,
    ) -> Result<std::result::Result<(IndirectEinsum, Choice, Exec), Vec<Refusal>>> {
        let (einsum, operands, options) = (asked.einsum, asked.operands, asked.options);
        let other = |reason: &str| Ok(Err(vec![Refusal::of("sampled", reason)]));
        if sparse_factors(einsum, operands).len() > 1 {
            return other("computes products of one sparse factor");
        }
        let mask = sparse_among(einsum, operands)?.map(|(name, _)| name);
        let Some(form) = SampledForm::of(einsum, mask) else {
            return other("computes S[m,n] (=|+=) P[m,n] * X[m,k] * Y[n,k]");
        };
        let Ok(own) = pattern(&form.output, out) else {
            return other("computes at the places of a matrix in row order");
        };
        let indirect = rewrite_sampled(einsum, &out.format(), mask)?;
        let k_axis = usize::from(!form.x.columns);
        let extents = SampledExtents {
            m: out.shape()[0],
            n: out.shape()[1],
            k: find(operands, &form.x.name)?.shape()[k_axis],
        };
        known_variant(&indirect, options)?;
        sums_fit(asked.types.operands, extents.k as u64)?;
        let places = Places {
            runs: own.runs,
            columns: own.columns,
            block: block_of(&out.format()),
        };
        let how = (out.format(), asked.types, options);
        let choice = sampling(&form, extents, places, operands, how)
            .candidates(&asked.context.machine(), options);
        let product = Product {
            form,
            extents,
            block: places.block,
        };
        Ok(
            match Exec::new((asked.context, asked.types), &choice, product, places)? {
                Some(exec) => Ok((indirect, choice, exec)),
                None => Err(choice.refused),
            },
        )
    }
}
