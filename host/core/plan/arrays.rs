//! Index arrays given by the user. They are part of the plan, which copies what it reads.

use einsparse_formats::PAD;
use rayon::prelude::*;

use crate::cpu::AnyOperands;
use crate::einsum::{Einsum, IndexExpr};
use crate::error::{Error, Result};
use crate::tensor::AnyOperand;

/// Index arrays of a plan, for the CPU executor.
#[derive(Debug)]
pub(super) struct PlannedArrays(Vec<(String, Vec<usize>, Vec<u32>)>);

impl PlannedArrays {
    pub(super) fn of(operands: &[(&str, AnyOperand<'_>)]) -> Self {
        let arrays = operands.iter().filter_map(|(name, operand)| match operand {
            AnyOperand::Index(shape, data) => {
                Some((name.to_string(), shape.to_vec(), data.to_vec()))
            }
            _ => None,
        });
        PlannedArrays(arrays.collect())
    }

    pub(super) fn bind<'a>(&'a self, bound: &mut AnyOperands<'a>) -> Result<()> {
        let mut arrays = self.0.iter();
        arrays.try_for_each(|(name, shape, data)| bound.index(name, shape, data))
    }
}

/// Validates the index arrays of the user: each is used as an index, and its values are below `u32::MAX`. Plans mark
/// padding with `u32::MAX` in their own lists.
pub(super) fn check_arrays(e: &Einsum, operands: &[(&str, AnyOperand<'_>)]) -> Result<()> {
    for (name, operand) in operands {
        let AnyOperand::Index(_, data) = operand else {
            continue;
        };
        if let Some(access) = e.right().find(|access| access.tensor == *name) {
            let found = format!("an {}", operand.describe());
            return Err(Error::kind(name, format!("a tensor, read in `{access}`,"), found));
        }
        if let Some(position) = data.par_iter().position_first(|&slot| slot == PAD) {
            let (of, bound) = indexed_by(e, name, operands);
            return Err(Error::InvalidIndex {
                array: name.to_string(),
                position,
                value: PAD.into(),
                of,
                bound,
            });
        }
    }
    Ok(())
}

/// Returns the axis that an array indexes, and its extent; the largest possible extent for an output without a shape.
fn indexed_by(e: &Einsum, array: &str, operands: &[(&str, AnyOperand<'_>)]) -> (String, u64) {
    let mut found = (format!("each axis of `{e}`"), u64::from(PAD));
    let accesses = std::iter::once(&e.out).chain(e.right());
    accesses.for_each(|access| {
        access.for_each_access(&mut |access| {
            let reads =
                |index: &IndexExpr| matches!(index, IndexExpr::Access(a) if a.tensor == array);
            if let Some(axis) = access.indices.iter().position(reads) {
                let own = operands.iter().find(|(name, _)| *name == access.tensor);
                let extent = own.and_then(|(_, operand)| operand.shape().get(axis));
                let bound = extent.map_or(PAD.into(), |&n| (n as u64).min(PAD.into()));
                found = (format!("axis {axis} of `{access}`"), bound);
            }
        });
    });
    found
}

/// Iterates over the operands of a run: all except the index arrays.
pub(crate) fn without_arrays<'o, 'a>(
    operands: &'o [(&'o str, AnyOperand<'a>)],
) -> impl Iterator<Item = (&'o str, AnyOperand<'a>)> + Clone {
    let all = operands.iter().copied();
    all.filter(|(_, o)| !matches!(o, AnyOperand::Index(..)))
}
