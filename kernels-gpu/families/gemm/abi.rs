//! Tiles and parameters of the family.

mod block;
mod dense;
mod dense_csr;
mod nm;
mod wgmma;

pub use block::*;
pub use dense::*;
pub use dense_csr::*;
pub use nm::*;
pub use wgmma::*;
