//! A warpgroup that multiplies: a warp expands its slab of 16 rows of a tile into fragments, four squares side by side.

use super::{Ring, ThinElem};
use crate::abi::*;
use crate::device::gpu;
use crate::device::ptx::wgmma_thin::Thin;
use crate::device::ptx::{barrier, bits, copy, warp, wgmma};
use crate::frag;

/// Squares of 16 columns in a tile, one `wgmma` each.
const SQUARES: usize = 4;

impl<const GROUPS: usize, const N: usize, const ALIGNED: bool> BitTile<GROUPS, N, ALIGNED> {
    #[inline(always)]
    pub(super) fn consume<E: ThinElem>(p: &BitmapParams) {
        // The same for all lanes, which ptxas has to see.
        let group = warp::shuffle::<32>(gpu::thread() / 128, 0, u32::MAX);
        let mut ring = Ring { slot: 0, parity: 0 };
        let [mut index, end] = p.list();
        while index < end {
            let piece = p.piece(index);
            let there = group < warp::shuffle::<32>(piece.height, 0, u32::MAX);
            let mut acc = Thin::<N>::zero();
            let mut stage = 0;
            while stage < piece.stages {
                barrier::wait(Self::full(ring.slot), ring.parity);
                if there {
                    let a = Self::fragments(p, ring.slot, group);
                    acc.fence();
                    Self::multiply::<E>(&mut acc, ring.slot, a);
                    wgmma::commit();
                    // The fragments' registers are read until then; other warpgroups expand meanwhile.
                    acc.wait::<0>();
                }
                Self::free(ring.slot);
                ring.advance(p.stages);
                stage += 1;
            }
            if there {
                Self::leave::<E>(p, piece, group, &mut acc);
            }
            index += 1;
        }
    }

    /// The fragments of this warp's slab.
    #[inline(always)]
    fn fragments(p: &BitmapParams, slot: u32, group: u32) -> [[u32; 4]; SQUARES] {
        let (warp, lane) = (gpu::thread_again() / 32 % 4, gpu::thread_again() % 32);
        let words = Self::a(p, slot) + group * BIT_BYTES as u32;
        let own = copy::load_shared_b32(words + (warp * 32 + lane) * 4);
        let squares = bits::load_shared_v2(words + 512 + warp * 8);
        let values = copy::load_shared_b32(Self::offsets(slot) + group * 4);
        let before = bits_in_front(own);
        let mut a = [[0; 4]; SQUARES];
        // A byte of `before` and a half of `squares` each.
        let at = |t: u32, square: u32| {
            values + ((before >> (8 * t) & 0xff) + (square & 0xffff)) * 2
        };
        a[0] = bits::expand::<0>(own, at(0, squares[0]), p.one);
        a[1] = bits::expand::<1>(own, at(1, squares[0] >> 16), p.one);
        a[2] = bits::expand::<2>(own, at(2, squares[1]), p.one);
        a[3] = bits::expand::<3>(own, at(3, squares[1] >> 16), p.one);
        a
    }

    /// The `wgmma`s of a stage.
    #[inline(always)]
    fn multiply<E: ThinElem>(acc: &mut Thin<N>, slot: u32, a: [[u32; 4]; SQUARES]) {
        let row = (N * 2) as u32;
        unroll!(t < SQUARES, {
            let b = frag::descriptor(Self::b(slot) + t as u32 * 16 * row, row, 16);
            E::mma_thin::<N>(acc, a[t], b);
        });
    }

    /// Lets the stage be overwritten, as far as this warp goes.
    #[inline(always)]
    fn free(slot: u32) {
        // One lane arrives for all, when all have read.
        warp::sync_lanes(u32::MAX);
        if gpu::thread_again() % 32 == 0 {
            barrier::arrive(Self::empty(slot));
        }
    }
}

/// In each byte: how many bits of this byte are set in the lanes in front. At most 248, so no byte overflows, whatever the
/// sums up to and with the last lane do: what they carry is taken away again.
#[inline(always)]
fn bits_in_front(own: u32) -> u32 {
    let pairs = own - (own >> 1 & 0x5555_5555);
    let fours = (pairs & 0x3333_3333) + (pairs >> 2 & 0x3333_3333);
    let counts = (fours + (fours >> 4)) & 0x0f0f_0f0f;
    bits::scan(counts).wrapping_sub(counts)
}
