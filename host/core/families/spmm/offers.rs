//! Offers of the spmm kernels that can run a product.

use einsparse_kernels::abi::WalkKind;
use einsparse_kernels::families::SellParams;

use super::batched::Batched;
use super::bitmap::Bitmaps;
use super::gather::Gather;
use super::sell::Sell;
use super::staged::Staged;
use super::vectors::VectorProduct;
use crate::error::{Error, Refusal, Result};
use crate::launch::{Asked, Matrix, Product};
use crate::offer::{Answer, CostOf, Question, products_of};

/// Name of the family, and its cost model.
pub(crate) const FAMILY: (&str, CostOf) = ("spmm", super::cost::predict);

/// Offers kernels for a matrix of unstructured nonzeros.
pub(crate) fn offers<'q>(question: &'q Question<'q, '_>) -> Result<Answer<'q>> {
    products_of(question, FAMILY, product)
}

fn product(
    of: Asked<'_>,
    matrix: Matrix<'_>,
) -> Result<std::result::Result<Box<dyn Product>, Refusal>> {
    // A batch of unstructured matrices, or a transpose.
    let row = of.row;
    let ordered = row.module == "batched" || row.module == "spmm" && of.form.order.transposed;
    let product: Box<dyn Product> = match matrix {
        _ if ordered => Box::new(Batched::new(of, matrix)?),
        Matrix::Sparse { runs, spans, columns, .. } => match row.walk {
            WalkKind::Bitmap | WalkKind::Bytemap => {
                let made = Bitmaps::new(of, (runs, columns))?;
                return Ok(made.map(|product| Box::new(product) as _));
            }
            WalkKind::Vector => Box::new(VectorProduct::new(of, (runs, columns))?),
            _ => Box::new(Gather::new(of, (runs, spans))?),
        },
        Matrix::Sliced { runs, pattern } if row.takes::<SellParams>() => {
            Box::new(Sell::new(of, (runs, pattern))?)
        }
        Matrix::Sliced { runs, pattern } => Box::new(Staged::new(of, (runs, pattern))?),
        Matrix::Dense { .. } => {
            return Err(Error::kind(&of.form.sparse, "a sparse tensor", "a dense one"));
        }
    };
    Ok(Ok(product))
}
