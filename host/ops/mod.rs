//! Named operations: an expression with its checks. Whatever they do, `einsum!` can do too.

mod einsum;
mod spmm;

pub use einsum::einsum;
pub use spmm::spmm;
