//! Is this indirect Einsum a sum over the entries of one sparse tensor, of rows of dense matrices multiplied
//! elementwise (MTTKRP, TTM)?

use super::{Index, IndirectEinsum};
use crate::einsum::{Activation, Mode};

/// `out[rows.., r] (= | +=) scalars * T[..] * F1[axis, r] * F2[axis, r] * ...`: every factor has one axis of T and the
/// one dense index, the output some axes of T and the dense index last. Axes of T that stand nowhere else are summed.
#[derive(Clone, Debug, PartialEq)]
pub struct RowsForm {
    /// Name of the sparse tensor.
    pub sparse: String,
    /// Name of the output.
    pub output: String,
    /// `=` or `+=`.
    pub mode: Mode,
    /// Axes of the sparse tensor that the output has, in its order.
    pub rows: Vec<usize>,
    /// Names of the dense factors, one to three, and the axis of the sparse tensor that each has.
    pub factors: Vec<(String, usize)>,
}

impl IndirectEinsum {
    /// The gather of rows that this is, or `None`. Told by structure, whatever the names.
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
