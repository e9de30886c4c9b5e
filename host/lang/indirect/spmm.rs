//! Detection of sparse matrix x dense matrix in an indirect Einsum, by its structure; names do not matter.

use einsparse_formats::Format;

use super::{Access, Bias, Index, IndirectEinsum};
use crate::einsum::{Activation, Mode, Scalar};

/// Direction of a bias of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BiasAxis {
    /// One element per row of the output: `bias[m]`.
    Rows,
    /// One element per column of the output: `bias[n]`.
    Cols,
}

/// Matrices of a product that are transposed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Orientation {
    /// Whether the sparse matrix is `[k,m]` instead of `[m,k]`: the product is with its transpose.
    pub transposed: bool,
    /// Whether the dense matrix is `[n,k]` instead of `[k,n]`.
    pub dense_columns: bool,
    /// Whether the output is `[n,m]` instead of `[m,n]`.
    pub out_columns: bool,
}

impl Orientation {
    /// Whether the product is `C[m,n] = A[m,k] * B[k,n]`.
    pub fn is_plain(self) -> bool {
        self == Orientation::default()
    }
}

impl std::fmt::Display for Orientation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pick = |swapped, one, other| if swapped { other } else { one };
        let a = pick(self.transposed, "A[m,k]", "A[k,m]");
        let b = pick(self.dense_columns, "B[k,n]", "B[n,k]");
        let c = pick(self.out_columns, "C[m,n]", "C[n,m]");
        write!(f, "{c} = {a} * {b}")
    }
}

/// SpMM `out[m,n] (= | +=) relu(scalars * sparse[m,k] * dense[k,n] + bias)`; each matrix may be transposed.
#[derive(Clone, Debug, PartialEq)]
pub struct SpmmForm {
    /// Name of the sparse operand.
    pub sparse: String,
    /// Name of the dense operand.
    pub dense: String,
    /// Name of the output.
    pub output: String,
    /// Transposed matrices.
    pub order: Orientation,
    /// Whether the dense operand and the output have a leading batch axis: one sparse matrix for all products.
    pub batched: bool,
    /// Whether all three have a leading batch axis: one pattern per product.
    pub stacked: bool,
    /// Mode of the output: `=` or `+=`.
    pub mode: Mode,
    /// Name and direction of the bias, in the axes of the output.
    pub bias: Option<(String, BiasAxis)>,
    /// Activation, applied last.
    pub activation: Activation,
    /// Second operand of `relu_grad`, with the shape of the output. The result is zero where this operand is not
    /// positive.
    pub gate: Option<String>,
    /// Factors without indices.
    pub scalars: Vec<Scalar>,
    /// Format of the sparse operand; `None` for a product of two dense matrices, the first of which is `sparse`.
    pub format: Option<Format>,
}

/// Returns the pair, swapped on request.
fn pair<T>([a, b]: [T; 2], swapped: bool) -> [T; 2] {
    if swapped { [b, a] } else { [a, b] }
}

