//! Named operations: an expression with its checks. Whatever they do, `einsum!` and plans can do too.

mod einsum;
mod linear;
mod prune;
mod softmax;
mod spmm;

pub use einsum::einsum;
pub use linear::{BlockLinear, LinearOptions};
pub use prune::prune_to_nm;
pub use softmax::{SoftmaxOptions, SparseSoftmax};
pub use spmm::spmm;
