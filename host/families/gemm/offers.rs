//! Which kernels of the family can run a product.

use std::sync::Arc;

use einsparse_kernels::abi::{Dtype, WalkKind};
use einsparse_kernels::table::Row;

use super::dense::DenseProduct;
use super::nm::TwoOfFour;
use super::panel::Panels;
use crate::device::Device;
use crate::error::{Error, Refusal, Result};
use crate::families::spmm::gather::Gather;
use crate::indirect::SpmmForm;
use crate::launch::{Extents, Matrix, Product};
use crate::offer::{Answer, CostOf, Question, products_of};
use crate::registry::has_strips;

/// Its rows of the table, and what they cost.
pub(crate) const FAMILY: (&str, CostOf) = ("gemm", super::cost::predict);

/// The kernels for a matrix of blocks, a dense one, and one with two of four.
pub(crate) fn offers<'q>(question: &'q Question<'q, '_>) -> Result<Answer<'q>> {
    products_of(question, FAMILY, product)
}

fn product(
    device: &Arc<Device>,
    row: &'static Row,
    (form, out): (SpmmForm, Dtype),
    extents: Extents,
    matrix: Matrix<'_>,
) -> Result<std::result::Result<Box<dyn Product>, Refusal>> {
    Ok(Ok(match matrix {
        _ if has_strips(row) => Box::new(Panels::new(device, row, form, extents, matrix, out)?),
        Matrix::Sparse { runs, columns, .. } if row.walk == WalkKind::Nm => {
            let of = (runs, columns);
            Box::new(TwoOfFour::new(device, row, form, extents, of, out)?)
        }
        Matrix::Sparse { runs, spans, .. } => {
            Box::new(Gather::new(device, row, form, extents, (runs, spans))?)
        }
        Matrix::Dense { leading } if row.walk == WalkKind::Direct => {
            Box::new(DenseProduct::new(device, row, form, extents, leading)?)
        }
        Matrix::Dense { .. } | Matrix::Sliced { .. } => {
            return Err(Error::operand(
                &form.sparse,
                "is of no form that the kernel reads",
            ));
        }
    }))
}
