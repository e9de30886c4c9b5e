//! Is this indirect Einsum sparse matrix x dense matrix? Told by structure, whatever the names.

use einsparse_formats::Format;

use super::{Access, Bias, Index, IndirectEinsum};
use crate::einsum::{Activation, Mode, Scalar};

/// Which way a bias of a matrix runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BiasAxis {
    /// One number for each row of the output: `bias[m]`.
    Rows,
    /// One number for each column of the output: `bias[n]`.
    Cols,
}

/// Which of a product's matrices lie the other way round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Orientation {
    /// The sparse matrix is `[k,m]` instead of `[m,k]`: the product takes its transpose.
    pub transposed: bool,
    /// The dense one is `[n,k]` instead of `[k,n]`.
    pub dense_columns: bool,
    /// The output is `[n,m]` instead of `[m,n]`.
    pub out_columns: bool,
}

impl Orientation {
    /// `C[m,n] = A[m,k] * B[k,n]`.
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

/// `out[m,n] (= | +=) relu(scalars * sparse[m,k] * dense[k,n] + bias)`, each matrix one way or the other.
#[derive(Clone, Debug, PartialEq)]
pub struct SpmmForm {
    /// Name of the sparse operand.
    pub sparse: String,
    /// Name of the dense operand.
    pub dense: String,
    /// Name of the output.
    pub output: String,
    /// Which of the three lie the other way round.
    pub order: Orientation,
    /// Whether the dense operand and the output have one more axis in front: one product for each of a batch.
    pub batched: bool,
    /// Whether all three have one more axis in front: a pattern for each of a batch.
    pub stacked: bool,
    /// `=` or `+=`.
    pub mode: Mode,
    /// Name and direction of the bias, in the axes of the output.
    pub bias: Option<(String, BiasAxis)>,
    /// Applied last.
    pub activation: Activation,
    /// Tensor of the output's shape; results are zero where it is not positive.
    pub gate: Option<String>,
    /// Factors without indices.
    pub scalars: Vec<Scalar>,
    /// Format of the sparse operand; `None` for a product of two dense matrices, whose first `sparse` names.
    pub format: Option<Format>,
}

/// The pair, or the pair swapped.
fn pair<T>([a, b]: [T; 2], swapped: bool) -> [T; 2] {
    if swapped { [b, a] } else { [a, b] }
}

impl IndirectEinsum {
    /// The SpMM that this is, or `None`: one sparse matrix and one dense, summed over one index of each.
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
        // The batch's index stands nowhere else.
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

    /// What all forms share; `first`: the axis of the output where the matrix starts.
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

    /// `C[z,m,n] = A[z,m,k] * B[z,k,n]`, a pattern for each of a batch, in this order of the axes alone.
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
        // A bias of rows is one for each row of one matrix.
        if !free || !fits || matches!(form.bias, Some((_, BiasAxis::Rows))) {
            return None;
        }
        Some(SpmmForm { stacked: true, format: Some(sparse.format), ..form })
    }

    /// The product of two dense matrices that this is, or `None`: `C[m,n] (= | +=) A[m,k] * B[k,n]`, with the factors
    /// in either order and A as `[k,m]`, B as `[n,k]` as well.
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
}

/// The bias of a matrix, whose axes start at `first`: by rows, by columns, or none; `None` for another.
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
