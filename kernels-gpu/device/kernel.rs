//! What every kernel is: a tile with a body, for a walk, an element type and what a launch tells it.

use crate::abi::Tile;

/// The body of all rows of the table with this tile, walk `W`, element type `E` and parameters `P`. One tile may serve
/// several modules, which differ in their parameters.
pub trait Kernel<W, E, P>: Tile {
    /// # Safety
    /// `p` describes live device memory, lies at the generic address `at`, and the launch has this tile's geometry.
    unsafe fn run(p: &P, at: u64);
}
