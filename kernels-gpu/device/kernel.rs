//! Interface of all kernels: a tile implements the body for a walk, an element type and a params struct.

use super::maps::Maps;
use crate::abi::Tile;

/// Body of all rows of the table with this tile, walk `W`, element type `E` and params struct `P`. One tile may serve
/// several modules that differ in their params.
pub trait Kernel<W, E, P>: Tile {
    /// # Safety
    /// `p` must describe live device memory and be stored where `at` says. The launch must have the grid and block
    /// dimensions of this tile.
    unsafe fn run(p: &P, at: Maps);
}
