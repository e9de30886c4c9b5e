//! Offers of the spmm kernels that can run a product.

use einsparse_kernels::abi::WalkKind;
use einsparse_kernels::families::SellParams;

use super::batched::Batched;
use super::bitmap::Bitmaps;
use super::gather::Gather;
use super::sell::Sell;
use super::staged::Staged;
use super::vectors::VectorProduct;
use crate::error::{Error, Result};
use crate::launch::{Matrix, Product, SpmmConfig};
use crate::offer::{CostOf, Offers, Request, spmm_offers};

/// Name of the family, and its cost model.
pub(crate) const FAMILY: (&str, CostOf) = ("spmm", super::cost::predict);

/// Offers kernels for a matrix of unstructured nonzeros.
pub(crate) fn offers<'q>(request: &'q Request<'q, '_>) -> Result<Offers<'q>> {
    spmm_offers(request, FAMILY, launch)
}

fn launch(of: SpmmConfig<'_>, matrix: Matrix<'_>) -> Result<Box<dyn Product>> {
    // A batch of unstructured matrices, or a transpose.
    let row = of.row;
    let ordered = row.module == "batched" || row.module == "spmm" && of.form.order.transposed;
    Ok(match matrix {
        _ if ordered => Box::new(Batched::new(of, matrix)?),
        Matrix::Sparse { runs, spans, columns, .. } => match row.walk {
            WalkKind::Bitmap | WalkKind::Bytemap => Box::new(Bitmaps::new(of, (runs, columns))?),
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
    })
}
