//! Named operations: an expression with its checks. Whatever they do, `einsum!` and plans can do too.

mod attention;
mod conv;
mod einsum;
mod linear;
mod prune;
mod softmax;
mod sparse_linear;
mod spmm;

pub use crate::kernel_map::{ConvGeometry, KernelMap, KernelMapBuilder, Voxel};
pub use attention::{AttentionGradient, AttentionOptions, SparseAttention};
pub use conv::{ConvOptions, SparseConv3d};
pub use einsum::einsum;
pub use linear::{BlockLinear, LinearOptions};
pub use prune::prune_to_nm;
pub use softmax::{SoftmaxOptions, SparseSoftmax};
pub use sparse_linear::SparseLinear;
pub use spmm::spmm;
