//! Cost models of the kernels of the family.

pub(crate) mod einsum;
pub(crate) mod rows;
pub(crate) mod tensor_product;