impl IndirectEinsum {
    /// Returns the SpMM that this computes: one sparse and one dense matrix, summed over one index of each. `None` for
    /// another expression.
    pub fn as_spmm(&self) -> Option<SpmmForm> {
        let sparse = self.sparse.as_ref()?;
        let [row, column] = match (sparse.coordinates.as_slice(), self.factors.len()) {
            ([row, column], 2) => [row, column],
            ([item, row, column], 2) => return self.as_stacked(item, [row, column]),
            _ => return None,
        };
        let dense = &self.factors[1 - sparse.factor];
        let (batch, [o0, o1], [d0, d1]) =
            match (self.out.indices.as_slice(), dense.indices.as_slice()) {
                ([o0, o1], [d0, d1]) => (None, [o0, o1], [d0, d1]),
                ([Index::Name(b), o0, o1], [Index::Name(own), d0, d1]) if b == own => {
                    (Some(b), [o0, o1], [d0, d1])
                }
                _ => return None,
            };
        // The index of the batch must not appear elsewhere.
        let mut uses = 0;
        let mut count = |name: &str| uses += usize::from(batch.is_some_and(|b| b == name));
        for index in [o0, o1, d0, d1] {
            index.for_each_name(&mut count);
        }
        sparse.coordinates.iter().for_each(|i| i.for_each_name(&mut count));
        if uses > 0 || !self.equalities.is_empty() {
            return None;
        }
        let all = (0..8).map(|bits| Orientation {
            transposed: bits & 1 != 0,
            dense_columns: bits & 2 != 0,
            out_columns: bits & 4 != 0,
        });
        let fits = |order: &Orientation| {
            let [m, k] = pair([row, column], order.transposed);
            let [dense_k, dense_n] = pair([d0, d1], order.dense_columns);
            let [out_m, out_n] = pair([o0, o1], order.out_columns);
            let Index::Name(n) = out_n else { return false };
            let mut free = true;
            for place in &sparse.coordinates {
                place.for_each_name(&mut |name| free &= name != n);
            }
            free && out_m == m && dense_k == k && dense_n == out_n
        };
        let order = all.into_iter().find(fits)?;
        let first = usize::from(batch.is_some());
        let form = self.form((&sparse.name, &dense.tensor), order, first)?;
        Some(SpmmForm { batched: batch.is_some(), format: Some(sparse.format), ..form })
    }

    /// Returns the part that all forms share. `first`: the first matrix axis of the output.
    fn form(
        &self,
        (sparse, dense): (&str, &str),
        order: Orientation,
        first: usize,
    ) -> Option<SpmmForm> {
        Some(SpmmForm {
            sparse: sparse.to_owned(),
            dense: dense.to_owned(),
            output: self.out.tensor.clone(),
            order,
            batched: false,
            stacked: false,
            mode: self.mode,
            bias: matrix_bias(self.bias.as_ref(), first)?,
            activation: self.activation,
            gate: self.gate.clone(),
            scalars: self.scalars.clone(),
            format: None,
        })
    }

    /// Matches `C[z,m,n] = A[z,m,k] * B[z,k,n]`, a batch of patterns, only in this order of axes.
    fn as_stacked(&self, item: &Index, [row, column]: [&Index; 2]) -> Option<SpmmForm> {
        let sparse = self.sparse.as_ref()?;
        let dense = &self.factors[1 - sparse.factor];
        let ([oz, om, on], [dz, dk, dn]) = (self.out.indices.as_slice(), dense.indices.as_slice())
        else {
            return None;
        };
        let Index::Name(n) = on else { return None };
        let mut free = self.equalities.is_empty();
        for place in &sparse.coordinates {
            place.for_each_name(&mut |name| free &= name != n);
        }
        let fits = oz == item && dz == item && om == row && dk == column && dn == on;
        let form = self.form((&sparse.name, &dense.tensor), Orientation::default(), 1)?;
        // A bias along rows has one element per row of one matrix.
        if !free || !fits || matches!(form.bias, Some((_, BiasAxis::Rows))) {
            return None;
        }
        Some(SpmmForm { stacked: true, format: Some(sparse.format), ..form })
    }

