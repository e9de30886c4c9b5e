//! Named operations: an expression and the checks that it requires. `einsum!` and plans can compute the same results.

#[doc(hidden)]
pub mod attention;
mod conv;
mod conv2d;
mod edge_geometry;
mod einsum;
mod host_spmm;
mod message;
mod prune;
mod rows;
mod sampled_tensor;
mod softmax;
mod spmm;
mod tensor_product;
mod tensors;

pub use crate::families::gather_gemm::kernel_map::{ConvGeometry, KernelMap, KernelMapBuilder};
pub use attention::{
    AttentionGradient, AttentionMask, AttentionOptions, CachedAttention, DynamicAttention,
    MaskTensors, SparseAttention,
};
pub use conv::{ConvOptions, SparseConv3d};
pub use conv2d::{Conv2d, Conv2dOptions};
pub use edge_geometry::{EdgeGeometry, GeometryOptions, PeriodicCell};
#[doc(hidden)] // Called by the macro `einsum!`.
pub use einsum::{NamedOperands, einsum};
pub use host_spmm::HostSpmm;
pub use message::{Aggregate, MessagePassing};
pub use prune::prune_to_nm;
pub use sampled_tensor::SampledTensor;
pub use softmax::{SoftmaxOptions, SparseSoftmax};
pub use spmm::spmm;
pub use tensor_product::{
    Channels, Couplings, Edges, EquivariantMessage, Factors, Gradients, TensorProduct,
};
#[doc(hidden)]
pub use tensors::mttkrp_text;
pub use tensors::{Ttm, mttkrp};
