//! Named operations: an expression with its checks. Whatever they do, `einsum!` can do too.

mod einsum;
mod prune;
mod spmm;

pub use einsum::einsum;
pub use prune::prune_to_nm;
pub use spmm::spmm;
