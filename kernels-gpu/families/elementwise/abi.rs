//! Tiles and params of the family. Tokens are rows of their matrices, or columns ([`ELEMENTWISE_COLUMNS`]).

mod activation;
mod gated;
mod norm_gradient;
mod rms_norm;
mod rotary;
mod tokens;

pub use activation::*;
pub use gated::*;
pub use norm_gradient::*;
pub use rms_norm::*;
pub use rotary::*;
pub use tokens::*;

/// Threads of a thread block.
pub const ELEMENTWISE_THREADS: u32 = 512;
/// Tokens are columns of their matrices.
pub const ELEMENTWISE_COLUMNS: u32 = 1;
/// What lies side by side is whole vectors of 16 bytes.
pub const ELEMENTWISE_VECTORS: u32 = 2;

/// A tile of the family: threads, and shared memory.
macro_rules! tiles {
    ($($(#[$doc:meta])* $name:ident = $step:literal, $shared:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl $crate::abi::Tile for $name {
            const THREADS: u32 = $crate::families::elementwise::abi::ELEMENTWISE_THREADS;
            const MIN_BLOCKS: u32 = 1;
            const COLUMNS: u32 = 1;
            const STEP: u32 = $step;
            const ACCESS: u32 = 1;
            const SHARED_BYTES: u32 = $shared;
        }
    )+};
}

use tiles;
