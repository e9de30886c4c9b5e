//! Tiles and parameters of the family. Tokens are rows of their matrices, or columns ([`ELEMENTWISE_COLUMNS`]).

mod activation;
mod gated;
mod norm_gradient;
mod quantize;
mod rms_norm;
mod rotary;
mod tokens;

pub use activation::*;
pub use gated::*;
pub use norm_gradient::*;
pub use quantize::*;
pub use rms_norm::*;
pub use rotary::*;
pub use tokens::*;

/// Threads of a thread block.
pub const ELEMENTWISE_THREADS: u32 = 512;
/// Tokens are columns of their matrices.
pub const ELEMENTWISE_COLUMNS: u32 = 1;
/// Adjacent elements form whole vectors of 16 bytes.
pub const ELEMENTWISE_VECTORS: u32 = 2;
