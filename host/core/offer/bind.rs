//! Operands by name, and their addresses.

use smallvec::SmallVec;

use crate::einsum::Scalar as Factor;
use crate::error::{Elsewhere, Error, Result};
use crate::tensor::{AnyOperand, DynamicOptions, Named};

/// Borrowed operands, and the options of the dynamic ones.
pub(crate) type Given<'o, 'a> = (&'o [(&'o str, AnyOperand<'a>)], &'o [(&'o str, DynamicOptions)]);

/// Owned variant of [`Given`].
pub(crate) type Owned<'o, 'a> = (Named<'o, 'a>, SmallVec<[(&'o str, DynamicOptions); 2]>);

/// Returns the operands with dynamic ones replaced by their dense tensors, and the options of the dynamic ones; `None` if
/// no operand is dynamic.
pub(crate) fn as_dense<'o, 'a>(operands: &[(&'o str, AnyOperand<'a>)]) -> Option<Owned<'o, 'a>> {
    let dynamic = operands.iter().filter_map(|(name, operand)| match operand {
        AnyOperand::Dynamic(_, options) => Some((*name, *options)),
        _ => None,
    });
    let dynamic: SmallVec<_> = dynamic.collect();
    if dynamic.is_empty() {
        return None;
    }
    let dense = operands.iter().map(|(name, operand)| match operand {
        AnyOperand::Dynamic(d, _) => (*name, AnyOperand::Dense(d)),
        other => (*name, *other),
    });
    Some((dense.collect(), dynamic))
}

/// Returns the operand of this name.
pub(crate) fn find<'s, 'a>(
    operands: &'s [(&str, AnyOperand<'a>)],
    name: &str,
) -> Result<&'s AnyOperand<'a>> {
    operands.iter().find(|(n, _)| *n == name).map(|(_, o)| o).ok_or_else(|| Error::missing(name))
}

pub(crate) fn wrong(name: &str, wanted: &str, found: &AnyOperand<'_>) -> Error {
    Error::kind(name, wanted, format_args!("a {}", found.describe()))
}

pub(crate) fn device_tensor(
    operands: &[(&str, AnyOperand<'_>)],
    name: &str,
) -> Result<(u64, usize)> {
    match find(operands, name)? {
        AnyOperand::Dense(d) => Ok((d.address().or_elsewhere(name)?, d.leading())),
        other => Err(wrong(name, "an uploaded dense tensor", other)),
    }
}

pub(crate) fn scalar_value(operands: &[(&str, AnyOperand<'_>)], factor: &Factor) -> Result<f64> {
    match factor {
        Factor::Literal(x) => Ok(*x),
        Factor::Name(name) => match find(operands, name)? {
            AnyOperand::Scalar(x) => Ok(*x),
            other => Err(wrong(name, "a number", other)),
        },
    }
}
