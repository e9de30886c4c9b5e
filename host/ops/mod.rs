//! Named operations: an expression with its checks. Whatever they do, `einsum!` and plans can do too.

mod attention;
mod einsum;
mod linear;
mod prune;
mod softmax;
mod sparse_linear;
mod spmm;
mod tensor_product;

pub use attention::{AttentionGradient, AttentionOptions, SparseAttention};
pub use einsum::einsum;
pub use linear::{BlockLinear, LinearOptions};
pub use prune::prune_to_nm;
pub use softmax::{SoftmaxOptions, SparseSoftmax};
pub use sparse_linear::SparseLinear;
pub use spmm::spmm;
pub use tensor_product::{Channels, Couplings, Factors, TensorProduct};