    /// Returns the product of two dense matrices that this computes: `C[m,n] (= | +=) A[m,k] * B[k,n]`, with the
    /// factors in any order; A may be `[k,m]`, and B `[n,k]`. `None` for another expression.
    pub fn as_gemm(&self) -> Option<SpmmForm> {
        let (None, [first, second], [Index::Name(m), Index::Name(n)]) =
            (&self.sparse, self.factors.as_slice(), self.out.indices.as_slice())
        else {
            return None;
        };
        let names = |access: &Access| match access.indices.as_slice() {
            [Index::Name(a), Index::Name(b)] if a != b => Some([a.clone(), b.clone()]),
            _ => None,
        };
        let is = |a: &Access, b: &Access| {
            let (a, b) = (names(a)?, names(b)?);
            let (transposed, dense_columns) = (a[1] == *m, b[0] == *n);
            let [a_m, k] = pair(a, transposed);
            let [b_k, b_n] = pair(b, dense_columns);
            let right = a_m == *m && b_n == *n && k == b_k && k != *m && k != *n && m != n;
            right.then_some(Orientation { transposed, dense_columns, out_columns: false })
        };
        let (a, b, order) = match (is(first, second), is(second, first)) {
            (Some(order), _) => (first, second, order),
            (None, Some(order)) => (second, first, order),
            (None, None) => return None,
        };
        if !self.equalities.is_empty() || !self.ranges.is_empty() || a.tensor == b.tensor {
            return None;
        }
        self.form((&a.tensor, &b.tensor), order, 0)
    }

    /// Returns the batch of products of two dense matrices that this computes: that of [`as_gemm`](Self::as_gemm), with
    /// one leading index of the output and of both factors, and without a bias. `None` for another expression.
    pub fn as_gemm_batch(&self) -> Option<SpmmForm> {
        let Some(Index::Name(item)) = self.out.indices.first() else {
            return None;
        };
        let is_item = |index: &Index| matches!(index, Index::Name(name) if name == item);
        let of_one = |access: &Access| {
            let (first, matrix) = access.indices.split_first()?;
            let fits = is_item(first) && !matrix.iter().any(is_item);
            let own = || Access { tensor: access.tensor.clone(), indices: matrix.to_vec() };
            fits.then(own)
        };
        let factors: Option<Vec<_>> = self.factors.iter().map(of_one).collect();
        let one = IndirectEinsum { out: of_one(&self.out)?, factors: factors?, ..self.clone() };
        let form = one.as_gemm().filter(|_| self.bias.is_none())?;
        Some(SpmmForm { stacked: true, ..form })
    }
}

/// Returns the bias of a matrix whose axes start at `first`: by rows, by columns, or `Some(None)` without bias. `None`
/// for another bias.
fn matrix_bias(bias: Option<&Bias>, first: usize) -> Option<Option<(String, BiasAxis)>> {
    let Some(Bias { tensor, axes }) = bias else {
        return Some(None);
    };
    let axis = match axes.as_slice() {
        [axis] if *axis == first => BiasAxis::Rows,
        [axis] if *axis == first + 1 => BiasAxis::Cols,
        _ => return None,
    };
    Some(Some((tensor.clone(), axis)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::einsum::Einsum;
    use crate::indirect::rewrite_dense;

    fn batch(text: &str) -> Option<SpmmForm> {
        rewrite_dense(&Einsum::parse(text).unwrap()).unwrap().as_gemm_batch()
    }

    #[test]
    fn batches_of_products_have_a_leading_index() {
        for (text, transposed) in [
            ("C[z,m,n] = A[z,m,k] * B[z,k,n]", false),
            ("C[z,m,n] = A[z,k,m] * B[z,k,n]", true),
            ("C[z,m,n] = relu(B[z,k,n] * A[z,m,k])", false),
        ] {
            let form = batch(text).unwrap();
            assert_eq!((form.sparse.as_str(), form.dense.as_str()), ("A", "B"), "{text}");
            assert!(form.stacked && form.order.transposed == transposed, "{text}");
        }
        for text in [
            "C[m,n] = A[m,k] * B[k,n]",
            "C[m,z,n] = A[z,m,k] * B[z,k,n]",
            "C[z,m,n] = A[m,k] * B[z,k,n]",
            "C[z,m,n] = A[z,m,z] * B[z,z,n]",
            "C[z,m,n] = A[z,m,k] * B[z,k,n] + d[n]",
            "C[y,z,m,n] = A[y,z,m,k] * B[y,z,k,n]",
        ] {
            assert_eq!(batch(text), None, "{text}");
        }
    }
}
