//! Columns of the items of a batch that hold something: `mark` reads all of it once and leaves a bit for each column, `pack` makes
//! lists of the bits and copies these columns, which L2 still has where the items fit into it. Between the two no thread block waits
//! for another.

mod mark;
mod pack;

use crate::abi::*;

/// The body, generic over the element; the tile is the implementor.
pub trait Body: Tile {
    /// # Safety
    /// `p` describes live device memory and the launch has this tile's geometry.
    unsafe fn run<W: WalkInfo, E: ElemInfo>(p: &ChannelsParams, at: u64);
}
