//! Tiles and parameters of the family.

mod couplings;
mod edge_geometry;
mod einsum;
mod equivariant;
mod join;
mod message;
mod mttkrp;
mod tensor_product;

pub use couplings::*;
pub use edge_geometry::*;
pub use einsum::*;
pub use equivariant::*;
pub use join::*;
pub use message::*;
pub use mttkrp::*;
pub use tensor_product::*;
