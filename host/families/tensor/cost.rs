//! What the kernels of the family are predicted to take.

pub(crate) mod einsum;
pub(crate) mod rows;
pub(crate) mod tensor_product;
