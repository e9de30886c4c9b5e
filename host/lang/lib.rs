//! Language of einsparse: an expression ([`einsum`]) is parsed and checked, and rewritten for the formats of its operands
//! ([`indirect`]). [`Error`] is the error type of all crates on the host. Users depend on `einsparse`, which exports these
//! items.

pub mod einsum;
pub mod error;
pub mod indirect;

pub use error::{Error, Result};
