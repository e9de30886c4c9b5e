//! Tiles and parameters of the family.

mod pit_sampled;
mod sampled;
mod sddmm;
mod sddmm_staged;
mod sddmm_tiles;

pub use pit_sampled::*;
pub use sampled::*;
pub use sddmm::*;
pub use sddmm_staged::*;
pub use sddmm_tiles::*;
