//! The lists of positions themselves.

use std::collections::BTreeMap;

use super::operands::{only_factors, sparse_factors};
use super::written::write_joined;
use super::{Asked, filled, met, refuse};
use crate::context::Context;
use crate::einsum::Einsum;
use crate::error::Result;
use crate::indirect::IndirectEinsum;
use crate::offer::Types;
use crate::plan::Options;
use crate::plan::window::no_sparse_sums;
use crate::registry::Scalar;
use crate::tensor::{AnyOperand, Operand, erase};

/// An expression over several sparse factors with the positions of their entries written in.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq)]
pub struct PositionLists {
    /// What is left to compute: `C[M[p],N[p]] = AV[P[p]] * BV[Q[p]]`.
    pub indirect: IndirectEinsum,
    /// Its index arrays, one number for each p, by name. Lists of whole tensors in order have none, and those of sums
    /// of indices are [`Einsum::sum_arrays`].
    pub lists: Vec<(String, Vec<u32>)>,
    /// How many p there are.
    pub rows: usize,
}

impl Context {
    /// The entries of sparse factors that agree on all indices they share, found as plans over them do: on a GPU by a
    /// sort and a search there. The order is that of the output's indices, then of the entries; the same on GPU and
    /// CPU.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::formats::{Csr, CsrPattern};
    /// let a = Csr::new(CsrPattern::new(2, 2, vec![0, 1, 2], vec![1, 1])?, vec![1.0f32, 2.0])?;
    /// let b = Csr::new(CsrPattern::new(2, 2, vec![0, 1, 2], vec![0, 1])?, vec![3.0f32, 4.0])?;
    /// let operands = [("A", (&a).into()), ("B", (&b).into())];
    /// let met = Context::cpu().position_lists("C[m,n] = A[m,k] * B[k,n]", &operands)?;
    /// assert_eq!(met.indirect.to_string(), "C[M[p],N[p]] = AV[p] * BV[Q[p]]");
    /// assert_eq!((met.lists[0].0.as_str(), &met.lists[0].1), ("Q", &vec![1, 1]));
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`plan`](Context::plan): shapes that disagree; `Overflow` for more than 2^32 - 2 positions.
    #[doc(hidden)]
    pub fn position_lists<T: Scalar>(
        &self,
        text: &str,
        operands: &[(&str, Operand<'_, T>)],
    ) -> Result<PositionLists> {
        self.lists_of(Types::of::<T, T>(), text, &erase(operands))
    }

    fn lists_of(
        &self,
        types: Types,
        text: &str,
        operands: &[(&str, AnyOperand<'_>)],
    ) -> Result<PositionLists> {
        let einsum = Einsum::parse(text)?;
        let shapes: BTreeMap<String, Vec<usize>> =
            operands.iter().map(|(name, o)| (name.to_string(), o.shape().to_vec())).collect();
        einsum.check(&shapes)?;
        no_sparse_sums(&einsum, operands)?;
        let einsum = einsum.with_arrays();
        let asked =
            Asked { types, context: self, einsum: &einsum, operands, options: &Options::default() };
        only_factors(&einsum, operands)?;
        let factors = sparse_factors(&einsum, operands);
        if factors.is_empty() {
            return Err(refuse(&einsum, "has no sparse factor".into()));
        }
        let table = met(&asked, &factors)?;
        let rows = table.rows();
        let mut written = write_joined(&einsum, table, &factors, false);
        written.indirect.filled = filled(&asked, &factors)?;
        Ok(PositionLists { indirect: written.indirect, lists: written.lists, rows })
    }
}
