//! Operands of a plan by name, and operands of a run by slot.

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::tensor::{AnyOperand, DynamicOptions, Named};

/// Position of an operand among those of a plan. A run finds its operands by slots, not by names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub(super) usize);

impl Slot {
    /// Returns the element of this slot of a list that has one for each operand.
    pub(crate) fn of<E>(self, list: &[E]) -> Option<&E> {
        list.get(self.0)
    }
}

/// Operands of a run by slot; `None` for those that are not given. Up to six are stored without an allocation.
pub(crate) type Slots<'r> = SmallVec<[Option<AnyOperand<'r>>; 6]>;

/// Returns the operands with `own` in a slot.
pub(crate) fn with<'r>(
    operands: &[Option<AnyOperand<'r>>],
    slot: Slot,
    own: Option<AnyOperand<'r>>,
) -> Slots<'r> {
    let mut all = Slots::from_slice(operands);
    if let Some(place) = all.get_mut(slot.0) {
        *place = own;
    }
    all
}

/// Returns the operands with dynamic ones replaced by their dense tensors, and the options of the dynamic ones; `None` if
/// no operand is dynamic.
pub(crate) fn as_dense<'o, 'a>(
    operands: &[(&'o str, AnyOperand<'a>)],
) -> Option<(Named<'o, 'a>, Vec<(&'o str, DynamicOptions)>)> {
    let dynamic = operands.iter().filter_map(|(name, operand)| match operand {
        AnyOperand::Dynamic(_, options) => Some((*name, *options)),
        _ => None,
    });
    let dynamic: Vec<_> = dynamic.collect();
    if dynamic.is_empty() {
        return None;
    }
    let dense = operands.iter().map(|(name, operand)| (*name, operand.dense()));
    Some((dense.collect(), dynamic))
}

/// Returns the operand of this name.
pub(crate) fn find<'s, 'a>(
    operands: &'s [(&str, AnyOperand<'a>)],
    name: &str,
) -> Result<&'s AnyOperand<'a>> {
    operands.iter().find(|(n, _)| *n == name).map(|(_, o)| o).ok_or_else(|| Error::missing(name))
}

/// Returns the slot of the operand of this name.
pub(crate) fn slot_of(operands: &[(&str, AnyOperand<'_>)], name: &str) -> Result<Slot> {
    let slot = operands.iter().position(|(own, _)| *own == name);
    slot.map(Slot).ok_or_else(|| Error::missing(name))
}

pub(crate) fn wrong(name: &str, wanted: &str, found: &AnyOperand<'_>) -> Error {
    Error::kind(name, wanted, format_args!("a {}", found.describe()))
}
