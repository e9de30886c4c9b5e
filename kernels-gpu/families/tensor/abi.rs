//! Tiles and params of the family.

mod einsum;
mod join;
mod message;
mod mttkrp;
mod tensor_product;

pub use einsum::*;
pub use join::*;
pub use message::*;
pub use mttkrp::*;
pub use tensor_product::*;
