//! Sparse tensors of any order: any indirect Einsum, MTTKRP, tensor products, edge geometry, max-reduced messages,
//! joins.

pub mod abi;

#[cfg(any(module = "graph", feature = "cuda_std"))]
mod edge_geometry;
#[cfg(any(module = "einsum", feature = "cuda_std"))]
mod einsum;
#[cfg(any(module = "equivariant", feature = "cuda_std"))]
mod equivariant;
#[cfg(any(module = "graph", feature = "cuda_std"))]
mod join;
#[cfg(any(module = "graph", feature = "cuda_std"))]
mod message;
#[cfg(any(module = "mttkrp", feature = "cuda_std"))]
mod mttkrp;
#[cfg(any(module = "tensor_product", feature = "cuda_std"))]
mod tensor_product;
