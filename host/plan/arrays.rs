//! Index arrays written by hand: they are part of the plan, which keeps what it needs of them.

use crate::cpu::AnyOperands;
use crate::error::{Error, Result};
use crate::tensor::AnyOperand;

/// The index arrays of a plan, for the executor that reads them as they are.
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

/// A run takes no index array.
pub(super) fn none_given(operands: &[(&str, AnyOperand<'_>)]) -> Result<()> {
    let mut all = operands.iter();
    match all.find(|(_, o)| matches!(o, AnyOperand::Index(..))) {
        None => Ok(()),
        Some((name, _)) => Err(Error::operand(
            name,
            "is an index array, and those are part of the plan, which has it: leave it out of the operands of a run",
        )),
    }
}

/// The operands of a run: all but the index arrays.
pub(crate) fn without_arrays<'o, 'a>(
    operands: &[(&'o str, AnyOperand<'a>)],
) -> Vec<(&'o str, AnyOperand<'a>)> {
    let all = operands.iter().copied();
    all.filter(|(_, o)| !matches!(o, AnyOperand::Index(..)))
        .collect()
}
