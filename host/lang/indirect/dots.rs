//! Detection of products of gathered rows per nonzero in an indirect Einsum: SDDMM of any number of matrices.

use super::{Index, IndirectEinsum};
use crate::einsum::{Activation, Mode};

/// Product `out[p] (= | +=) scalars * mask[p] * F1[A1[p], r] * F2[A2[p], r] * ...`, summed over r. The mask is
/// optional. Factors may share an index array.
#[derive(Clone, Debug, PartialEq)]
pub struct DotsForm {
    /// Name of the output.
    pub output: String,
    /// Mode of the output: `=` or `+=`.
    pub mode: Mode,
    /// Factor without r.
    pub mask: Option<String>,
    /// Names of the other factors, one to three, and of the index array of each.
    pub factors: Vec<(String, String)>,
}

impl IndirectEinsum {
    /// Returns the product of gathered rows that this computes; `None` for another expression. Names do not matter.
    pub fn as_dots(&self) -> Option<DotsForm> {
        let [Index::Name(entry)] = self.out.indices.as_slice() else {
            return None;
        };
        let plain = self.sparse.is_none()
            && self.ranges.is_empty()
            && self.equalities.is_empty()
            && self.bias.is_none()
            && self.gate.is_none()
            && self.activation == Activation::Identity;
        let (mut mask, mut factors, mut summed) = (None, Vec::new(), None);
        for access in &self.factors {
            match access.indices.as_slice() {
                [Index::Name(own)] if own == entry && mask.is_none() => {
                    mask = Some(access.tensor.clone());
                }
                [Index::Access(array), Index::Name(r)]
                    if r != entry && *summed.get_or_insert(r) == r =>
                {
                    let through = array.indices.as_slice();
                    if !matches!(through, [Index::Name(own)] if own == entry) {
                        return None;
                    }
                    factors.push((access.tensor.clone(), array.tensor.clone()));
                }
                _ => return None,
            }
        }
        (plain && (1..=3).contains(&factors.len())).then(|| DotsForm {
            output: self.out.tensor.clone(),
            mode: self.mode,
            mask,
            factors,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::einsum::Einsum;
    use crate::indirect::rewrite_dense;

    fn form(text: &str) -> Option<DotsForm> {
        rewrite_dense(&Einsum::parse(text).unwrap()).unwrap().as_dots()
    }

    #[test]
    fn gathered_rows_of_one_to_three_factors_are_dots() {
        let own = form("S[p] += 2 * V[p] * X[I[p],r] * Y[J[p],r] * Z[J[p],r]").unwrap();
        assert_eq!((own.mask.as_deref(), own.mode), (Some("V"), Mode::Accumulate));
        let names = own.factors.iter().map(|(f, a)| (f.as_str(), a.as_str()));
        assert!(names.eq([("X", "I"), ("Y", "J"), ("Z", "J")]));
        assert_eq!(form("S[p] = X[I[p],r]").unwrap().mask, None);
    }

    #[test]
    fn other_products_are_not() {
        for text in [
            "S[p] = X[I[p],r] * Y[J[p],q]",
            "S[p] = V[p] * W[p] * X[I[p],r]",
            "S[p,r] = X[I[p],r] * Y[J[p],r]",
            "S[p] = relu(X[I[p],r] * Y[J[p],r])",
            "S[p] = X[I[p],r] * Y[p,r]",
            "S[p] = V[p] * W[p]",
            "S[p] = A[I[p],r] * B[I[p],r] * C[I[p],r] * D[I[p],r]",
            "S[p] = X[r,I[p]] * Y[J[p],r]",
        ] {
            assert_eq!(form(text), None, "{text}");
        }
    }
}
