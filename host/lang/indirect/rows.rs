//! Detection of MTTKRP and TTM in an indirect Einsum: sums over the nonzeros of one sparse tensor, of elementwise
//! products of rows of dense matrices.

use super::{Index, IndirectEinsum};
use crate::einsum::{Activation, Mode};

/// Sum `out[rows.., r] (= | +=) scalars * T[..] * F1[axis, r] * F2[axis, r] * ...`. Each factor has one axis of T and
/// the dense index r. The output has some axes of T, with r last. Axes of T that appear nowhere else are summed.
#[derive(Clone, Debug, PartialEq)]
pub struct RowsForm {
    /// Name of the sparse tensor.
    pub sparse: String,
    /// Name of the output.
    pub output: String,
    /// Mode of the output: `=` or `+=`.
    pub mode: Mode,
    /// Axes of the sparse tensor in the output, in the order of the output.
    pub rows: Vec<usize>,
    /// Names of the dense factors, one to three, and the axis of the sparse tensor of each.
    pub factors: Vec<(String, usize)>,
}

impl IndirectEinsum {
    /// Returns the sum of rows that this computes; `None` for another expression. Names do not matter.
    pub fn as_rows(&self) -> Option<RowsForm> {
        let sparse = self.sparse.as_ref()?;
        let (Index::Name(dense), rows) = self.out.indices.split_last()? else {
            return None;
        };
        let mut free = self.equalities.is_empty() && self.bias.is_none() && self.gate.is_none();
        free &= self.activation == Activation::Identity;
        for place in &sparse.coordinates {
            place.for_each_name(&mut |name| free &= name != dense);
        }
        let axis_of = |index: &Index| sparse.coordinates.iter().position(|c| c == index);
        let rows: Vec<usize> = rows.iter().map(axis_of).collect::<Option<_>>()?;
        let distinct = (1..rows.len()).all(|i| !rows[..i].contains(&rows[i]));
        let others = self.factors.iter().enumerate();
        let factors: Vec<(String, usize)> = others
            .filter(|(i, _)| *i != sparse.factor)
            .map(|(_, access)| match access.indices.as_slice() {
                [place, Index::Name(own)] if own == dense => {
                    Some((access.tensor.clone(), axis_of(place)?))
                }
                _ => None,
            })
            .collect::<Option<_>>()?;
        (free && distinct && (1..=3).contains(&factors.len())).then(|| RowsForm {
            sparse: sparse.name.clone(),
            output: self.out.tensor.clone(),
            mode: self.mode,
            rows,
            factors,
        })
    }
}
