//! Which kernels of the family can run an expression.

pub(crate) mod dots;
pub(crate) mod einsum;
pub(crate) mod rows;
pub(crate) mod tensor_product;
