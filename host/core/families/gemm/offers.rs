//! Offers of the gemm kernels that can run a product.

use einsparse_kernels::abi::WalkKind;

use super::dense::DenseProduct;
use super::dense_csr::DenseCsr;
use super::nm::TwoOfFour;
use super::panel::Panels;
use crate::error::{Error, Refusal, Result};
use crate::families::spmm::gather::Gather;
use crate::launch::{Asked, Matrix, Product};
use crate::offer::{Answer, CostOf, Question, products_of};
use crate::registry::has_strips;

/// Name of the family, and its cost model.
pub(crate) const FAMILY: (&str, CostOf) = ("gemm", super::cost::predict);

/// Offers kernels for block, dense and 2:4 matrices, and for nonzeros in dense tiles with implicit zeros.
pub(crate) fn offers<'q>(question: &'q Question<'q, '_>) -> Result<Answer<'q>> {
    products_of(question, FAMILY, product)
}

fn product(
    of: Asked<'_>,
    matrix: Matrix<'_>,
) -> Result<std::result::Result<Box<dyn Product>, Refusal>> {
    let row = of.row;
    Ok(Ok(match matrix {
        _ if has_strips(row) => Box::new(Panels::new(of, matrix)?),
        Matrix::Sparse { runs, columns, .. } if row.walk == WalkKind::Nm => {
            Box::new(TwoOfFour::new(of, (runs, columns))?)
        }
        Matrix::Sparse { .. } if row.walk == WalkKind::Filled => {
            return Ok(DenseCsr::new(of, matrix)?.map(|own| Box::new(own) as Box<dyn Product>));
        }
        Matrix::Sparse { runs, spans, .. } => Box::new(Gather::new(of, (runs, spans))?),
        Matrix::Dense { leading } if row.walk == WalkKind::Direct => {
            Box::new(DenseProduct::new(of, leading)?)
        }
        Matrix::Dense { .. } | Matrix::Sliced { .. } => {
            return Err(Error::operand(&of.form.sparse, "is of no form that the kernel reads"));
        }
    }))
}
