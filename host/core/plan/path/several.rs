//! Plans over several sparse factors: through position lists of matching nonzeros, or pair by pair.

use std::collections::BTreeMap;

use einsparse_kernels::abi::Zeros;

use super::search::{Found, NoPath, Place};
use super::{Chain, CpuChain, NAME, Path, candidate, found, is_refusal, on_gpu};
use crate::context::Shadow;
use crate::einsum::Extents;
use crate::error::{Error, Refusal, Result};
use crate::indirect::rewrite_dense;
use crate::offer::{Choice, Compiled, Expression};
use crate::plan::joined::{Asked, Joined, only_factors};
use crate::plan::{AnyPlan, ZerosRule};
use crate::values::sums_of;

impl AnyPlan {
    /// Plans through position lists, unless a path is cheaper. A path is also used if lists are refused: factors may
    /// share no index, or have more pairs of nonzeros than a list supports.
    pub(in crate::plan) fn of_several_sparse(
        asked: &Asked<'_, '_>,
        shapes: BTreeMap<String, Vec<usize>>,
        extents: &Extents,
    ) -> Result<Self> {
        only_factors(asked.einsum, asked.operands)?;
        let found = path_of(asked, extents)?;
        let variant = asked.options.variant.as_deref();
        let first = match (&found, variant) {
            (Ok(found), None) => !found.only_dense && found.path.us() < found.whole_us,
            (Ok(_), Some(name)) => name == NAME,
            (Err(_), _) => false,
        };
        if let (true, Ok(found)) = (first, &found)
            && let Some(plan) = chained(asked, &found.path, &shapes, extents)?
        {
            return Ok(plan);
        }
        let refused = match Joined::dense(asked, extents.out()) {
            Ok(joined) => {
                let on = (asked.context, asked.types);
                let whole = (asked.einsum.clone(), shapes);
                return Ok(Self::holding(on, whole, extents, joined, Joined::plan));
            }
            Err(error) if is_refusal(&error) => error,
            Err(error) => return Err(error),
        };
        match found {
            Ok(found) if !first && variant.is_none() => {
                let plan = chained(asked, &found.path, &shapes, extents)?;
                plan.ok_or(refused)
            }
            Err(none) if none.operations.is_some() => Err(both(asked, refused, none.reason)),
            _ => Err(refused),
        }
    }
}

fn path_of(asked: &Asked<'_, '_>, extents: &Extents) -> Result<std::result::Result<Found, NoPath>> {
    let factors = (asked.types, asked.einsum, asked.operands);
    if asked.context.device().is_some() {
        return on_gpu(factors, extents, asked.context);
    }
    let sums = sums_of(asked.types.operands, asked.types.out);
    let of = |lists: bool| found(factors, extents, (sums, Place::Cpu, lists));
    match of(false)? {
        Err(none) if none.operations.is_some() => of(true),
        found => Ok(found),
    }
}

/// Returns the plan of a path; `None` if no kernel supports a step, or memory is insufficient.
fn chained(
    asked: &Asked<'_, '_>,
    path: &Path,
    shapes: &BTreeMap<String, Vec<usize>>,
    extents: &Extents,
) -> Result<Option<AnyPlan>> {
    let (context, operands) = (asked.context, asked.operands);
    let mut choice = Choice::default();
    let made: Result<Box<dyn Compiled>> = if context.device().is_none() {
        let of = (path.clone(), &[][..]);
        CpuChain::new(context, of, operands, extents, asked.types).map(|chain| Box::new(chain) as _)
    } else {
        if path.zeros == Zeros::Dense && asked.options.zeros == ZerosRule::Strict {
            return Ok(None);
        }
        choice.candidates.push(candidate(path));
        choice.taken = true;
        let given = (operands, asked.options);
        Chain::new(context, path.clone(), given, asked.types).map(|chain| Box::new(chain) as _)
    };
    let made = match made {
        Err(error) if is_refusal(&error) => return Ok(None),
        made => made?,
    };
    let expression = Expression {
        types: asked.types,
        context: context.clone(),
        einsum: asked.einsum.clone(),
        indirect: rewrite_dense(asked.einsum)?,
        out_shape: extents.out().to_vec(),
        shapes: shapes.clone(),
    };
    Ok(Some(AnyPlan { expression, made, choice, shadow: Shadow::none() }))
}

/// Combines the refusal of lists with the reason for the lack of a path.
fn both(asked: &Asked<'_, '_>, refused: Error, path: String) -> Error {
    let path = Refusal::of(NAME, path);
    match refused {
        Error::NoKernel { indirect, mut tried } => {
            tried.push(path.into());
            Error::NoKernel { indirect, tried }
        }
        other => {
            let lists = Refusal::of("join", other.to_string());
            Error::no_kernel(asked.einsum.to_string(), [lists, path])
        }
    }
}
