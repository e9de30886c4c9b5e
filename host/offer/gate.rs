//! Validation of all operands of a plan before a family receives them: names, lengths and contents. Shapes have already
//! been compared with the expression.

use super::bind::{find, wrong};
use crate::cpu::{as_long_as_its_shape, check_slots};
use crate::error::{Error, Result};
use crate::indirect::{Access, Index, IndirectEinsum};
use crate::tensor::AnyOperand;

/// Validated operands of a plan: names are unique, index arrays have the length of their shape, and each slot is inside
/// of the indexed axis or PAD. Only [`pass`] creates it.
#[derive(Clone, Copy)]
pub(crate) struct Checked<'q, 'a>(&'q [(&'q str, AnyOperand<'a>)]);

impl<'q, 'a> Checked<'q, 'a> {
    pub(crate) fn operands(self) -> &'q [(&'q str, AnyOperand<'a>)] {
        self.0
    }
}

/// Checks that each name is given once.
pub(crate) fn once_each(operands: &[(&str, AnyOperand<'_>)]) -> Result<()> {
    for (at, (name, operand)) in operands.iter().enumerate() {
        if let Some((_, first)) = operands[..at].iter().find(|(n, _)| n == name) {
            return Err(Error::operand(
                name,
                format!("is given twice: a {} and a {}", first.describe(), operand.describe()),
            ));
        }
    }
    Ok(())
}

/// Validates the operands of a plan. `out_shape`: `None` for a sparse output.
///
/// # Errors
/// - [`Error::Operand`] for a name given twice; [`Error::Shape`] for an index array whose length differs from its
///   shape; [`Error::OperandKind`] for an operand of another kind that is used as an index array.
/// - [`Error::InvalidIndex`] for a slot outside of an operand.
pub(crate) fn pass<'q, 'a>(
    e: &IndirectEinsum,
    operands: &'q [(&'q str, AnyOperand<'a>)],
    out_shape: Option<&[usize]>,
) -> Result<Checked<'q, 'a>> {
    once_each(operands)?;
    for (name, operand) in operands {
        if let AnyOperand::Index(shape, data) = operand {
            as_long_as_its_shape(name, shape, data.len())?;
        }
    }
    // The index arrays of a product at the nonzeros of a sparse output are those of its pattern, which was validated at
    // construction.
    let Some(out_shape) = out_shape else {
        return Ok(Checked(operands));
    };
    let mut inside = Inside { e, operands, seen: Vec::new() };
    for factor in &e.factors {
        // The values of a sparse operand have another name than the operand. Its pattern was validated at construction.
        if let Ok(operand) = find(operands, &factor.tensor) {
            inside.access(factor, operand.shape())?;
        }
    }
    inside.access(&e.out, out_shape)?;
    Ok(Checked(operands))
}

struct Inside<'q, 'a> {
    e: &'q IndirectEinsum,
    operands: &'q [(&'q str, AnyOperand<'a>)],
    /// Arrays already checked, with the extent of the axis.
    seen: Vec<(&'q str, usize)>,
}

impl<'q> Inside<'q, '_> {
    fn access(&mut self, access: &'q Access, shape: &[usize]) -> Result<()> {
        if access.indices.len() != shape.len() {
            return Err(Error::Shape {
                index: access.tensor.clone(),
                left: format!("`{access}` has {} indices", access.indices.len()),
                right: format!("the operand has {} axes, {shape:?}", shape.len()),
            });
        }
        for (axis, (index, &extent)) in access.indices.iter().zip(shape).enumerate() {
            if let Index::Access(array) = index {
                self.array(array, extent, &|| format!("axis {axis} of `{access}`"))?;
            }
        }
        Ok(())
    }

    /// Checks an array that indexes an axis of `extent` elements.
    fn array(&mut self, array: &'q Access, extent: usize, of: &dyn Fn() -> String) -> Result<()> {
        let name = array.tensor.as_str();
        let sparse = self.e.sparse.iter().flat_map(|s| &s.arrays);
        if sparse.into_iter().any(|own| own.name == name) {
            return Ok(());
        }
        let (shape, data) = match find(self.operands, name)? {
            AnyOperand::Index(shape, data) => (*shape, *data),
            other => return Err(wrong(name, "an index array", other)),
        };
        if !self.seen.contains(&(name, extent)) {
            check_slots(name, data, (extent, of))?;
            self.seen.push((name, extent));
        }
        self.access(array, shape)
    }
}
