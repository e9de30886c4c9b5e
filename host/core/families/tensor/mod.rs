//! Sparse tensors of any order. The kernels are in `kernels-gpu/families/tensor`.

pub(crate) mod cost;
pub(crate) mod cpu;
pub(crate) mod edge_geometry;
pub(crate) mod einsum;
pub(crate) mod equivariant;
pub(crate) mod fibres;
pub(crate) mod join;
pub(crate) mod message;
pub(crate) mod mttkrp;
pub(crate) mod offers;
pub(crate) mod row_dots;
pub(crate) mod tensor_product;

pub(crate) use einsum::{EinsumLaunch, RawEinsum};
pub(crate) use message::{MessageLaunch, RawMessage};
pub(crate) use mttkrp::{RawRows, RowsExtents, RowsLaunch};
pub(crate) use row_dots::{DotsLaunch, RawDots};
