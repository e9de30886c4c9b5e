//! Named operations: an expression with its checks. Whatever they do, `einsum!` and plans can do too.

mod einsum;
mod linear;
mod spmm;

pub use einsum::einsum;
pub use linear::{BlockLinear, LinearOptions};
pub use spmm::spmm;
