//! Position lists of an expression.

use std::collections::BTreeMap;

use super::operands::{only_factors, sparse_factors};
use super::written::write_joined;
use super::{filled, met, refuse};
use crate::context::Context;
use crate::einsum::Einsum;
use crate::error::Result;
use crate::indirect::IndirectEinsum;
use crate::offer::{Source, Types};
use crate::plan::Options;
use crate::plan::window::no_sparse_sums;
use crate::registry::Scalar;
use crate::tensor::{AnyOperand, Operand, erase};

/// Expression over several sparse factors, rewritten over the positions of their nonzeros.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq)]
pub struct PositionLists {
    /// The remaining expression: `C[M[p],N[p]] = AV[P[p]] * BV[Q[p]]`.
    pub indirect: IndirectEinsum,
    /// Names and values of its index arrays, one number per p. Tensors that are read whole and in order are omitted.
    /// Arrays of affine indices are not included: [`Einsum::sum_arrays`] returns them.
    pub lists: Vec<(String, Vec<u32>)>,
    /// Number of positions p.
    pub rows: usize,
}

impl Context {
    /// Joins the nonzeros of sparse factors that agree on all shared indices, as plans over them do: on a GPU by sort
    /// and search in device memory. The order is that of the output's indices, then of the nonzeros, on GPU and CPU
    /// alike.
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
    /// Those of [`plan`](Context::plan), such as shapes that disagree; `Overflow` for more than 2^32 - 2 positions.
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
        let options = &Options::default();
        let source = Source { types, context: self, einsum: &einsum, operands, options };
        only_factors(&einsum, operands)?;
        let factors = sparse_factors(&einsum, operands);
        if factors.is_empty() {
            return Err(refuse(&einsum, "has no sparse factor".into()));
        }
        let table = met(&source, &factors)?;
        let rows = table.rows();
        let mut written = write_joined(&einsum, table, &factors, false);
        written.indirect.filled = filled(&source, &factors)?;
        Ok(PositionLists { indirect: written.indirect, lists: written.lists, rows })
    }
}
