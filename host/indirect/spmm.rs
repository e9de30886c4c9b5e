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

/// `out[m,n] (= | +=) relu(scalars * sparse[m,k] * dense[k,n] + bias)`, or with `sparse[k,m]`.
#[derive(Clone, Debug, PartialEq)]
pub struct SpmmForm {
    /// Name of the sparse operand.
    pub sparse: String,
    /// Whether the product takes the sparse operand's transpose: `sparse[k,m]`.
    pub transposed: bool,
    /// Name of the dense operand, `[k,n]`.
    pub dense: String,
    /// Name of the output, `[m,n]`.
    pub output: String,
    /// `=` or `+=`.
    pub mode: Mode,
    /// Name and direction of the bias.
    pub bias: Option<(String, BiasAxis)>,
    /// Applied last.
    pub activation: Activation,
    /// Factors without indices.
    pub scalars: Vec<Scalar>,
    /// Format of the sparse operand; `None` for a product of two dense matrices, whose first `sparse` names.
    pub format: Option<Format>,
}

impl IndirectEinsum {
    /// The SpMM that this is, or `None`.
    ///
    /// An output or a dense operand whose axes are swapped is none.
    pub fn as_spmm(&self) -> Option<SpmmForm> {
        let sparse = self.sparse.as_ref()?;
        let ([row, column], 2) = (sparse.coordinates.as_slice(), self.factors.len()) else {
            return None;
        };
        let dense = &self.factors[1 - sparse.factor];
        let ([out_row, Index::Name(n)], [dense_row, Index::Name(dense_n)]) =
            (self.out.indices.as_slice(), dense.indices.as_slice())
        else {
            return None;
        };
        let mut n_is_free = true;
        for place in &sparse.coordinates {
            place.for_each_name(&mut |name| n_is_free &= name != n);
        }
        if n != dense_n || !n_is_free || !self.equalities.is_empty() {
            return None;
        }
        let transposed = match (out_row == row, dense_row == column) {
            (true, true) => false,
            _ if out_row == column && dense_row == row => true,
            _ => return None,
        };
        Some(SpmmForm {
            sparse: sparse.name.clone(),
            transposed,
            dense: dense.tensor.clone(),
            output: self.out.tensor.clone(),
            mode: self.mode,
            bias: matrix_bias(self.bias.as_ref())?,
            activation: self.activation,
            scalars: self.scalars.clone(),
            format: Some(sparse.format),
        })
    }

    /// The product of two dense matrices that this is, or `None`: `C[m,n] (= | +=) A[m,k] * B[k,n]`, row-major, with
    /// the factors in either order.
    pub fn as_gemm(&self) -> Option<SpmmForm> {
        let (None, [first, second], [Index::Name(m), Index::Name(n)]) = (
            &self.sparse,
            self.factors.as_slice(),
            self.out.indices.as_slice(),
        ) else {
            return None;
        };
        let is = |a: &Access, b: &Access| match (a.indices.as_slice(), b.indices.as_slice()) {
            ([Index::Name(am), Index::Name(ak)], [Index::Name(bk), Index::Name(bn)]) => {
                am == m && ak == bk && bn == n && ak != m && ak != n && m != n
            }
            _ => false,
        };
        let (a, b) = if is(first, second) {
            (first, second)
        } else if is(second, first) {
            (second, first)
        } else {
            return None;
        };
        if !self.equalities.is_empty() || !self.ranges.is_empty() || a.tensor == b.tensor {
            return None;
        }
        Some(SpmmForm {
            sparse: a.tensor.clone(),
            transposed: false,
            dense: b.tensor.clone(),
            output: self.out.tensor.clone(),
            mode: self.mode,
            bias: matrix_bias(self.bias.as_ref())?,
            activation: self.activation,
            scalars: self.scalars.clone(),
            format: None,
        })
    }
}

/// The bias of a matrix: by rows, by columns, or none; `None` for another.
fn matrix_bias(bias: Option<&Bias>) -> Option<Option<(String, BiasAxis)>> {
    match bias {
        None => Some(None),
        Some(Bias { tensor, axes }) => match axes.as_slice() {
            [0] => Some(Some((tensor.clone(), BiasAxis::Rows))),
            [1] => Some(Some((tensor.clone(), BiasAxis::Cols))),
            _ => None,
        },
    }
}
