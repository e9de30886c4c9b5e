//! The gate: every operand of a plan passes here before a family sees it. Shapes have been compared with the
//! expression; here are names, lengths and contents.

use super::bind::{find, wrong};
use crate::cpu::{as_long_as_its_shape, check_slots};
use crate::error::{Error, Result};
use crate::indirect::{Access, Index, IndirectEinsum};
use crate::tensor::AnyOperand;

/// Operands of a plan that passed: each name once, index arrays as long as their shape says, and every slot of them
/// inside the axis that it indexes, or PAD. Made by [`pass`] alone.
#[derive(Clone, Copy)]
pub(crate) struct Checked<'q, 'a>(&'q [(&'q str, AnyOperand<'a>)]);

impl<'q, 'a> Checked<'q, 'a> {
    pub(crate) fn operands(self) -> &'q [(&'q str, AnyOperand<'a>)] {
        self.0
    }
}

/// A name stands for one operand.
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

/// # Errors
/// [`Error::Operand`] for a name given twice, an index array of another length than its shape, an index that is no
/// index array; [`Error::InvalidIndex`] for a slot that leads out of an operand.
pub(crate) fn pass<'q, 'a>(
    e: &IndirectEinsum,
    operands: &'q [(&'q str, AnyOperand<'a>)],
    out_shape: &[usize],
) -> Result<Checked<'q, 'a>> {
    once_each(operands)?;
    for (name, operand) in operands {
        if let AnyOperand::Index(shape, data) = operand {
            as_long_as_its_shape(name, shape, data.len())?;
        }
    }
    let mut inside = Inside { e, operands, seen: Vec::new() };
    for factor in &e.factors {
        // The values of a sparse operand stand under a name of their own; their pattern was checked when it was made.
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
    /// Arrays that were looked through, with the extent of the axis.
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

    /// An array that indexes an axis of so many elements.
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
