//! Consumer warpgroup: each warp expands its slab (16 rows) of a tile to the fragments of four squares of 16 columns.

use super::out::Strip;
use super::{Filled, Ring};
use crate::device::prelude::*;
use crate::device::ptx::wgmma_thin::Thin;
use crate::device::thin::{MultiplyThin, ThinElem};
use crate::families::spmm::abi::*;

/// Squares of 16 columns in a tile, one product each.
const SQUARES: usize = 4;

/// Offsets of this lane's data in a stage.
#[derive(Clone, Copy)]
struct PerThread {
    word: u32,
    squares: u32,
    values: u32,
    weights: bits::Weights,
}

impl<const GROUPS: usize, const N: usize, F: BitForm<A: MultiplyThin, L: Loader>>
    BitTile<GROUPS, N, F>
{
    #[inline(always)]
    pub(super) fn consume<E: ThinElem>(p: &BitmapParams) {
        // Uniform over the warp, which the shuffle shows to ptxas.
        let group = warp::uniform(gpu::thread() / 128);
        let mut ring = Ring::first(0);
        // Without `wgmma` the kernel needs more registers, so the value is computed again instead of carried through
        // the loop.
        let now = |group| if F::A::ASYNCHRONOUS { group } else { gpu::opaque_thread() / 128 };
        let (warp, lane) = (gpu::thread() / 32 % 4, gpu::thread() % 32);
        let own = PerThread {
            word: warp::opaque(group * BIT_BYTES as u32 + (warp * 32 + lane) * 4),
            squares: warp::opaque(group * BIT_BYTES as u32 + 512 + warp * 8),
            values: warp::opaque(group),
            weights: bits::Weights::new(),
        };
        let mut round = 0;
        loop {
            let piece = p.piece(round);
            if piece.height == 0 {
                return;
            }
            round += 1;
            if now(group) >= warp::uniform(piece.height) {
                Self::pass(p, &mut ring, piece.stages);
                continue;
            }
            let mut acc = Thin::<N>::zero();
            let mut stage = 0;
            while stage < piece.stages {
                Self::wait_for(ring);
                let a = Self::fragments(p, ring.slot, own);
                F::A::fence_thin(&mut acc);
                Self::multiply::<E>(&mut acc, ring.slot, a);
                F::A::commit();
                // `wgmma` reads the fragments' registers until then. Other warpgroups expand meanwhile.
                F::A::wait_thin(&mut acc);
                Self::release(ring.slot);
                ring.advance(p.stages);
                stage += 1;
            }
            let piece = if F::A::ASYNCHRONOUS { piece } else { p.piece(round - 1) };
            let group = now(group);
            match N {
                16 if GROUPS == 4 => {
                    Strip::<GROUPS, N, 4>::epilogue::<E>(p, piece, group, &mut acc)
                }
                _ => Strip::<GROUPS, N, 1>::epilogue::<E>(p, piece, group, &mut acc),
            }
        }
    }

    /// Returns the fragments of this warp's slab.
    #[inline(always)]
    fn fragments(p: &BitmapParams, slot: u32, at: PerThread) -> [[u32; 4]; SQUARES] {
        let stage = Self::a(p, slot);
        let own = stage.bytes(at.word).cast::<u32>().ld();
        let squares = stage.bytes(at.squares).cast::<[u32; 2]>().ld();
        let values = Self::values(p, slot, at.values);
        let own = Slab::new(own, squares, values);
        let [pairs] = scanned([own.counts]);
        [0, 1, 2, 3].map(|t| own.square(at.weights, pairs, t))
    }

    #[inline(always)]
    fn multiply<E: ThinElem>(acc: &mut Thin<N>, slot: u32, a: [[u32; 4]; SQUARES]) {
        let b = frag::descriptor(0, (N * 2) as u32, 16);
        // The lowest bits of a descriptor are the address in units of 16 bytes.
        let low = (b as u32 | Self::stage(slot).address() >> 4) as u64;
        F::A::mma_thin::<E, N>(acc, a, b & 0xffff_ffff_0000_0000 | low);
    }
}

/// A lane's bits of a slab of four squares, and the address of the tile's values.
#[derive(Clone, Copy)]
pub(super) struct Slab {
    word: u32,
    /// For each square, the number of the tile's values before its right half.
    middles: [u32; 2],
    values: Shared<u16>,
    /// Bits of left and of right halves, one byte for each square.
    pub(super) counts: [u32; 2],
}

impl Slab {
    #[inline(always)]
    pub(super) fn new(word: u32, middles: [u32; 2], values: Shared<u16>) -> Slab {
        let counts = bits::halves_of_squares(word);
        Slab { word, middles, values, counts }
    }

    /// Returns this lane's fragment of square `t`. Values of the left half precede the middle: `pairs[0]` counts those
    /// of this lane and of higher lanes. Values of the right half follow it: `pairs[1]` counts those of lower lanes.
    #[inline(always)]
    pub(super) fn square(self, w: bits::Weights, pairs: [u32; 2], t: u32) -> [u32; 4] {
        let middle = bits::plus_twice(self.middles[t as usize / 2], t % 2, self.values.address());
        let left = bits::less_twice(pairs[0], t, middle);
        let right = bits::dp4a(pairs[1], 2 << (8 * t), middle);
        // SAFETY: these are values of the tile, or what follows them in the stage: the host adds `SLACK` bytes after the
        // values of a stage.
        unsafe { bits::expand(w, self.word >> (2 * t), [left, right]) }
    }
}

/// Scans the counts over the lanes: for left halves the sum over this lane and the higher ones, for right halves the
/// sum over the lower lanes. Sums are at most 128, so no byte overflows. Two slabs are summed in parallel.
#[inline(always)]
pub(super) fn scanned<const COUNT: usize>(counts: [[u32; 2]; COUNT]) -> [[u32; 2]; COUNT] {
    let mut pairs = counts;
    bits::scan_pairs(&mut pairs);
    unroll!(i < COUNT, { pairs[i][1] -= counts[i][1] });
    pairs
}
