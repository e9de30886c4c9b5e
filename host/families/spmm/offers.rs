//! Which kernels of the family can run a product.

use std::sync::Arc;

use einsparse_kernels::abi::{Dtype, WalkKind};
use einsparse_kernels::table::Row;

use super::batched::Batched;
use super::bitmap::Bitmaps;
use super::gather::Gather;
use super::sell::Sell;
use super::staged::Staged;
use super::vectors::VectorProduct;
use crate::device::Device;
use crate::error::{Error, Refusal, Result};
use crate::indirect::SpmmForm;
use crate::launch::{Extents, Matrix, Product};
use crate::offer::{Answer, CostOf, Question, products_of};

/// Its rows of the table, and what they cost.
pub(crate) const FAMILY: (&str, CostOf) = ("spmm", super::cost::predict);

/// The kernels for a matrix of single entries.
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
    // A batch of entries, or their transpose.
    let ordered = row.module == "batched" || row.module == "spmm" && form.order.transposed;
    let product: Box<dyn Product> = match matrix {
        _ if ordered => Box::new(Batched::new(device, row, form, extents, matrix)?),
        Matrix::Sparse {
            runs,
            spans,
            columns,
            ..
        } => match row.walk {
            WalkKind::Bitmap | WalkKind::Bytemap => {
                let made = Bitmaps::new(device, row, form, extents, (runs, columns))?;
                return Ok(made.map(|product| Box::new(product) as _));
            }
            WalkKind::Vector => {
                let of = (runs, columns);
                Box::new(VectorProduct::new(device, row, form, extents, of, out)?)
            }
            _ => Box::new(Gather::new(device, row, form, extents, (runs, spans))?),
        },
        Matrix::Sliced { runs, pattern } if row.module == "sell" => {
            Box::new(Sell::new(device, row, form, extents, (runs, pattern))?)
        }
        Matrix::Sliced { runs, pattern } => {
            Box::new(Staged::new(device, row, form, extents, (runs, pattern))?)
        }
        Matrix::Dense { .. } => {
            return Err(Error::operand(
                &form.sparse,
                "is dense, and the kernel reads entries",
            ));
        }
    };
    Ok(Ok(product))
}
