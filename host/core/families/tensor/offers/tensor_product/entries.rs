//! Lookup of nonzeros: loops over index arrays, and the row of each operand that a nonzero uses.

use std::collections::BTreeMap;

use einsparse_formats::{AnyPattern, PAD};

use super::is_matrix;
use crate::error::{Error, Result};
use crate::families::tensor::tensor_product::Term;
use crate::indirect::{Access, Index, IndirectEinsum, TensorProductForm};
use crate::offer::{Request, wrong};
use crate::tensor::AnyOperand;

/// Index arrays by their names in the expression: extents and contents.
pub(super) type Arrays<'a> = BTreeMap<&'a str, (Vec<usize>, &'a [u32])>;

/// Returns all index arrays of the expression, and the sparse operand.
#[allow(clippy::type_complexity)]
pub(super) fn arrays<'q>(
    request: &'q Request<'q, '_>,
) -> Result<(Arrays<'q>, Option<(&'q str, AnyPattern<'q>)>)> {
    let mut found = Arrays::new();
    for (name, operand) in request.operands() {
        if let AnyOperand::Index(shape, data) = operand {
            found.insert(name, (shape.to_vec(), *data));
        }
    }
    let Some(sparse) = &request.indirect.sparse else {
        return Ok((found, None));
    };
    let operand = request.operand(&sparse.name)?;
    let Some(tensor) = operand.pattern() else {
        return Err(wrong(&sparse.name, "a sparse tensor", operand));
    };
    for array in tensor.arrays() {
        if let Some(named) = sparse.arrays.iter().find(|a| a.role == array.role) {
            found.insert(&named.name, (array.shape, array.data));
        }
    }
    Ok((found, Some((&sparse.name, tensor))))
}

/// Loops over the nonzeros.
pub(super) struct Entries<'a> {
    loops: &'a [String],
    pub(super) extents: Vec<usize>,
    arrays: &'a Arrays<'a>,
}

impl<'a> Entries<'a> {
    pub(super) fn new(
        indirect: &'a IndirectEinsum,
        form: &'a TensorProductForm,
        arrays: &'a Arrays<'a>,
    ) -> Entries<'a> {
        let mut entries =
            Entries { loops: &form.loops, extents: vec![0; form.loops.len()], arrays };
        for access in indirect.factors.iter().chain([&indirect.out]) {
            access.indices.iter().for_each(|index| entries.measure(index));
        }
        entries
    }

    /// Sets the extent of each loop to that of the array axis that it indexes.
    fn measure(&mut self, index: &Index) {
        let Index::Access(access) = index else { return };
        let shape = self.arrays.get(access.tensor.as_str()).map(|a| &a.0);
        for (axis, index) in access.indices.iter().enumerate() {
            self.measure(index);
            let at = match index {
                Index::Name(name) => self.loops.iter().position(|l| l == name),
                _ => None,
            };
            if let (Some(at), Some(&extent)) = (at, shape.and_then(|s| s.get(axis))) {
                self.extents[at] = extent;
            }
        }
    }

    /// Returns the loop indices of a point; the last loop varies fastest.
    pub(super) fn point(&self, mut number: usize) -> Vec<usize> {
        let mut place = vec![0; self.extents.len()];
        for (at, extent) in place.iter_mut().zip(&self.extents).rev() {
            (*at, number) = (number % extent, number / extent);
        }
        place
    }

    /// Evaluates the index of an axis; `None` if a padding slot drops the term.
    pub(super) fn at(&self, index: &Index, place: &[usize]) -> Result<Option<u32>> {
        match index {
            Index::Name(name) => {
                let at = self.loops.iter().position(|l| l == name);
                Ok(at.map(|at| place[at] as u32))
            }
            Index::Split { .. } => Ok(None),
            Index::Access(access) => self.look_up(access, place),
        }
    }

    fn look_up(&self, access: &Access, place: &[usize]) -> Result<Option<u32>> {
        let Some((shape, data)) = self.arrays.get(access.tensor.as_str()) else {
            return Ok(None);
        };
        let mut at = 0;
        for (index, &extent) in access.indices.iter().zip(shape.iter()) {
            let Some(value) = self.at(index, place)? else {
                return Ok(None);
            };
            check(&access.tensor, (index, value), extent)?;
            at = at * extent + value as usize;
        }
        Ok(data.get(at).copied().filter(|&v| v != PAD))
    }
}

/// Validates that a value is below the extent of its axis.
fn check(tensor: &str, (index, value): (&Index, u32), extent: usize) -> Result<()> {
    if (value as usize) < extent {
        return Ok(());
    }
    Err(Error::operand(
        tensor,
        format!("is indexed by `{index}`, which holds {value}, past its extent of {extent}"),
    ))
}

/// Returns the term at a point; `None` if a padding slot drops it.
pub(super) fn term(
    indirect: &IndirectEinsum,
    form: &TensorProductForm,
    (entries, place): (&Entries<'_>, &[usize]),
    shapes: &[Vec<usize>; 5],
) -> Result<Option<Term>> {
    let mut rows = [0; 5];
    let own = form.factors.map(|f| f.map(|f| &indirect.factors[f]));
    let [a, y, d, f] = own;
    for (of, access) in [a, y, d, f, Some(&indirect.out)].into_iter().enumerate() {
        let Some(access) = access else { continue };
        // The row index is axis 0 of shared matrices. For other operands it follows the batch axis.
        let axis = usize::from(!is_matrix(form, of));
        let index = &access.indices[axis];
        let Some(value) = entries.at(index, place)? else {
            return Ok(None);
        };
        check(&access.tensor, (index, value), shapes[of][axis])?;
        rows[of] = value;
    }
    let [a, y, d, f, out] = rows;
    Ok(Some(Term { out, d, a, f, y, place: 0 }))
}
