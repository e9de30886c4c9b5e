//! The module `relaxed`: tiles of `spmm` whose split rows are added to C in any order.

use crate::abi::{Dtype, Tile};
use crate::families::spmm::abi::SubWarp;

/// Tile like [`SubWarp`] with one part and 128 threads. Pieces of a split row are added to C by atomics.
#[derive(Clone, Copy, Debug)]
pub struct Relaxed<const LANES: u32, const VEC: usize, const REP: usize, const UNROLL: usize>;

impl<const LANES: u32, const VEC: usize, const REP: usize, const UNROLL: usize> Tile
    for Relaxed<LANES, VEC, REP, UNROLL>
{
    const THREADS: u32 = <SubWarp<LANES, VEC, REP, UNROLL, 1> as Tile>::THREADS;
    const MIN_BLOCKS: u32 = <SubWarp<LANES, VEC, REP, UNROLL, 1> as Tile>::MIN_BLOCKS;
    const COLUMNS: u32 = <SubWarp<LANES, VEC, REP, UNROLL, 1> as Tile>::COLUMNS;
    const ITEMS: u32 = <SubWarp<LANES, VEC, REP, UNROLL, 1> as Tile>::ITEMS;
    const BURST: u32 = UNROLL as u32;
    const ACCESS: u32 = 1;
    fn vector(_: Dtype) -> u32 {
        VEC as u32
    }
}
