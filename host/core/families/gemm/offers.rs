//! Offers of the gemm kernels that can run a product.

use einsparse_kernels::abi::WalkKind;

use super::dense::DenseProduct;
use super::dense_csr::DenseCsr;
use super::nm::TwoOfFour;
use super::panel::Panels;
use crate::error::{Error, Result};
use crate::families::spmm::gather::Gather;
use crate::launch::{Matrix, Product, SpmmConfig};
use crate::offer::{CostOf, Offers, Request, spmm_offers};
use crate::registry::has_strips;

/// Name of the family, and its cost model.
pub(crate) const FAMILY: (&str, CostOf) = ("gemm", super::cost::predict);

/// Offers kernels for block, dense and 2:4 matrices, and for nonzeros in dense tiles with implicit zeros.
pub(crate) fn offers<'q>(request: &'q Request<'q, '_>) -> Result<Offers<'q>> {
    spmm_offers(request, FAMILY, launch)
}

fn launch(of: SpmmConfig<'_>, matrix: Matrix<'_>) -> Result<Box<dyn Product>> {
    let row = of.row;
    Ok(match matrix {
        _ if has_strips(row) => Box::new(Panels::new(of, matrix)?),
        Matrix::Sparse { columns, .. } if row.walk == WalkKind::Nm => {
            Box::new(TwoOfFour::new(of, columns)?)
        }
        Matrix::Sparse { .. } if row.walk == WalkKind::Filled => {
            Box::new(DenseCsr::new(of, matrix)?)
        }
        Matrix::Sparse { runs, spans, .. } => Box::new(Gather::new(of, (runs, spans))?),
        Matrix::Dense { leading } if row.walk == WalkKind::Direct => {
            Box::new(DenseProduct::new(of, leading)?)
        }
        Matrix::Dense { .. } | Matrix::Sliced { .. } => {
            return Err(Error::operand(&of.form.sparse, "is of no form that the kernel reads"));
        }
    })
}
