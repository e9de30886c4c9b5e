//! Sparse tensors of any order, and any indirect Einsum.

mod dots;
mod edge_geometry;
mod einsum;
mod equivariant;
mod joined;
mod messages;
mod mttkrp;
mod tensor_product;
mod windows;
