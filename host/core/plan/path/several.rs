//! Plans over several sparse factors: through position lists of matching nonzeros, or pair by pair.

use einsparse_kernels::abi::Zeros;

use super::search::{Found, NoPath, Place};
use super::{Chain, CpuChain, NAME, Path, candidate, found, is_refusal, on_gpu};
use crate::einsum::Extents;
use crate::error::{Error, Refusal, Result};
use crate::indirect::rewrite_dense;
use crate::offer::{Choice, Executable, Source};
use crate::plan::joined::{Joined, only_factors};
use crate::plan::{AnyPlan, ZerosRule};
use crate::values::sums_of;

impl AnyPlan {
    /// Plans through position lists, unless a path is cheaper. A path is also used if lists are refused: factors may
    /// share no index, or have more pairs of nonzeros than a list supports.
    pub(in crate::plan) fn of_several_sparse(
        source: &Source<'_, '_>,
        extents: &Extents,
    ) -> Result<Self> {
        only_factors(source.einsum, source.operands)?;
        let found = path_of(source, extents)?;
        let variant = source.options.variant.as_deref();
        let first = match (&found, variant) {
            (Ok(found), None) => !found.only_dense && found.path.us() < found.whole_us,
            (Ok(_), Some(name)) => name == NAME,
            (Err(_), _) => false,
        };
        if let (true, Ok(found)) = (first, &found)
            && let Some(plan) = chained(source, &found.path, extents)?
        {
            return Ok(plan);
        }
        let refused = match Joined::dense(source, extents.out()) {
            Ok(joined) => {
                return Self::holding(source, extents, joined, Joined::plan);
            }
            Err(error) if is_refusal(&error) => error,
            Err(error) => return Err(error),
        };
        match found {
            Ok(found) if !first && variant.is_none() => {
                let plan = chained(source, &found.path, extents)?;
                plan.ok_or(refused)
            }
            Err(none) if none.operations.is_some() => Err(both(source, refused, none.reason)),
            _ => Err(refused),
        }
    }
}

fn path_of(
    source: &Source<'_, '_>,
    extents: &Extents,
) -> Result<std::result::Result<Found, NoPath>> {
    if source.context.device().is_some() {
        return on_gpu(source, extents);
    }
    let sums = sums_of(source.types.operands, source.types.out);
    let of = |lists: bool| found(source, extents, (sums, Place::Cpu, lists));
    match of(false)? {
        Err(none) if none.operations.is_some() => of(true),
        found => Ok(found),
    }
}

/// Returns the plan of a path; `None` if no kernel supports a step, or memory is insufficient.
fn chained(source: &Source<'_, '_>, path: &Path, extents: &Extents) -> Result<Option<AnyPlan>> {
    let mut choice = Choice::default();
    let made: Result<Box<dyn Executable>> = if source.context.device().is_none() {
        let of = (path.clone(), &[][..]);
        CpuChain::new(source, of, extents).map(|chain| Box::new(chain) as _)
    } else {
        if path.zeros == Zeros::Dense && source.options.zeros == ZerosRule::Strict {
            return Ok(None);
        }
        choice.candidates.push(candidate(path));
        choice.taken = true;
        Chain::new(source, path.clone()).map(|chain| Box::new(chain) as _)
    };
    let made = match made {
        Err(error) if is_refusal(&error) => return Ok(None),
        made => made?,
    };
    let indirect = rewrite_dense(source.einsum)?;
    AnyPlan::with(source, (indirect, extents.out()), made, choice).map(Some)
}

/// Combines the refusal of lists with the reason for the lack of a path.
fn both(source: &Source<'_, '_>, refused: Error, path: String) -> Error {
    let path = Refusal::of(NAME, path);
    match refused {
        Error::NoKernel { indirect, mut tried } => {
            tried.push(path.into());
            Error::NoKernel { indirect, tried }
        }
        other => {
            let lists = Refusal::of("join", other.to_string());
            Error::no_kernel(source.einsum.to_string(), [lists, path])
        }
    }
}
