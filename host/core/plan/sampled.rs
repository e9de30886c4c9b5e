//! Plans with a sparse output: results are computed only at its nonzeros.

use std::collections::BTreeMap;
use std::fmt;

use super::AnyPlan;
use super::choose::{Chosen, choose};
use super::joined::{Joined, sparse_among, sparse_factors};
use super::window::Sums;
use crate::einsum::Extents;
use crate::error::{Error, Refusal, Result};
use crate::indirect::{IndirectEinsum, SampledForm, rewrite_sampled};
use crate::offer::{AnyOut, Choice, Executable, Request, Run, Source, as_dense, once_each};
use crate::tensor::AnySparseTensor;

/// Expression without an SDDMM kernel, computed over the nonzeros of the output.
#[derive(Debug)]
struct OverPlaces {
    joined: Joined,
    /// Index arrays of the affine indices, if there are any.
    sums: Option<Sums>,
}

impl Executable for OverPlaces {
    fn variant(&self) -> &'static str {
        self.joined.plan().variant()
    }

    fn bytes(&self) -> usize {
        self.joined.plan().workspace_bytes()
    }

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        self.joined.run_into(run, run.sparse(out)?)
    }
}

impl fmt::Display for OverPlaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sums {
            Some(sums) => write!(f, "{}, {sums}", self.joined),
            None => self.joined.fmt(f),
        }
    }
}

impl AnyPlan {
    /// Plans an expression with a sparse output of this pattern.
    pub(super) fn into_sparse(source: &Source<'_, '_>, out: &AnySparseTensor) -> Result<Self> {
        once_each(source.operands)?;
        let operands = source.operands.iter();
        let mut shapes: BTreeMap<String, Vec<usize>> =
            operands.map(|(name, o)| (name.to_string(), o.shape().to_vec())).collect();
        let name = source.einsum.out.tensor.as_str();
        if shapes.insert(name.into(), out.shape().to_vec()).is_some() {
            let reason = "is the output; pass it separately, not as an operand";
            return Err(Error::operand(name, reason));
        }
        let extents = source.einsum.check(&shapes)?;
        // Kernels for sparse outputs do not search for micro-tiles, so dynamic operands are dense.
        let known = as_dense(source.operands);
        let operands = known.as_ref().map_or(source.operands, |(dense, _)| &dense[..]);
        let source = &Source { operands, ..*source };
        let sums = Sums::of(source.einsum, &extents, operands)?;
        let bound = sums.as_ref().map(|sums| sums.bound(operands));
        // The index arrays follow the operands, so slots of the expression are slots of this one.
        let over = Source {
            einsum: sums.as_ref().map_or(source.einsum, |sums| &sums.einsum),
            operands: bound.as_deref().unwrap_or(operands),
            ..*source
        };
        let refused = match sddmm(&over, &extents, out)? {
            Ok((indirect, Ok((made, choice)))) => {
                return Self::into_pattern(source, (indirect, out), made, choice);
            }
            Ok((_, Err(refused))) => refused,
            Err(refusal) => vec![refusal],
        };
        let joined = match Joined::sampled(&over, out.pattern()) {
            Err(Error::NoKernel { indirect, tried }) => {
                let refused = refused.into_iter().map(Into::into);
                let tried = refused.chain(tried).collect();
                return Err(Error::NoKernel { indirect, tried });
            }
            joined => joined?,
        };
        let plan = joined.plan();
        let mut choice = plan.choice.clone();
        choice.refused.splice(..0, refused);
        let indirect = plan.expression.indirect.clone();
        drop(bound);
        let made = Box::new(OverPlaces { joined, sums });
        Self::into_pattern(source, (indirect, out), made, choice)
    }

    /// Returns the plan of an executable with a sparse output.
    fn into_pattern(
        source: &Source<'_, '_>,
        (indirect, out): (IndirectEinsum, &AnySparseTensor),
        made: Box<dyn Executable>,
        choice: Choice,
    ) -> Result<Self> {
        let plan = Self::with(source, (indirect, out.shape()), made, choice)?;
        Ok(AnyPlan { expression: plan.expression.with_output(), ..plan })
    }
}

/// Plans an SDDMM; otherwise returns the reason why SDDMM kernels do not support the expression.
fn sddmm(
    source: &Source<'_, '_>,
    extents: &Extents,
    out: &AnySparseTensor,
) -> Result<std::result::Result<(IndirectEinsum, Chosen), Refusal>> {
    let (einsum, operands) = (source.einsum, source.operands);
    let other = |reason: &str| Ok(Err(Refusal::of("sampled", reason)));
    if sparse_factors(einsum, operands).len() > 1 {
        return other("computes products of one sparse factor");
    }
    let mask = sparse_among(einsum, operands)?.map(|(name, _)| name);
    if let Some(name) = mask
        && source.operand(name)?.pattern().is_some_and(|mask| mask != out.pattern())
    {
        return other("reads a sparse factor with the pattern of the output");
    }
    if SampledForm::of(einsum, mask).is_none() {
        return other("computes S[m,n] (=|+=) P[m,n] * X[m,k] * Y[n,k]");
    }
    if out.row_order().is_none() {
        return other("computes at the places of a matrix in row order");
    }
    let indirect = rewrite_sampled(einsum, &out.format(), mask)?;
    let machine = source.context.machine();
    let chosen = choose(&Request::new(source, &indirect, (extents, Some(out)), &machine)?)?;
    Ok(Ok((indirect, chosen)))
}
