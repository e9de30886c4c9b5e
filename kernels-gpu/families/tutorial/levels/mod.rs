//! One dense product, `C[m,n] = A[m,k] * B[k,n]`, implemented seven times. Each level adds one idea to the previous
//! one. docs/levels.md explains the levels and gives their measured rates.

mod level_0_loop;
mod level_1_shared;
mod level_2_mma;
mod level_3_wgmma;
mod level_4_ring;
mod level_5_roles;
mod level_6_persistent;

use crate::abi::*;
use crate::device::gpu;
use crate::device::memory::{Global, ReadWrite, buffers};
use crate::device::mma::MmaElem;
use crate::device::stages::Stages;
use crate::device::warpgroup::WgmmaElem;
use crate::families::tutorial::abi::*;
use crate::frag;

/// Element type of 16 bits, for `mma.sync` and `wgmma`.
pub trait Half: MmaElem + WgmmaElem {}
impl Half for F16 {}
impl Half for Bf16 {}

buffers! {
    // `Level::new` of the launch checks that the extents are multiples of the tile. The caller of `Level::run` promises
    // matrices of these extents.
    unsafe LevelsParams {
        a<E: Elem>: E, ReadOnly;
        b<E: Elem>: E, ReadOnly;
        c<E: Elem>: E, ReadWrite;
    }
}

/// Index of an element of a row-major matrix with rows of `width` elements.
#[inline(always)]
fn index(row: u32, column: u32, width: u32) -> u64 {
    row as u64 * width as u64 + column as u64
}

/// Address of this lane's first element of the atom of 16 x 8 at `row`, `column` of C. Callers add constant offsets,
/// which are encoded in the store instruction.
#[inline(always)]
fn lane_place<E: Half>(p: &LevelsParams, row: u32, column: u32) -> Global<E, ReadWrite> {
    let (r, x) = frag::accumulator(gpu::opaque_thread() % 32, 0);
    p.c().at(index(row + r, column + x, p.n))
}

/// Stores the four elements of a lane of an atom: two adjacent elements in one row, and two in the eighth row after it.
#[inline(always)]
fn store_atom<E: Half>(p: &LevelsParams, to: Global<E, ReadWrite>, sums: [f32; 4]) {
    let [a, b, c, d] = sums;
    to.st_rounded(&[a, b]);
    to.at(index(8, 0, p.n)).st_rounded(&[c, d]);
}

impl<const NUMBER: usize> Stages for Level<NUMBER> {
    /// A stage contains the tile of A, then the tile of B.
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<const NUMBER: usize> Level<NUMBER> {
    /// First row and column of C of this thread block, in levels whose thread blocks compute one tile each.
    #[inline(always)]
    fn place() -> (u32, u32) {
        (gpu::block_y() * Self::ROWS, gpu::block_x() * Self::COLUMNS)
    }
}
