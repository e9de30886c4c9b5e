//! Sparse tensors of any order, and any indirect Einsum.

pub mod einsum;
pub mod join;
pub mod messages;
pub mod mttkrp;
pub mod tensor_product;
