//! Named operations: an expression with its checks. Whatever they do, `einsum!` and plans can do too.

mod attention;
mod conv;
mod einsum;
mod encoder;
mod feed_forward;
mod linear;
mod message;
mod moe;
mod prune;
mod rows;
mod sampled_tensor;
mod softmax;
mod sparse_linear;
mod spmm;
mod tensor_product;
mod tensors;

pub use crate::families::gather_gemm::kernel_map::{
    ConvGeometry, KernelMap, KernelMapBuilder, Voxel,
};
pub use attention::{
    AttentionGradient, AttentionMask, AttentionOptions, DynamicAttention, MaskTensors,
    SparseAttention,
};
pub use conv::{ConvOptions, SparseConv3d};
pub use einsum::einsum;
pub use encoder::{EncoderLayer, EncoderOptions, EncoderWeights, ResidualNorm};
pub use feed_forward::{FeedForwardOptions, ReluFeedForward};
pub use linear::{BlockLinear, LinearOptions};
pub use message::{Aggregate, MessagePassing};
pub use moe::{MoeGradients, MoeLayer, MoeOptions};
pub use prune::prune_to_nm;
pub use sampled_tensor::SampledTensor;
pub use softmax::{SoftmaxOptions, SparseSoftmax};
pub use sparse_linear::SparseLinear;
pub use spmm::spmm;
pub use tensor_product::{Channels, Couplings, Factors, TensorProduct};
pub use tensors::{Ttm, mttkrp, mttkrp_text};
