//! Plans with a sparse output: results are computed only at its nonzeros.

use std::collections::BTreeMap;
use std::fmt;

use super::AnyPlan;
use super::choose::known_variant;
use super::joined::{Asked, Joined, run_into, sparse_among, sparse_factors};
use super::window::Sums;
use crate::context::{Context, Shadow};
use crate::einsum::Einsum;
use crate::error::{Error, Refusal, Result};
use crate::families::sddmm::offers::sampling;
use crate::families::sddmm::product::{OnCpu, OnGpu, Product, pattern};
use crate::families::sddmm::{Places, SddmmExtents, sddmm_launch};
use crate::indirect::{IndirectEinsum, SampledForm, rewrite_sampled};
use crate::offer::bind::{as_dense, find};
use crate::offer::gate::once_each;
use crate::offer::{Choice, Compiled, Expression, Options, Run, Types, sums_fit};
use crate::registry::{block_of, find as row_of};
use crate::tensor::{AnyOperand, AnySparseTensor};

/// Expression without an SDDMM kernel, computed over the nonzeros of the output.
#[derive(Debug)]
struct OverPlaces {
    joined: Joined,
    /// Index arrays of the affine indices, if there are any.
    sums: Option<Sums>,
}

impl Compiled for OverPlaces {
    fn variant(&self) -> &'static str {
        self.joined.plan().variant()
    }

    fn bytes(&self) -> usize {
        self.joined.plan().workspace_bytes()
    }

    fn run_sparse(&self, run: &Run<'_>, out: &mut AnySparseTensor) -> Result<()> {
        let name = run.of.einsum.out.tensor.as_str();
        run_into(&self.joined, run.operands, (name, out), run.stream)
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

/// Returns the shapes of the operands and of the output, which must not be an operand.
fn shapes(
    name: &str,
    operands: &[(&str, AnyOperand<'_>)],
    out: &AnySparseTensor,
) -> Result<BTreeMap<String, Vec<usize>>> {
    let mut shapes: BTreeMap<String, Vec<usize>> =
        operands.iter().map(|(name, o)| (name.to_string(), o.shape().to_vec())).collect();
    match shapes.insert(name.into(), out.shape().to_vec()) {
        None => Ok(shapes),
        Some(_) => {
            Err(Error::operand(name, "is the output; pass it separately, not as an operand"))
        }
    }
}

impl AnyPlan {
    /// Plans an expression with a sparse output of this pattern.
    pub(super) fn into_sparse(
        (context, types): (&Context, Types),
        einsum: Einsum,
        (operands, out): (&[(&str, AnyOperand<'_>)], &AnySparseTensor),
        options: &Options,
    ) -> Result<Self> {
        once_each(operands)?;
        let shapes = shapes(&einsum.out.tensor, operands, out)?;
        let extents = einsum.check(&shapes)?;
        // Kernels for sparse outputs do not search for micro-tiles, so dynamic operands are dense.
        let known = as_dense(operands);
        let operands = known.as_ref().map_or(operands, |(dense, _)| &dense[..]);
        let sums = Sums::of(&einsum, &extents, operands)?;
        let bound = sums.as_ref().map(|sums| sums.bound(operands));
        let asked = Asked {
            types,
            context,
            einsum: sums.as_ref().map_or(&einsum, |sums| &sums.einsum),
            operands: bound.as_deref().unwrap_or(operands),
            options,
        };
        let (indirect, choice, made) = match product(&asked, out)? {
            Ok(found) => found,
            Err(refused) => {
                let joined = match Joined::sampled(&asked, out.pattern()) {
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
                (indirect, choice, Box::new(OverPlaces { joined, sums }) as _)
            }
        };
        let expression = Expression {
            types,
            context: context.clone(),
            einsum,
            indirect,
            shapes,
            out_shape: out.shape().to_vec(),
        };
        Ok(AnyPlan { expression, made, choice, shadow: Shadow::none() })
    }
}

/// SDDMM with the selected kernel.
type Found = (IndirectEinsum, Choice, Box<dyn Compiled>);

/// Plans an SDDMM; otherwise returns the reasons why SDDMM kernels do not support the expression.
fn product(
    asked: &Asked<'_, '_>,
    out: &AnySparseTensor,
) -> Result<std::result::Result<Found, Vec<Refusal>>> {
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
    let extents = SddmmExtents {
        m: out.shape()[0],
        n: out.shape()[1],
        k: find(operands, &form.x.name)?.shape()[k_axis],
    };
    known_variant(&indirect, options)?;
    sums_fit(asked.types.operands, extents.k as u64)?;
    let places = Places { runs: own.runs, columns: own.columns, block: block_of(&out.format()) };
    let how = (out.format(), asked.types, options);
    let choice = sampling(&form, extents, places, operands, how)
        .candidates(&asked.context.machine(), options);
    let product = Product { form, extents, format: out.format() };
    let Some(device) = asked.context.device() else {
        let made = Box::new(OnCpu::new(product, out));
        return Ok(Ok((indirect, choice, made)));
    };
    let Some(row) = choice.candidates.first().and_then(|c| row_of(c.name)) else {
        return Ok(Err(choice.refused));
    };
    let of = (product.form.mode, asked.types.out);
    let launch = sddmm_launch(device, row, product.extents, of, places)?;
    let choice = Choice { taken: true, ..choice };
    Ok(Ok((indirect, choice, Box::new(OnGpu { product, launch }))))
}
